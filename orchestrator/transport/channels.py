"""Commands side by side on one connection, of which the host allows only so many (sshd's MaxSessions, usually 10)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from orchestrator.errors import HostUnusable

WAIT_S = 60.0
"""How long a command waits for another one's end where the host takes no more at once."""
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0

T = TypeVar("T")


class NoRoom(Exception):
    """The host declined one more command on this connection."""


class Channels:
    """Makes commands wait for room. The limit is not announced and not ours alone to reach: a command that was closed here
    counts on the host for as long as its process lives. So one more is tried when another ends, and now and then."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._changed = threading.Condition()
        self._trying = 0
        self._accepted = False

    def open(self, open_one: Callable[[], T]) -> T:
        """`open_one`, again while it raises `NoRoom`. Raises `HostUnusable` after `WAIT_S`, or at once where the host has
        never taken a command on this connection."""
        deadline = time.monotonic() + WAIT_S
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return self._try(open_one)
            except NoRoom as error:
                if self._hopeless() or time.monotonic() >= deadline:
                    raise self._refusal(str(error)) from error
            with self._changed:
                self._changed.wait(pause_s * random.uniform(0.5, 1.5))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _try(self, open_one: Callable[[], T]) -> T:
        with self._changed:
            self._trying += 1
        accepted = False
        try:
            opened = open_one()
            accepted = True
            return opened
        finally:
            with self._changed:
                self._trying -= 1
                self._accepted = self._accepted or accepted

    def _hopeless(self) -> bool:
        """Whether this was not declined for the sake of other commands."""
        with self._changed:
            return not self._accepted and self._trying == 0

    def ended(self) -> None:
        """A command has ended: one of those that wait may try."""
        with self._changed:
            self._changed.notify()

    def _refusal(self, reason: str) -> HostUnusable:
        waited = f", and no command ended within {WAIT_S:.0f} s" if self._accepted else ""
        return HostUnusable(
            self._host, f"the host refuses another command on this connection{waited}: {reason}", step="exec",
            hint="sshd's MaxSessions limits them",
        )  # fmt: skip
