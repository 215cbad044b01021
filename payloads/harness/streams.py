"""Standard output and standard error of a process in which others' code closes what it likes."""

from __future__ import annotations

import fcntl
import os
import sys
from typing import Any, List

_kept: List[Any] = []


def keep() -> None:
    """Remember where standard error goes now: the log."""
    try:
        descriptor = fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, 64)
        _kept[:] = [descriptor, _identity(descriptor)]
    except OSError:
        _kept.clear()  # there is none


def restore() -> None:
    """Open descriptors 1 and 2 again if they were closed, and make `sys.stdout` and `sys.stderr` usable."""
    for descriptor in (1, 2):
        if not _is_open(descriptor):
            _reopen(descriptor)
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        try:
            if stream is not None and not stream.closed:
                stream.flush()
                continue
        except (AttributeError, OSError, ValueError):
            pass  # broken: replaced
        setattr(sys, name, _writer(descriptor))


def _reopen(descriptor: int) -> None:
    source = os.open(os.devnull, os.O_RDWR)
    if source != descriptor:
        os.dup2(source, descriptor)
        os.close(source)
    if _kept and _is_open(_kept[0]) and _identity(_kept[0]) == _kept[1]:
        os.dup2(_kept[0], descriptor)
    os.set_inheritable(descriptor, True)


def _writer(descriptor: int) -> Any:
    return open(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _identity(descriptor: int) -> Any:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
