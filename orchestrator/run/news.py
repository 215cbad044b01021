"""What the thread of a host tells the coordinator of its run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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


News = Changed | Chunk | Current
