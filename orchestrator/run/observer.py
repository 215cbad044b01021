"""What a run tells whoever watches it, and an estimate of the time left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from orchestrator.events import Fold
from orchestrator.model import Measurement
from orchestrator.run.news import HostPhase
from orchestrator.wording import some_of

SKEW_TOLD_S = 60.0


@dataclass(frozen=True)
class HostView:
    """A host as the run sees it now: `detail` is for people, `ended` how its agent ended, once it has.

    `begun`: it may have its part of the run. `overdue`: silent for so long that nobody waits for it alone."""

    name: str
    phase: HostPhase
    detail: str | None = None
    ended: str | None = None
    begun: bool = False
    overdue: bool = False


def waiting_for(waiting: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Whose runs a host waits for, in words, by holder; None when it does not wait."""
    held: dict[tuple[str, str], dict[str, str]] = {}
    for device, holder in sorted(waiting.items()):
        run = f"run {holder['run_id']}" if holder.get("run_id") else "another run"
        user = f" of user {holder['user']}" if holder.get("user") else ""
        held.setdefault((run, user), {})[device] = str(holder.get("since") or "")
    told = []
    for (run, user), devices in held.items():
        first = min(filter(None, devices.values()), default=None)
        since = f" (since {first})" if first else ""
        told.append(f"for {some_of(list(devices))}, held by {run}{user}{since}")
    return f"waiting {', and '.join(told)}" if told else None


def skew(offset_s: float | None) -> str | None:
    """That a host's clock is wrong (or ours), in words; None when it is right enough. Durations never depend on it."""
    if offset_s is None or abs(offset_s) < SKEW_TOLD_S:
        return None
    way = "ahead of" if offset_s > 0 else "behind"
    return f"its clock is {timedelta(seconds=round(abs(offset_s)))} h {way} this machine's; its times are its own"


class Observer(Protocol):
    """Called by the coordinator, always on its own thread."""

    def begin(self, run_id: str, expected: int) -> None:
        """The run begins (or is followed again); `expected` measurements are planned."""

    def host_changed(self, view: HostView) -> None:
        """A host has another state."""

    def measured(self, measurement: Measurement) -> None:
        """A result came in."""

    def tick(self, fold: Fold, expected: int) -> None:
        """Some time has passed, or something has changed."""

    def interrupted(self, unlaunched: Sequence[str]) -> None:
        """The user wants to leave, but these hosts have no part of the run yet: they are given it first."""

    def end(self) -> None:
        """Nothing more will be told."""


class Silent:
    """An observer that tells nobody."""

    def begin(self, run_id: str, expected: int) -> None:
        """Ignored."""

    def host_changed(self, view: HostView) -> None:
        """Ignored."""

    def measured(self, measurement: Measurement) -> None:
        """Ignored."""

    def tick(self, fold: Fold, expected: int) -> None:
        """Ignored."""

    def interrupted(self, unlaunched: Sequence[str]) -> None:
        """Ignored."""

    def end(self) -> None:
        """Ignored."""


class Estimate:
    """Seconds left, from the pace since the first result; None until two results are in."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None

    def seconds_left(self, now_s: float, done: int, expected: int) -> float | None:
        """`now_s` on any steady clock."""
        if done and self._first is None:
            self._first = (now_s, done)
        if self._first is None or done <= self._first[1] or now_s <= self._first[0]:
            return None
        began_s, began = self._first
        return max(0.0, (expected - done) * (now_s - began_s) / (done - began))
