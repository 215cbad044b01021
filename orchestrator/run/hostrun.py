"""One host of a run, on a thread of its own: connect, launch, follow, and follow again after every break.

What comes from the host is handed to the coordinator through a queue, in order; nothing here interprets it.
A link that breaks after the launch is never a failure of a case: the agent goes on, and we follow it again from
where we were, with growing, jittered pauses, until `lost_after_s` have passed without a word from the host.
"""

from __future__ import annotations

import queue
import random
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from orchestrator.errors import HostError, HostUnreachable
from orchestrator.inventory import HostSpec
from orchestrator.launch.dialogue import Dialogue, End, Events, Following, Launched
from orchestrator.transport.base import Transport

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 15.0
RELAUNCHES = 3
"""How often an agent that vanished (killed, host rebooted) is started again before the host counts as lost."""


class HostPhase(StrEnum):
    """Where a host of a run stands. The last five are final, and the words of the run's result."""

    CONNECTING = "connecting"
    RUNNING = "running"
    RECONNECTING = "reconnecting"
    OK = "ok"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    UNUSABLE = "unusable"
    LOST = "lost"

    @property
    def final(self) -> bool:
        """Whether nothing more will come from the host."""
        return self not in (HostPhase.CONNECTING, HostPhase.RUNNING, HostPhase.RECONNECTING)


@dataclass(frozen=True)
class HostTask:
    """Everything needed to start (or only to follow) a host's part of a run."""

    spec: HostSpec
    run_id: str
    job: Mapping[str, Any]
    tree: Mapping[str, bytes]
    items: Sequence[Mapping[str, Any]] = ()
    sealed: bool = True
    secrets: Mapping[str, str] = field(default_factory=dict)
    offset: int = 0
    follow_only: bool = False


@dataclass(frozen=True)
class Changed:
    """A host has another state; `detail` is for people (the error, or what is waited for)."""

    host: str
    phase: HostPhase
    detail: str | None = None
    ended: str | None = None


@dataclass(frozen=True)
class Chunk:
    """Whole journal lines of a host that start at byte `offset`."""

    host: str
    offset: int
    data: bytes


Message = Changed | Chunk


class HostRun:
    """Runs one `HostTask`; `control` and `stop` may be called from any thread."""

    def __init__(
        self,
        task: HostTask,
        open_transport: Callable[[HostSpec], Transport],
        outbox: queue.Queue[Message],
        *,
        lost_after_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.task = task
        self._open_transport = open_transport
        self._outbox = outbox
        self._lost_after_s = lost_after_s
        self._clock = clock
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._transport: Transport | None = None
        self._following: Following | None = None
        self._undelivered: list[dict[str, Any]] = []
        self._offset = task.offset
        self._launched = task.follow_only
        self._relaunches = 0
        self._thread = threading.Thread(target=self._run, name=f"host-{task.spec.name}", daemon=True)

    @property
    def name(self) -> str:
        """The host's name."""
        return self.task.spec.name

    @property
    def launched(self) -> bool:
        """Whether the host has its part of the run and would go on without us."""
        return self._launched

    @property
    def alive(self) -> bool:
        """Whether its thread is at work."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop following; the host goes on."""
        self._stop.set()
        with self._lock:
            if self._following is not None:
                self._following.close()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread."""
        self._thread.join(timeout_s)

    def control(self, message: dict[str, Any]) -> None:
        """Tell the agent something (cancel, enqueue, release). Kept and said again after a break of the link: the
        `id` tells the agent a batch that is only said again from cases that are offered again."""
        if message["type"] == "enqueue":
            message = {**message, "id": uuid.uuid4().hex}
        with self._lock:
            following = self._following
            if following is None or message["type"] != "release":
                self._undelivered.append(message)
        if following is not None:
            try:
                following.send_control(message)
            except HostUnreachable:
                pass  # the reader of this link sees the same break, and everything is said again after it

    def _say(self, phase: HostPhase, detail: str | None = None, ended: str | None = None) -> None:
        self._outbox.put(Changed(self.name, phase, detail, ended))

    def _run(self) -> None:
        last_word = self._clock()
        pause = FIRST_PAUSE_S
        self._say(HostPhase.CONNECTING)
        while not self._stop.is_set():
            heard = False
            try:
                for message in self._connected():
                    heard = True
                    last_word = self._clock()
                    if isinstance(message, Launched):
                        self._launched = True
                        self._say(HostPhase.RUNNING)
                    elif isinstance(message, Events):
                        self._outbox.put(Chunk(self.name, message.offset, message.data))
                        self._offset = message.offset + len(message.data)
                    elif isinstance(message, End):
                        if self._ended(message):
                            return
                        break
            except HostUnreachable as error:
                if self._stop.is_set():
                    return
                silent_s = self._clock() - last_word
                if not self._launched:
                    self._say(HostPhase.UNREACHABLE, str(error))
                    return
                if silent_s > self._lost_after_s:
                    self._say(
                        HostPhase.LOST,
                        f"{self.name}: no word for {silent_s:.0f} s; last: {error.bare_message}",
                    )
                    return
                self._say(HostPhase.RECONNECTING, error.bare_message)
            except HostError as error:
                if not self._stop.is_set():
                    self._say(HostPhase(error.state), str(error))
                return
            except Exception as error:  # noqa: BLE001 - the thread's boundary: a bug here must not look like a hang
                self._say(
                    HostPhase.UNUSABLE, f"{self.name}: farbench failed: {type(error).__name__}: {error}"
                )
                return
            pause = FIRST_PAUSE_S if heard else min(pause * 2, LONGEST_PAUSE_S)
            self._stop.wait(pause * random.uniform(0.5, 1.5))

    def _connected(self) -> Following:
        """A dialogue with the host's agent: launched the first time, followed again afterwards."""
        if self._transport is None:
            self._transport = self._open_transport(self.task.spec)
        self._transport.connect()
        dialogue = Dialogue(self._transport, self.task.spec)
        if self._launched:
            following = dialogue.follow(self.task.run_id, self._offset)
            self._say(HostPhase.RUNNING)
        else:
            following = dialogue.launch(
                job=self.task.job,
                tree=self.task.tree,
                queue=self.task.items,
                sealed=self.task.sealed,
                secrets=self.task.secrets,
                follow_offset=self._offset,
            )
        with self._lock:
            self._following = following
            for message in self._undelivered:
                following.send_control(message)
        if self._stop.is_set():
            following.close()
        return following

    def _ended(self, end: End) -> bool:
        """Whether the host is done. An agent that vanished is started again: it takes up its own journal."""
        if end.state != "dead":
            self._say(HostPhase.OK, ended=end.state)
            return True
        if self.task.follow_only or self._relaunches >= RELAUNCHES:
            self._say(
                HostPhase.LOST,
                f"{self.name}: the agent is gone, and cases are left; `farbench resume` starts it again",
                ended="dead",
            )
            return True
        self._relaunches += 1
        self._launched = False
        self._say(HostPhase.RECONNECTING, "the agent is gone; starting it again")
        return False
