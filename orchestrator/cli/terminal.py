"""The user's terminal, which one at a time can have: a view that redraws itself, or a question.

Questions are asked by threads that log in, while the main thread may be told to leave: an open one is given up then, and
the terminal left as it was found, with its echo on.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import threading
from typing import Protocol

LOOK_UP_S = 0.1
"""So often who reads an answer looks whether it is still wanted."""
GIVING_UP_S = 2.0


class View(Protocol):
    """What redraws itself."""

    def show(self) -> None:
        """Begin to redraw."""

    def hide(self) -> None:
        """Leave the screen."""


class Terminal:
    """Who has the terminal."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._turn = threading.Lock()
        self._view: View | None = None
        self._asking = False
        self._unwanted = threading.Event()

    def show(self, view: View) -> None:
        """Let this view redraw itself whenever there is no question."""
        with self._lock:
            self._view = view
            if not self._asking:
                view.show()

    def hide(self) -> None:
        """Take the view down for good."""
        with self._lock:
            view, self._view = self._view, None
            if view is not None and not self._asking:
                view.hide()

    def ask(self, question: str) -> str | None:
        """The answer, typed unseen; None when there is none, or nobody wants it any more."""
        with self._turn:
            if self._unwanted.is_set():
                return None
            self._set_asking(True)
            try:
                answer = _read_unseen(question, self._unwanted)
            finally:
                self._set_asking(False)
        return None if answer is None else os.fsdecode(answer)

    def reopen(self) -> None:
        """Questions may be asked (again)."""
        self._unwanted.clear()

    def give_up(self) -> bool:
        """No answer is wanted any more; whether a question was open. It is closed when this returns."""
        with self._lock:
            asking = self._asking
        self._unwanted.set()
        if self._turn.acquire(timeout=GIVING_UP_S):
            self._turn.release()
        return asking

    def _set_asking(self, asking: bool) -> None:
        with self._lock:
            self._asking = asking
            if self._view is not None:
                (self._view.hide if asking else self._view.show)()


TERMINAL = Terminal()
"""A process has one."""


def _read_unseen(question: str, unwanted: threading.Event) -> bytes | None:
    try:
        fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        fd = os.dup(sys.stdin.fileno())
    try:
        before = termios.tcgetattr(fd)
        unseen = [*before]
        unseen[3] = before[3] & ~termios.ECHO
        termios.tcsetattr(fd, termios.TCSAFLUSH, unseen)
        try:
            os.write(fd, question.encode("utf-8", "backslashreplace"))
            return _line(fd, unwanted)
        finally:
            termios.tcsetattr(fd, termios.TCSADRAIN, before)
            os.write(fd, b"\n")
    except (OSError, termios.error):
        return None
    finally:
        os.close(fd)


def _line(fd: int, unwanted: threading.Event) -> bytes | None:
    line = b""
    while not unwanted.is_set():
        if not select.select([fd], [], [], LOOK_UP_S)[0]:
            continue
        data = os.read(fd, 4096)
        line += data
        if not data:
            return None
        if data.endswith(b"\n"):
            return line[:-1]
    return None
