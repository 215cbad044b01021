"""Whether somebody follows a run, as its agent sees it."""

from __future__ import annotations

import fcntl
import os
from typing import Optional

SIGN_LASTS_S = 120.0
"""A sign of a follower on another machine counts for so long: network file systems may show it a minute late."""


class Followers:
    """Followers hold a lock. With `afar` they may be on another machine, whose locks are not seen here: then the time
    counts too that they leave on its file again and again."""

    def __init__(self, path: str, afar: bool) -> None:
        self._path = path
        self._afar = afar
        self._mark = self._changed_at()
        self._seen_at = float("-inf")

    def any(self, now: float) -> bool:
        """Whether there is one, at a moment of the monotonic clock."""
        mark = self._changed_at()
        if mark != self._mark:
            self._mark, self._seen_at = mark, now
        return _held(self._path) or (self._afar and now - self._seen_at < SIGN_LASTS_S)

    def _changed_at(self) -> Optional[int]:
        try:
            return os.stat(self._path).st_mtime_ns
        except OSError:
            return None


def _held(path: str) -> bool:
    """Whether somebody holds the lock of a file; what cannot be told counts as held."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
