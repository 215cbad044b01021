"""Waiting for a file to grow: told by inotify where there is one, else by looking 50 times a second."""

from __future__ import annotations

import ctypes
import os
import select
from typing import List, Optional

POLL_S = 0.02
HURRY_S = 0.002
_IN_MODIFY = 0x2
_IN_NONBLOCK = os.O_NONBLOCK
_IN_CLOEXEC = os.O_CLOEXEC


class Watch:
    """Watches one file for writes."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._size: Optional[int] = None
        self._watching = False

    def wait(self, fds: List[int], timeout_s: float, hurry: bool = False) -> None:
        """Return when the file was written to since the last call, one of `fds` is readable, or time is up.

        With `hurry`, time is up after 2 ms. May return early without a reason."""
        if not self._watching:
            # What is written from here on is seen; what came before it must be looked for once more.
            self._watching = True
            self._fd = _inotify(self._path)
            return
        if hurry or self._fd < 0:
            timeout_s = min(timeout_s, HURRY_S if hurry else POLL_S)
        ready, _, _ = select.select(
            [*fds, *([self._fd] if self._fd >= 0 else [])], [], [], max(0.0, timeout_s)
        )
        if self._fd in ready:
            try:
                os.read(self._fd, 1 << 16)
            except BlockingIOError:
                pass

    def close(self) -> None:
        """Stop watching."""
        if self._fd >= 0:
            os.close(self._fd)


def _inotify(path: str) -> int:
    """A descriptor that is readable after writes to `path`, or -1 where that cannot be had."""
    try:
        libc = ctypes.CDLL(None)
        fd = int(libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC))
        if fd >= 0 and libc.inotify_add_watch(fd, os.fsencode(path), _IN_MODIFY) < 0:
            os.close(fd)
            return -1
    except (OSError, AttributeError):
        return -1
    return fd
