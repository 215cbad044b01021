"""A full disk, a missing right or a failing disk is the user's to mend: said plainly, with the path."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.errors import ArchiveFull, ArchiveUnreadable, ArchiveUnwritable

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What fails meanwhile could not be written to `path`."""
    try:
        yield
    except OSError as error:
        kind = ArchiveFull if error.errno in _NO_ROOM else ArchiveUnwritable
        raise kind(f"{path} could not be written: {error.strerror or error}") from error


@contextmanager
def reading(path: Path, *, absent: bool = True) -> Iterator[None]:
    """What fails meanwhile could not be read from `path`; that it is not there is such a failure only if `absent`."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not absent:
            raise
        raise ArchiveUnreadable(f"{path}: cannot be read: {error.strerror or error}") from error
