"""One case on its workers: which backend is on, what has been reported, and when it is overdue. No I/O."""

from __future__ import annotations

import math
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence

PREPARE = "prepare"
"""The phase in which the inputs are made that all backends share: no one of them is to blame for its end."""
PHASES = (PREPARE, "compile", "check", "measure")
DEFAULT_TIMEOUT_S = 120.0
DEFAULT_COMPILE_TIMEOUT_S = 600.0


class Attempt:
    """The backends of a case that are still to do, each with two clocks: one for compiling, one for check and measure.

    Rounds of several backends may be interleaved; a backend's clock runs only while its phase is the current one. A
    worker that never says what it does is on the clock of the first backend it has not reported."""

    def __init__(
        self, item: Mapping[str, Any], backends: Sequence[str], number: int, now: float, slack_s: float = 0.0
    ) -> None:
        self.item = item
        self.number = number
        self.remaining: List[str] = list(backends)
        self._asked = len(self.remaining)
        self._named = False  # whether the worker has said that it is at work on the backend that is on
        self.preparing = False  # whether it has said that it makes the inputs
        self._limits = {
            "compile": seconds(item.get("compile_timeout_s"), DEFAULT_COMPILE_TIMEOUT_S),
            "run": seconds(item.get("timeout_s"), DEFAULT_TIMEOUT_S) + slack_s,
        }
        self._spent: Dict[str, Dict[str, float]] = {}
        self._wall = time.time()
        self._began: Dict[str, float] = {}
        self._since = now
        self._clock = "compile"
        self._backend: Optional[str] = None
        self._go_on(now)

    @property
    def case_id(self) -> str:
        """The case."""
        return str(self.item["case_id"])

    @property
    def in_flight(self) -> Optional[str]:
        """The backend whose clock runs; None when all have reported."""
        return self._backend

    @property
    def to_blame(self) -> Optional[str]:
        """The backend that would be to blame if the worker died now; None when it is at work on none."""
        return self._backend if self._named else None

    @property
    def fruitless(self) -> bool:
        """Whether no backend has been used up: started again, the case would be what it was."""
        return len(self.remaining) == self._asked

    @property
    def compiling(self) -> bool:
        """Whether the worker prepares or compiles, as far as it said."""
        return self._backend is not None and self._clock == "compile"

    def phase(self, backend: str, phase: str, now: float) -> None:
        """The worker says what it does next. What was already reported is not timed again."""
        if backend in self.remaining and phase in PHASES:
            self._began.setdefault(backend, time.time())
            self.preparing = phase == PREPARE
            self._named = not self.preparing
            self._switch(backend, "compile" if phase in (PREPARE, "compile") else "run", now)

    def reported(self, backend: str, now: float) -> None:
        """A measurement of a backend came in (again, if it has several rows)."""
        self._stop(now)
        self._named = self.preparing = False
        if backend in self.remaining:
            self.remaining.remove(backend)
        self._go_on(now)

    def began_at(self, backend: str) -> float:
        """When a backend was first on, in UTC seconds."""
        return self._began.get(backend, self._wall)

    def spent_s(self, backend: str, now: float) -> float:
        """Seconds that went into a backend so far."""
        self._stop(now)
        return sum(self._spent.get(backend, {}).values())

    def deadline(self) -> float:
        """When the current phase is overdue."""
        used = self._spent.get(self._backend or "", {}).get(self._clock, 0.0)
        return self._since + self._limits[self._clock] - used

    def overdue(self, now: float) -> Optional[str]:
        """Why the case must be ended now, or None."""
        if now < self.deadline():
            return None
        if self._clock == "compile":
            return (
                f"compiling and preparing took longer than compile_timeout_s = {self._limits['compile']:g} s"
            )
        return f"check and measure took longer than timeout_s = {seconds(self.item.get('timeout_s'), DEFAULT_TIMEOUT_S):g} s"

    def _go_on(self, now: float) -> None:
        if self.remaining:
            self._switch(self.remaining[0], "compile", now)
        else:
            self._backend, self._clock, self._since = None, "run", now

    def _switch(self, backend: str, clock: str, now: float) -> None:
        self._stop(now)
        self._backend, self._clock = backend, clock

    def _stop(self, now: float) -> None:
        if self._backend is not None:
            clocks = self._spent.setdefault(self._backend, {})
            clocks[self._clock] = clocks.get(self._clock, 0.0) + now - self._since
        self._since = now


def seconds(value: Any, default: float) -> float:
    """A time limit from outside: `default` unless it is a positive, finite number."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0:
        return float(value)
    return default
