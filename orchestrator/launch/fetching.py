"""Many files of a run from a host, in one dialogue."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO

from orchestrator.launch.dialogue import ANSWER_TIMEOUT_S, Dialogue
from orchestrator.launch.exchange import Exchange
from orchestrator.launch.messages import FileHeader, FileState, printable

_AT_ONCE = 1000
"""Files that one request names."""
_IN_MEMORY_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class Fetched:
    """One file: its content, at its beginning, for as long as the next one is not asked for; or None, because what we
    have `is_same`, because it `is_large`, or for the reason of the host in `error`."""

    path: str
    size: int
    content: IO[bytes] | None = None
    is_same: bool = False
    is_large: bool = False
    error: str | None = None


def fetch(dialogue: Dialogue, run_id: str, wanted: Mapping[str, str | None], limit: int) -> Iterator[Fetched]:
    """The files named by `wanted`, in its order. Its values are the SHA-256 of what is here under that name, if anything
    is: what is the same does not come again. A file of more than `limit` bytes does not come at all.

    Raises `HostError`, and `HostUnusable` also for a host that sends something else than was asked for."""
    files = list(wanted.items())
    for start in range(0, len(files), _AT_ONCE):
        part = files[start : start + _AT_ONCE]
        exchange, _ = dialogue.converse({"name": "fetch", "run_id": run_id, "files": part, "limit": limit})
        try:
            for path, _sha256 in part:
                yield from _one(exchange, path, limit)
            exchange.answer(dict, "fetched", ANSWER_TIMEOUT_S)
        finally:
            exchange.close()


def _one(exchange: Exchange, path: str, limit: int) -> Iterator[Fetched]:
    message = exchange.next_message(ANSWER_TIMEOUT_S)
    if message is None or message.get("path") != path:
        raise exchange.broken(f"something else where the file {printable(path, 100)!r} was due")
    kind = message["type"]
    if kind == "file":
        with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as content:
            size = _take(exchange, exchange.parsed(FileHeader, message), content, limit)
            content.seek(0)
            yield Fetched(path, size, content)
        return
    state = exchange.parsed(FileState, message)
    if kind not in ("same", "large", "unread"):
        raise exchange.broken(f"an unknown message among files: {kind[:40]!r}")
    error = printable(state.error or "it cannot be read", 300) if kind == "unread" else None
    yield Fetched(path, state.size, is_same=kind == "same", is_large=kind == "large", error=error)


def _take(exchange: Exchange, header: FileHeader, content: IO[bytes], limit: int) -> int:
    """A file comes in blocks; each names the size of the whole."""
    whole, came = header.size, 0
    while True:
        came += header.length
        if whole > limit or came > whole or header.size != whole or (came < whole and not header.length):
            raise exchange.broken("a file of another size than it said")
        content.write(exchange.raw(header.length))
        if came == whole:
            return whole
        header = exchange.answer(FileHeader, "file", ANSWER_TIMEOUT_S)
