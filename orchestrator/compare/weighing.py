"""What stands against the difference of two times: the noise of their samples, of their runs and of their devices.

Everything is on the scale of log times, where a ratio is a difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf, log, pi, sqrt

import numpy as np
from numpy.typing import NDArray

from orchestrator.compare.floors import DEVICES_DIFFER, Floor, NoiseOfHosts
from orchestrator.compare.values import Match, Timed
from orchestrator.statistics import Draws, Noise, median_draws, resolution, t_quantile, t_tail

DRAWS = 2000
INTERVAL = (0.025, 0.975)
_SEED = 20250102


@dataclass(frozen=True)
class Weighed:
    """A difference (b over a) with its 95% interval, its noise, and how far off a freak run may be.

    `p_value` is two-sided, of the hypothesis that nothing changed. `source` and `runs` say where the noise is from.
    """

    difference: float
    interval: tuple[float, float]
    noise: Noise
    worst_case: float
    p_value: float
    source: str
    runs: int


def weigh(match: Match, hosts: NoiseOfHosts, tests: int) -> Weighed | None:
    """Weigh a match in a comparison of `tests` pairs; None where nothing is known of its noise: no earlier runs of it,
    and on one side too few samples."""
    a, b = match.a, match.b
    trusted = a.is_valid and b.is_valid
    floors = [hosts.of(match.subject, match.payload, side, trusted=trusted, tests=tests) for side in (a, b)]
    weakest = min(floors, key=lambda floor: floor.runs)
    draws = [median_draws(side.samples_us, DRAWS, stream) for stream, side in enumerate((a, b))]
    if weakest.source != "history" and any(
        side.runs == 1 and drawn is None for side, drawn in zip((a, b), draws, strict=True)
    ):
        return None
    difference = log(b.median_us) - log(a.median_us)
    within = [
        (np.zeros(DRAWS), Noise(0.0, inf)) if drawn is None else _within(drawn, weakest.runs)
        for drawn in draws
    ]
    step = resolution([*_times(a), *_times(b), *hosts.times(match.subject)])
    between = _sum([*_between_runs(floors, a, b), *(_of_clock(step, side) for side in (a, b))])
    noise = _sum([between, *(known for _, known in within)])
    spread = difference + within[1][0] - within[0][0] + sqrt(between.variance) * _t_draws(between.df)
    low, high = np.quantile(spread, INTERVAL)
    return Weighed(
        difference=difference,
        interval=(float(low), float(high)),
        noise=noise,
        worst_case=max(floor.worst_case for floor in floors),
        p_value=2 * t_tail(difference / sqrt(noise.variance), noise.df),
        source=weakest.source,
        runs=weakest.runs,
    )


def _within(drawn: Draws, runs: int) -> tuple[NDArray[np.float64], Noise]:
    """What the samples of a side show: its draws, as wide as so few stretches leave them, and its noise. Earlier runs,
    whose medians have that noise too, tell as much of it as a stretch does."""
    df = drawn.df + runs
    variance = float(np.mean(drawn.deviations**2))
    return drawn.deviations * _wider(df), Noise(variance, df)


def _between_runs(floors: Sequence[Floor], a: Timed, b: Timed) -> list[Noise]:
    """What no sample shows: of the runs, and of the devices. One host's noise is one estimate, used twice."""
    shares = (_share(a), _share(b))
    if a.host == b.host:
        noise = floors[0].noise
        parts = [Noise(noise.variance * sum(shares), noise.df)]
    else:
        pairs = zip(floors, shares, strict=True)
        parts = [Noise(floor.noise.variance * share, floor.noise.df) for floor, share in pairs]
    if a.device_uuid != b.device_uuid:
        parts.append(Noise(DEVICES_DIFFER**2, inf))
    return parts


def _times(side: Timed) -> list[float]:
    return [side.median_us, *(time for time in side.samples_us if time > 0)]


def _of_clock(step: float, side: Timed) -> Noise:
    """The noise of a time that a clock cut to a multiple of its step."""
    return Noise((step / side.median_us) ** 2 / 12, inf)


def _share(side: Timed) -> float:
    """The variance of a side in units of one run's: a median of n runs has π/2n of it."""
    return 1.0 if side.runs == 1 else min(1.0, pi / 2 / side.runs)


def _sum(parts: Sequence[Noise]) -> Noise:
    """The noise of a sum, with Welch and Satterthwaite's degrees of freedom."""
    variance = sum(part.variance for part in parts)
    weight = sum(part.variance**2 / part.df for part in parts)
    return Noise(variance, variance**2 / weight if weight else inf)


@lru_cache(maxsize=256)
def _wider(df: float) -> float:
    """An interval from a variance of so many degrees of freedom, in units of one from a variance that is known."""
    return t_quantile(INTERVAL[0], df) / t_quantile(INTERVAL[0], inf)


@lru_cache(maxsize=256)
def _t_draws(df: float) -> NDArray[np.float64]:
    return np.random.default_rng(_SEED).standard_t(min(df, 1e6), size=DRAWS)
