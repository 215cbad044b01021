"""What the thread of a host tells the coordinator of its run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.errors import ArchiveFault


class HostPhase(StrEnum):
    """Where a host of a run stands. The last five are final, and the words of the run's result."""

    CONNECTING = "connecting"
    RUNNING = "running"
    RECONNECTING = "reconnecting"
    OK = "ok"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    UNUSABLE = "unusable"
    LOST = "lost"

    @property
    def final(self) -> bool:
        """Whether nothing more will come from the host."""
        return self not in (HostPhase.CONNECTING, HostPhase.RUNNING, HostPhase.RECONNECTING)


@dataclass(frozen=True)
class Changed:
    """A host has another state; `detail` is for people (the error, or what is waited for), `ended` how its agent ended.
    `begun`: the host may have its part of the run. `overdue`: silent for so long that nobody waits for it alone."""

    host: str
    phase: HostPhase
    detail: str | None = None
    ended: str | None = None
    begun: bool = False
    overdue: bool = False


@dataclass(frozen=True)
class Chunk:
    """Whole journal lines of a host that start at byte `offset` of our copy."""

    host: str
    offset: int
    data: bytes


@dataclass(frozen=True)
class Current:
    """All that the host had journalled when we came has been handed on."""

    host: str


@dataclass(frozen=True)
class Unkept:
    """Files that the host has for us could not be kept here: the host is well, and the run must not be completed yet."""

    host: str
    error: ArchiveFault


News = Changed | Chunk | Current | Unkept


def joined(news: Sequence[News]) -> Iterator[News]:
    """The same news, with pieces of a host's journal that follow each other made one."""
    held: dict[str, list[Chunk]] = {}

    def one(chunks: list[Chunk]) -> Chunk:
        return Chunk(chunks[0].host, chunks[0].offset, b"".join(chunk.data for chunk in chunks))

    for item in news:
        before = held.get(item.host, [])
        if isinstance(item, Chunk):
            if before and before[-1].offset + len(before[-1].data) != item.offset:
                yield one(held.pop(item.host))
            held.setdefault(item.host, []).append(item)
        else:
            if before:
                yield one(held.pop(item.host))
            yield item
    for chunks in held.values():
        yield one(chunks)
