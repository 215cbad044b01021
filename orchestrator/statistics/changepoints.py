"""Where a series of runs changed its level for good."""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections.abc import Iterator, Sequence

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
    for end, cost in _costs(values):
        best[end] = cost
    for start in range(SHORTEST_SEGMENT, count - SHORTEST_SEGMENT + 1):
        so_far = best[start] + penalty
        if so_far >= best[count]:
            continue  # a cut here cannot pay, whatever follows costs
        for length, cost in _costs(values[start:]):
            end = start + length
            if so_far + cost < best[end]:
                best[end] = so_far + cost
                last_cut[end] = start
    cuts = []
    position = last_cut[count]
    while position:
        cuts.append(position)
        position = last_cut[position]
    return cuts[::-1]


def _costs(values: list[float]) -> Iterator[tuple[int, float]]:
    """(length, Σ|value − median|) of the beginnings of a series, from the shortest segment on."""
    ordered: list[float] = []
    for length, value in enumerate(values, 1):
        bisect.insort(ordered, value)
        if length >= SHORTEST_SEGMENT:
            half = length // 2
            yield length, sum(ordered[-half:]) - sum(ordered[:half])


def _scale(values: list[float]) -> float:
    """Mean absolute deviation of the noise, from the typical step between neighbours (which a change hardly moves).

    For normal noise of standard deviation s, a step's median size is 0.954 s and the mean absolute deviation 0.798 s.
    """
    steps = [abs(after - before) for before, after in itertools.pairwise(values)]
    return max(statistics.median(steps) * 0.837, _FINEST_SCALE)
