"""Medians with intervals that assume nothing about the distribution of the times."""

from __future__ import annotations

import bisect
import math
from typing import List, Optional, Sequence

MAX_SAMPLES_KEPT = 2000

# Below this many samples no pair of order statistics covers the median with 95%.
MIN_SAMPLES = 6

# Blocks of neighbours in which samples may hang together. Of independent ones, fewer than two in a hundred seem to do so more
# than BY_CHANCE (chi-square of 19 degrees of freedom, over 19).
BLOCKS = 20
BY_CHANCE = 1.8

# A quarter of all samples at one value: that is the clock's doing.
SHARED = 0.25


def quantile(ordered: Sequence[float], q: float) -> float:
    """The q-quantile of sorted values, by linear interpolation."""
    position = (len(ordered) - 1) * q
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def median(values: Sequence[float]) -> float:
    """The middle value."""
    return quantile(sorted(values), 0.5)


def relative_error(values: Sequence[float]) -> Optional[float]:
    """Half the width of the median's 95% interval over the median; None for fewer than 6 samples, and where the median
    is not above zero.

    The interval lies between two order statistics, whose ranks come from the binomial(n, 1/2) distribution of how many
    samples fall below the true median: exact for few samples, its normal approximation beyond 50. Samples that hang
    together count for fewer; and no interval is narrower than a tick of the clock.
    """
    n = len(values)
    if n < MIN_SAMPLES:
        return None
    ordered = sorted(values)
    middle = quantile(ordered, 0.5)
    if not middle > 0:
        return None
    low = _lower_rank(n, inflation(values, middle))
    half = (ordered[n - low] - ordered[low - 1]) / 2
    return max(half, _tick(ordered, middle) / 2) / middle


def inflation(values: Sequence[float], middle: float) -> float:
    """How many times as wide as of independent samples the variance of their median is; 1 where they show no sign of
    hanging together.

    Samples that drift, or jump from turn to turn, are of one mind for a while. In blocks of neighbours the share above the
    median then varies more than chance lets it: variance · length / ¼, as batch means are used in simulation.
    """
    length = len(values) // BLOCKS
    if length < 2:
        return 1.0
    shares = []
    for block in range(BLOCKS):
        part = values[block * length : (block + 1) * length]
        shares.append(sum(0.5 * ((value > middle) + (value >= middle)) for value in part) / length)
    mean = sum(shares) / BLOCKS
    found = sum((share - mean) ** 2 for share in shares) / (BLOCKS - 1) * length * 4
    return found if found > BY_CHANCE else 1.0


def _tick(ordered: Sequence[float], middle: float) -> float:
    """The smallest step to another value from a median that many samples share: what the clock could not resolve. 0 where
    samples differ as they please, or are all one."""
    low, high = bisect.bisect_left(ordered, middle), bisect.bisect_right(ordered, middle)
    if high - low < 2 or high - low < SHARED * len(ordered):
        return 0.0
    steps = [middle - ordered[low - 1]] if low else []
    steps += [ordered[high] - middle] if high < len(ordered) else []
    return min(steps, default=0.0)


def _lower_rank(n: int, inflated: float = 1.0) -> int:
    """The largest rank l (1-based) for which [x_l, x_{n+1-l}] covers the median with at least 95%."""
    if n > 50 or inflated > 1:
        return max(1, math.floor((n - 1.96 * math.sqrt(n * inflated)) / 2))
    tail, rank = 0.0, 0
    while rank <= n // 2:
        tail += math.comb(n, rank) / 2.0**n
        if tail > 0.025:
            break
        rank += 1
    return max(1, rank)


def thin(values: Sequence[float], limit: int = MAX_SAMPLES_KEPT) -> List[float]:
    """At most `limit` of the values, evenly spaced in the order they were taken."""
    if len(values) <= limit:
        return list(values)
    return [values[i * len(values) // limit] for i in range(limit)]


def spread(round_medians: Sequence[float]) -> float:
    """(largest − smallest) / middle of the rounds' medians: what changed between the rounds."""
    if len(round_medians) < 2:
        return 0.0
    return (max(round_medians) - min(round_medians)) / median(round_medians)
