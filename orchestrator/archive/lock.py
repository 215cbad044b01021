"""The lock of a run's one coordinator: a flock, which dies with its holder."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.archive.files import FILE_MODE

_ATTEMPTS = 20
_PAUSE_S = 0.02
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def take(path: Path) -> int | None:
    """The descriptor that holds the lock, or None when another process (or another `OpenRun`) holds it.

    Raises `FileNotFoundError` when the folder is gone, i.e. the run was committed."""
    for _ in range(_ATTEMPTS):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            _flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_ino == path.stat().st_ino:  # the folder did not move while we waited
                return descriptor
            os.close(descriptor)
        except BlockingIOError:
            os.close(descriptor)
            time.sleep(_PAUSE_S)  # a reader may be asking (`is_held`), which takes it for an instant
        except BaseException:
            os.close(descriptor)
            raise
    return None


def is_held(path: Path) -> bool:
    """Whether a coordinator is at work. Needs no right to write."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        _flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks: nobody can hold one
        return False
    finally:
        os.close(descriptor)
    return False


def _flock(descriptor: int, operation: int) -> None:
    try:
        fcntl.flock(descriptor, operation)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise OSError(
            error.errno,
            "its file system has no locks (flock), and only those keep two commands from writing at once",
        ) from None


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Wait for a lock and hold it: for what takes an instant, such as rewriting a small file."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        _flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
