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
TOGETHER = (0.1, 0.9)
FEWEST_TO_LIE_TOGETHER = 12
_SEED = 20250102


@dataclass(frozen=True)
class Weighed:
    """A difference (b over a) with its 95% interval, its noise, and how far off a freak run may be.

    `source` and `runs` say where the noise is from. A noise that little is known of has heavy tails, but not without
    end: beyond the `plausible` leap of a machine there is only the `ordinary` noise, whose size is taken for known.
    """

    difference: float
    interval: tuple[float, float]
    noise: Noise
    ordinary: Noise
    plausible: float
    worst_case: float
    source: str
    runs: int

    @property
    def p_value(self) -> float:
        """Two-sided, of the hypothesis that nothing changed."""
        size = abs(self.difference)
        beyond = max(0.0, size - self.plausible)
        heavy, bounded = _tail(size, self.noise), _tail(beyond, self.ordinary)
        return min(1.0, 2 * min(heavy, bounded))

    def least(self, level: float) -> float:
        """The least difference with a p-value of `level`."""
        heavy, bounded = (
            t_quantile(level / 2, noise.df) * sqrt(noise.variance) for noise in (self.noise, self.ordinary)
        )
        return min(heavy, self.plausible + bounded)


def weigh(match: Match, hosts: NoiseOfHosts, tests: int) -> Weighed | None:
    """Weigh a match in a comparison of `tests` pairs; None where nothing is known of its noise: no earlier runs of it,
    and on one side too few samples."""
    a, b = match.a, match.b
    trusted = a.is_valid and b.is_valid
    apart = _apart(a, b)
    floors = [
        hosts.of(match.subject, match.payload, side, trusted=trusted, tests=tests, within=apart)
        for side in (a, b)
    ]
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
    samples = [known for _, known in within]
    spread = difference + within[1][0] - within[0][0] + sqrt(between.variance) * _t_draws(between.df)
    low, high = np.quantile(spread, INTERVAL)
    return Weighed(
        difference=difference,
        interval=(float(low), float(high)),
        noise=_sum([between, *samples]),
        ordinary=_sum([Noise(between.variance, inf), *samples]),
        plausible=max(floor.plausible for floor in floors),
        worst_case=max(floor.worst_case for floor in floors),
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


def _apart(a: Timed, b: Timed) -> float | None:
    """How far apart the samples of the looser side lie; None where a run has too few to tell. The history has none."""
    found = [_spread(side.samples_us) for side in (a, b) if side.samples_us or side.runs == 1]
    return None if None in found or not found else max(one for one in found if one is not None)


def _spread(samples_us: Sequence[float]) -> float | None:
    times = [log(time) for time in samples_us if time > 0]
    if len(times) < FEWEST_TO_LIE_TOGETHER:
        return None
    low, high = np.quantile(times, TOGETHER)
    return float(high - low)


def _tail(difference: float, noise: Noise) -> float:
    return t_tail(difference / sqrt(noise.variance), noise.df)


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
