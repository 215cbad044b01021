"""Ctrl-C that waits for the work in hand.

Raised anywhere, as Python does it, it would fall between taking something from a host and keeping it: what was taken would
be gone, and what follows on it would be refused.
"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType

STUCK_S = 3.0
"""Work that takes longer than that, as on a disk that does not answer, is broken off by the next Ctrl-C."""


class Interrupts:
    """While entered, `KeyboardInterrupt` is raised by `check` alone. Whoever handles the signal otherwise goes on doing so."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._holds = False

    def __enter__(self) -> Interrupts:
        on_main_thread = threading.current_thread() is threading.main_thread()
        if on_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupted)
            self._holds = True
        return self

    def __exit__(self, *exc: object) -> None:
        if self._holds:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._holds = False

    def check(self) -> None:
        """Raises `KeyboardInterrupt` if Ctrl-C has come since the last time."""
        if self._since_s is not None:
            self._since_s = None
            raise KeyboardInterrupt

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if self._since_s is None:
            self._since_s = now_s
        elif now_s - self._since_s > STUCK_S:
            raise KeyboardInterrupt
