"""Medians with intervals that assume nothing about the distribution of the times."""

from __future__ import annotations

import math
from typing import List, Optional, Sequence

MAX_SAMPLES_KEPT = 2000

# Below this many samples no pair of order statistics covers the median with 95%.
MIN_SAMPLES = 6


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
    samples fall below the true median: exact for few samples, its normal approximation beyond 50.
    """
    n = len(values)
    if n < MIN_SAMPLES:
        return None
    ordered = sorted(values)
    low = _lower_rank(n)
    if not quantile(ordered, 0.5) > 0:
        return None
    return (ordered[n - low] - ordered[low - 1]) / 2 / quantile(ordered, 0.5)


def _lower_rank(n: int) -> int:
    """The largest rank l (1-based) for which [x_l, x_{n+1-l}] covers the median with at least 95%."""
    if n > 50:
        return max(1, math.floor((n - 1.96 * math.sqrt(n)) / 2))
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
