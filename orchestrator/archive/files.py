"""Files that appear whole or not at all, with modes that the umask may narrow but that are never world-writable."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

FILE_MODE = 0o664
FOLDER_MODE = 0o775


def write_whole(path: Path, chunks: Iterable[bytes]) -> None:
    """Write a file by a temporary name, fsync and rename; a kill leaves the old file or the new one.

    The temporary name is always the same, so that what a kill left behind is overwritten by the next attempt."""
    _write(temporary_name(path), path, chunks)


def write_foreign(path: Path, chunks: Iterable[bytes]) -> None:
    """The same for a file that somebody else has named: as long as a name can be, or like a temporary file of another."""
    digest = hashlib.sha256(os.fsencode(path.name)).hexdigest()[:32]
    _write(path.with_name(f".{digest}.incoming"), path, chunks)


def is_half_written(name: str, *, foreign: bool) -> bool:
    """Whether a file is one that a kill left behind, of `write_foreign` or of `write_whole`."""
    if foreign:
        return re.fullmatch(r"\.[0-9a-f]{32}\.incoming", name) is not None
    return name.startswith(".") and name.endswith(".tmp")


def _write(temporary: Path, path: Path, chunks: Iterable[bytes]) -> None:
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        for chunk in chunks:
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def open_plain(path: Path) -> BinaryIO:
    """Open a file for reading. Raises `OSError`, also for a folder, and for a pipe or a device: reading one might never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is no plain file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def append(path: Path, data: bytes) -> None:
    """Add to the end of a file; what a full disk cut short can be told from the file's size."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)


def temporary_name(path: Path) -> Path:
    """Where a file is written before it is renamed to `path`."""
    return path.with_name(f".{path.name}.tmp")


def keep(temporary: Path, path: Path) -> None:
    """Put a file that another library wrote in its place: fsync, mode, rename."""
    descriptor = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
        os.fchmod(descriptor, os.fstat(descriptor).st_mode & FILE_MODE)
    finally:
        os.close(descriptor)
    temporary.replace(path)


def make_folder(path: Path) -> None:
    """Make a folder and its parents."""
    for missing in reversed([p for p in (path, *path.parents) if not p.exists()]):
        with contextlib.suppress(FileExistsError):
            missing.mkdir(FOLDER_MODE)


def sync_folder(path: Path) -> None:
    """Make renames in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
