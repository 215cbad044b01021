"""Many files of a run to the controller over one channel, without those that it has already."""

from __future__ import annotations

import hashlib
import os
from typing import Any, Iterable, Optional, Sequence

from .channel import Channel
from .paths import RunPaths

_BLOCK_BYTES = 8 << 20
_READ_BYTES = 1 << 20


def send_files(
    channel: Channel, paths: RunPaths, files: Iterable[Sequence[Any]], limit: Optional[int]
) -> None:
    """Answer for each of `files`, a path and the SHA-256 of what the controller has by that name (or null)."""
    for path, sha256 in files:
        try:
            fd = os.open(paths.inside(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else None
            channel.send({"type": "unread", "path": path, "error": why or str(error)})
            continue
        try:
            _send(channel, path, fd, sha256, limit)
        finally:
            os.close(fd)
    channel.send({"type": "fetched"})


def _send(channel: Channel, path: str, fd: int, sha256: Optional[str], limit: Optional[int]) -> None:
    size = left = os.fstat(fd).st_size
    if limit is not None and size > limit:
        channel.send({"type": "large", "path": path, "size": size})
        return
    if sha256 is not None and sha256 == _digest(fd):
        channel.send({"type": "same", "path": path, "size": size})
        return
    os.lseek(fd, 0, os.SEEK_SET)
    while True:
        length = min(left, _BLOCK_BYTES)
        channel.send_file({"type": "file", "path": path, "size": size, "length": length}, fd, length)
        left -= length
        if not left:
            return


def _digest(fd: int) -> str:
    digest = hashlib.sha256()
    while True:
        piece = os.read(fd, _READ_BYTES)
        if not piece:
            return digest.hexdigest()
        digest.update(piece)
