"""The lock that says whether a run's agent lives: it dies with its holder, whatever a PID may say later."""

from __future__ import annotations

import fcntl
import os
import time
from typing import Optional

from .paths import RunPaths


def acquire(paths: RunPaths, wait_s: float = 2.0) -> Optional[int]:
    """The run's lock as a descriptor that must stay open, or None when an agent lives.

    It is tried for a moment, because whoever only looks (`is_held`) holds it for a microsecond too."""
    fd = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + wait_s
    while True:
        try:
            _flock(fd, fcntl.LOCK_EX, paths.lock)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(fd)
                return None
            time.sleep(0.02)
            continue
        return fd


class FolderGone(Exception):
    """The run's folder is not there any more, or is another one: whatever is done for it now is done by somebody else."""


def require(paths: RunPaths, fd: int) -> None:
    """Raises `FolderGone` unless the lock that is held by `fd` is the one of the run's folder."""
    try:
        found = os.stat(paths.lock)
    except (FileNotFoundError, NotADirectoryError):
        raise FolderGone(paths.root) from None
    except OSError:
        return  # it cannot be told; a network folder may be away for a moment
    if not os.path.samestat(found, os.fstat(fd)):
        raise FolderGone(paths.root)


def is_held(paths: RunPaths) -> bool:
    """Whether the run's agent lives."""
    try:
        fd = os.open(paths.lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        _flock(fd, fcntl.LOCK_SH, paths.lock)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _flock(fd: int, how: int, path: str) -> None:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:  # the system's own names no file
        why = f"this file system has no locks (flock): {error.strerror}; choose another `workdir`"
        raise OSError(error.errno, why, path) from None
