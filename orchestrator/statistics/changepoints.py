"""Where a series of runs changed its level for good."""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections.abc import Sequence

SHORTEST_SEGMENT = 3
LONGEST_SERIES = 400
_FINEST_SCALE = 1e-4
_PENALTY = 4.0


def segments(values: Sequence[float]) -> list[slice]:
    """The series cut into stretches of one level each; values are logarithms of times, in the order of the runs.

    Optimal partitioning (Jackson et al. 2005) with absolute deviations from the stretch's median as its cost, in units
    of the noise between neighbours: one freak run, however far off, is no change, three in a row are. A cut must save
    more than 4·ln(n) + 4 units. Only the newest 400 values are cut; older ones count to the first stretch.
    """
    skipped = max(0, len(values) - LONGEST_SERIES)
    kept = list(values[skipped:])
    if len(kept) < 2 * SHORTEST_SEGMENT:
        return [slice(0, len(values))] if values else []
    cuts = [0, *(skipped + cut for cut in _cuts(kept)), len(values)]
    return [slice(start, end) for start, end in itertools.pairwise(cuts)]


def _cuts(values: list[float]) -> list[int]:
    count = len(values)
    penalty = (_PENALTY * math.log(count) + _PENALTY) * _scale(values)
    best = [0.0] + [math.inf] * count
    last_cut = [0] * (count + 1)
    costs = _Costs(values)
    for start in range(count - SHORTEST_SEGMENT + 1):
        if math.isinf(best[start]):
            continue
        so_far = best[start] + (penalty if start else 0.0)
        for end, cost in costs.from_start(start):
            if so_far + cost < best[end]:
                best[end] = so_far + cost
                last_cut[end] = start
    cuts = []
    position = last_cut[count]
    while position:
        cuts.append(position)
        position = last_cut[position]
    return cuts[::-1]


class _Costs:
    """Σ|value − median| of every stretch from one start on, kept up to date as the stretch grows."""

    def __init__(self, values: list[float]) -> None:
        self._values = values

    def from_start(self, start: int) -> list[tuple[int, float]]:
        lower: list[float] = []
        found = []
        for end in range(start + 1, len(self._values) + 1):
            bisect.insort(lower, self._values[end - 1])
            if end - start >= SHORTEST_SEGMENT:
                half = len(lower) // 2
                found.append((end, sum(lower[-half:]) - sum(lower[:half])))
        return found


def _scale(values: list[float]) -> float:
    """Mean absolute deviation of the noise, from the typical step between neighbours (which a change hardly moves).

    For normal noise of standard deviation s, a step's median size is 0.954 s and the mean absolute deviation 0.798 s.
    """
    steps = [abs(after - before) for before, after in itertools.pairwise(values)]
    return max(statistics.median(steps) * 0.837, _FINEST_SCALE)
