"""What a run tells whoever watches it, and an estimate of the time left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from orchestrator.events import Fold
from orchestrator.model import Measurement
from orchestrator.run.hostrun import HostPhase


@dataclass(frozen=True)
class HostView:
    """A host as the run sees it now. `ended` is how its agent ended, once it has."""

    name: str
    phase: HostPhase
    detail: str | None = None
    ended: str | None = None


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
