"""What is known of a run at a moment: its measurements by where they lie, its hosts, and what their workers do."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from orchestrator.model import Device, Status, Verdict

KEPT_PROBLEMS = 200
BUSY_PHASES = frozenset(("prepare", "compile", "check", "measure"))


class AgentState(StrEnum):
    """What is known of a host's agent; `DEAD` means that it vanished without saying so."""

    UNKNOWN = "unknown"
    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    DEAD = "dead"


class Key(NamedTuple):
    """What makes a measurement one: `scope` is the device model (`shard`), the host (`replicate`), or the host
    and the device's UUID (`replicate_devices`); `row` is canonical JSON, or empty."""

    case_id: str
    backend: str
    row: str
    scope: str


class Entry(NamedTuple):
    """Where a measurement lies (`offset` and `length` in bytes of `host`'s journal) and how it ended."""

    host: str
    offset: int
    length: int
    status: Status
    verdict: Verdict | None


@dataclass
class WorkerView:
    """A worker as progress shows it. `since` is when its phase began, in UTC seconds of the host's clock; `since_lived_s`
    the same as `HostState.lived_s`."""

    host: str
    worker: str
    devices: tuple[str, ...] = ()
    payload: str | None = None
    case_id: str | None = None
    label: str | None = None
    backend: str | None = None
    phase: str = "starting"
    since: float = 0.0
    since_lived_s: float = 0.0


@dataclass
class HostState:
    """What a host's journal has told so far. `last_t` is the host's clock (UTC seconds) at its last event; `base` the
    byte of our copy at which the journal that the host has now begins; `waiting` are the holders of devices it needs."""

    name: str
    agent: AgentState = AgentState.UNKNOWN
    identity: dict[str, Any] = field(default_factory=dict)
    devices: tuple[Device, ...] = ()
    workers: dict[str, WorkerView] = field(default_factory=dict)
    waiting: dict[str, dict[str, str]] = field(default_factory=dict)
    released: set[str] = field(default_factory=set)
    base: int = 0
    queued: int = 0
    sealed: bool = False
    last_t: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)
    superseded: int = 0
    damaged_lines: int = 0
    problem_count: int = 0
    problems: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_PROBLEMS))

    lived_s: float = 0.0
    """Seconds that its agents have lived, by the monotonic clock. A night between a dead agent and the next is no idle time
    of devices, and a wall clock may be set while a run goes on."""
    last_mono: float | None = None
    by_wall: bool = False
    used_devices: set[str] = field(default_factory=set)
    busy_s: float = 0.0
    first_ready_s: float | None = None
    last_work_s: float | None = None

    @property
    def busy_fraction(self) -> float | None:
        """How much of the time from the first worker's readiness to the last work or result the devices that had a worker
        measured, checked, compiled or tuned; rests between bursts are part of measuring. None before there is such a time."""
        if self.first_ready_s is None or self.last_work_s is None or not self.used_devices:
            return None
        span_s = (self.last_work_s - self.first_ready_s) * len(self.used_devices)
        return min(1.0, self.busy_s / span_s) if span_s > 0 else None

    def pass_time(self, mono: float | None, t: float, *, new_agent: bool) -> None:
        """An event of that time came. By the wall clock only where there is no other; never from one clock to the other."""
        now_s, by_wall = (t, True) if mono is None else (mono, False)
        if new_agent or self.last_mono is None or by_wall != self.by_wall:
            self.last_mono, self.by_wall = now_s, by_wall
        elif now_s > self.last_mono:
            self.lived_s += now_s - self.last_mono
            self.last_mono = now_s

    @property
    def only_model(self) -> str:
        """The product name of the host's devices if they are all of one, else empty."""
        models = {device.model for device in self.devices}
        return models.pop() if len(models) == 1 else ""


def count_busy(state: HostState, view: WorkerView) -> None:
    """Add what a worker's devices did since its last event, if that was work. Work that came to no result (a case that hung
    until the run was cancelled) ends the time it is held against, as a result does."""
    if view.phase in BUSY_PHASES and view.devices:
        state.busy_s += (state.lived_s - view.since_lived_s) * len(view.devices)
        state.last_work_s = state.lived_s
