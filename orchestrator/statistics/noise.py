"""How much the time of one thing differs from run to run when nothing was changed.

The noise of a host is mostly small and sometimes large: a neighbour, a clock, a page that lies elsewhere. So the usual
size of a deviation (`Spread.scale`) and the freak ones are told apart, by medians that a freak does not move.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.statistics.changepoints import segments

PRIOR_RUNS = 4
"""How many runs' worth of evidence a prior scale is."""
MAD_TO_DEVIATION = 1.4826


@dataclass(frozen=True)
class Spread:
    """The usual deviation of log times between runs (its scale as a standard deviation), and every deviation seen."""

    scale: float
    deviations: tuple[float, ...]

    @property
    def runs(self) -> int:
        """From how many runs it is."""
        return len(self.deviations)


@dataclass(frozen=True)
class Noise:
    """Of one log time: variance, and the degrees of freedom that say how heavy its tails are."""

    variance: float
    df: float


def spread(series: Iterable[Sequence[float]]) -> Spread | None:
    """The spread within series of log times, each of one device and in the order of the runs; None when no series has
    two values of one level. Lasting changes of level are no noise: deviations are from the level of the day."""
    deviations: list[float] = []
    levels = 0
    for values in series:
        for part in segments(values):
            members = values[part]
            if len(members) > 1:
                level = statistics.median(members)
                deviations += [value - level for value in members]
                levels += 1
    if not deviations:
        return None
    free = len(deviations) - levels
    scale = MAD_TO_DEVIATION * statistics.median(map(abs, deviations)) * len(deviations) / free
    return Spread(scale, tuple(deviations))


def typical_scale(spreads: Iterable[Spread]) -> float | None:
    """The median scale of the spreads that come from enough runs; None when there are none."""
    known = [one.scale for one in spreads if one.runs > PRIOR_RUNS]
    return statistics.median(known) if known else None


def moderate(own: Spread | None, prior: Noise) -> Noise:
    """A measurement's own noise, drawn towards the prior as if that were 4 more runs.

    As variances are in moderated t-tests (Smyth 2004): a spread from three runs that happened to agree is not believed,
    one from fifty is. A run counts as half a degree of freedom, for a median of deviations knows about half as much.
    """
    if own is None:
        return prior
    variance = (PRIOR_RUNS * prior.variance + own.runs * own.scale**2) / (PRIOR_RUNS + own.runs)
    return Noise(variance, PRIOR_RUNS + own.runs / 2)


def worst_case(freaks: Sequence[float]) -> float:
    """How large the next freak deviation may be, when these were seen: the largest and a margin, all of it again for
    a single one, less the more of them have been seen (1/√n). 0 when there were none."""
    return max(map(abs, freaks)) * (1 + len(freaks) ** -0.5) if freaks else 0.0
