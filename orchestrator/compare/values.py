"""What a comparison is made of: the sides of a pair, what is said of it, and what could not be paired."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

EXPLAINED = frozenset({"throttled", "contended", "clock_offset"})
"""Reasons of a verdict that telemetry saw: what happened to the time is known, and was not the code."""


class Outcome(StrEnum):
    """What may be said of a pair."""

    SAME = "same"
    FASTER = "faster"
    SLOWER = "slower"
    UNCLEAR = "unclear"


@dataclass(frozen=True)
class Subject:
    """What two times must share to be comparable. `row` is canonical JSON, empty where a case has one row only;
    `device_model` says how many devices worked together where it was more than one (`2 × NVIDIA H200`)."""

    case_id: str
    row: str
    backend: str
    device_model: str
    cache: str | None
    timer: str


@dataclass(frozen=True)
class PastTime:
    """A time of an earlier run: all that the noise and the trend need of it."""

    run_id: str
    subject: Subject
    host: str
    device_uuid: str
    median_us: float
    is_valid: bool = True
    reasons: tuple[str, ...] = ()
    label: str = ""
    payload: str = ""
    started_at: str | None = None


@dataclass(frozen=True)
class Timed:
    """One side of a pair. `median_us` is positive; of the history it is the level of the last `runs` runs."""

    run_id: str
    host: str
    device_uuid: str
    median_us: float
    is_valid: bool = True
    reasons: tuple[str, ...] = ()
    samples_us: tuple[float, ...] = ()
    sm_clock_mhz: float | None = None
    environment_id: str | None = None
    runs: int = 1


@dataclass(frozen=True)
class Match:
    """Two times of one subject, not judged yet."""

    subject: Subject
    label: str
    payload: str
    a: Timed
    b: Timed


@dataclass(frozen=True)
class LeftOut:
    """What could not be paired; `a` and `b` say what each side has of it, `why` what is in the way."""

    case_id: str
    label: str
    payload: str
    row: str
    backend: str
    a: str
    b: str
    why: str


@dataclass(frozen=True)
class Pair:
    """A match and what may be said of it. Changes are fractions: 0.1 is ten per cent more time than in `a`.

    `change` is b over a less one, `low` and `high` its 95% interval. `floor` is the least change that can be called
    one here (a slow-down; a speed-up needs as much by ratio); the three are None where the noise is unknown.
    `p_value` is of the hypothesis that nothing changed, before the correction for many. `noise` says where the floor
    is from: `history` (`noise_runs` earlier runs of this), `host` (other measurements there), or `samples`;
    `freaks` that single runs there were far off, and set the floor.
    """

    match: Match
    outcome: Outcome
    why: str
    change: float
    low: float | None = None
    high: float | None = None
    floor: float | None = None
    p_value: float | None = None
    noise: str | None = None
    noise_runs: int = 0
    freaks: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Difference:
    """A fact that is not the same on both sides."""

    where: str
    what: str
    a: str
    b: str


@dataclass(frozen=True)
class SideLine:
    """Which run, or what else, stands on a side."""

    kind: str
    name: str
    sweep: str | None = None
    started_at: str | None = None


@dataclass(frozen=True)
class Comparison:
    """All that was found. `threshold` is the least change of interest as a fraction, None if none was asked for."""

    a: SideLine
    b: SideLine
    threshold: float | None
    pairs: tuple[Pair, ...]
    left_out: tuple[LeftOut, ...]
    differences: tuple[Difference, ...] = ()
    warnings: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_regression(self) -> bool:
        """Whether anything became slower."""
        return any(pair.outcome is Outcome.SLOWER for pair in self.pairs)


def tally(pairs: tuple[Pair, ...]) -> dict[str, int]:
    """How many pairs had each outcome, every outcome named."""
    found = Counter(pair.outcome.value for pair in pairs)
    return {outcome.value: found[outcome.value] for outcome in Outcome}
