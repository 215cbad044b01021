"""What is said to an agent over links that may break, or take nothing for a while, at any moment."""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Mapping
from typing import Any

from orchestrator.errors import HostError
from orchestrator.launch.dialogue import Following

Control = Mapping[str, Any]


class Controls:
    """Messages go out in the order in which they were said, on a thread of their own: nobody waits for a slow link.

    Batches of cases are kept and said again on every new link until the agent has journalled them; their `id` tells it a
    batch that is only said again from cases that are offered again. A request to give cases back is said on the link
    that there is, or not at all: whoever asks learns of a break, and asks again. Safe for several threads."""

    def __init__(self, name: str) -> None:
        self._changed = threading.Condition()
        self._following: Following | None = None
        self._kept: dict[str, Control] = {}
        self._waiting: deque[Control] = deque()
        self._over = False
        self._sender = threading.Thread(target=self._send, name=f"controls-{name}", daemon=True)

    @property
    def unconfirmed(self) -> bool:
        """Whether a batch was said that the agent has not journalled yet."""
        return bool(self._kept)

    def connect(self, following: Following) -> None:
        """There is a (new) link: what may not have arrived is said on it first."""
        with self._changed:
            self._following = following
            self._waiting = deque(self._kept.values())
            self._wake()

    def say(self, message: Control) -> None:
        """Say it as soon as that can be."""
        with self._changed:
            if message["type"] == "enqueue":
                message = {**message, "id": uuid.uuid4().hex}
                self._kept[message["id"]] = message
            if self._following is not None:
                self._waiting.append(message)
                self._wake()

    def confirm(self, message_id: str) -> None:
        """The agent has it."""
        with self._changed:
            self._kept.pop(message_id, None)

    def forget(self) -> None:
        """Nothing of what was said counts any more."""
        with self._changed:
            self._kept.clear()
            self._waiting.clear()

    def close(self) -> None:
        """Hang up; nothing more will be said."""
        with self._changed:
            self._over = True
            following = self._following
            self._changed.notify()
        if following is not None:
            following.close()

    def _wake(self) -> None:
        if self._waiting and not self._sender.is_alive() and not self._over:
            self._sender.start()  # most hosts are never told anything
        self._changed.notify()

    def _send(self) -> None:
        while True:
            with self._changed:
                while not self._over and not (self._waiting and self._following):
                    self._changed.wait()
                if self._over or self._following is None:
                    return
                following, message = self._following, self._waiting.popleft()
            try:
                following.send_control(message)
            except HostError:
                with self._changed:  # the reader of this link sees the same break
                    if self._following is following:
                        self._following = None
                        self._waiting.clear()
