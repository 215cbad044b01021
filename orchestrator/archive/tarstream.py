"""Just enough tar to carry plain files: written the same every time, read without trusting a byte of it.

The reader knows regular files and the extended header that gives one a long name. Links, devices, folders and whatever
else a tar can hold are refused, and no header makes it allocate more than a few kilobytes.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

_BLOCK = 512
_CHUNK = 1 << 20
_MOST_HEADER = 64 * 1024
_MOST_PADDING = 64 * 1024
END = bytes(2 * _BLOCK)


class BadTar(ValueError):
    """Not a tar, a damaged one, or one with something in it that is no plain file."""


class Readable(Protocol):
    """What `read` reads from."""

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes; none at the end."""


@dataclass
class Member:
    """A file in a tar; its bytes must be taken before the next member is asked for."""

    name: str
    size: int
    chunks: Iterator[bytes]


def member(name: str, size: int, file: BinaryIO) -> Iterator[bytes]:
    """The bytes of one member. Raises `BadTar` when `file` does not hold exactly `size` bytes."""
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = 0o644
    yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    left = size
    while chunk := file.read(_CHUNK):
        left -= len(chunk)
        yield chunk
    if left:
        raise BadTar(f"{name} changed while it was read")
    yield bytes(-size % _BLOCK)


def read(stream: Readable) -> Iterator[Member]:
    """The members of a tar, in order, up to its end. Raises `BadTar`."""
    long_name: str | None = None
    long_size: int | None = None
    while (block := _exactly(stream, _BLOCK)) != bytes(_BLOCK):
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise BadTar(f"a header is damaged: {error}") from None
        if info.size < 0:
            raise BadTar(f"{info.name!r:.80} has a negative size")
        if info.type == tarfile.XHDTYPE:
            long_name, long_size = _extended(_exactly(stream, _padded(info.size, _MOST_HEADER))[: info.size])
            continue
        name, size = long_name or info.name, info.size if long_size is None else long_size
        if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            raise BadTar(f"{name!r:.80} is no plain file")
        long_name = long_size = None
        chunks = _content(stream, size)
        yield Member(name, size, chunks)
        for _ in chunks:  # whatever was not taken
            pass
    _require_end(stream)


def _content(stream: Readable, size: int) -> Iterator[bytes]:
    left = size
    while left:
        chunk = stream.read(min(left, _CHUNK))
        if not chunk:
            raise BadTar("it ends in the middle of a file")
        left -= len(chunk)
        yield chunk
    _exactly(stream, -size % _BLOCK)


def _padded(size: int, most: int) -> int:
    if size > most:
        raise BadTar("a header is too long")
    return size + -size % _BLOCK


def _exactly(stream: Readable, size: int) -> bytes:
    pieces = []
    while size:
        piece = stream.read(size)
        if not piece:
            raise BadTar("it ends too early")
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _extended(content: bytes) -> tuple[str | None, int | None]:
    """Path and size from the records `<length> <key>=<value>\\n` of an extended header."""
    name, size = None, None
    while content:
        head, _, _ = content.partition(b" ")
        length = int(head) if head.isdigit() and len(head) < 6 else 0
        record, content = content[:length], content[length:]
        key, equals, value = record[len(head) + 1 : -1].partition(b"=")
        if not equals or not record.endswith(b"\n"):
            raise BadTar("an extended header is damaged")
        if key == b"path":
            name = value.decode("utf-8", "surrogateescape")
        elif key == b"size":
            if not value.isdigit() or len(value) > 18:
                raise BadTar("an extended header is damaged")
            size = int(value)
    return name, size


def _require_end(stream: Readable) -> None:
    """Nothing but padding may follow; reading to the end also lets a compressed stream check itself."""
    padding = 0
    while rest := stream.read(_CHUNK):
        padding += len(rest)
        if padding > _MOST_PADDING or rest.strip(b"\0"):
            raise BadTar("something follows its end")
