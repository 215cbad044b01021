"""The time of a row that a program printed, and how far its samples bear it out.

`relative_error` is that of `payloads/harness/stats.py`, which does not travel with programs; a test holds the two equal,
and the limits to those of `payloads/harness/verdicts.py`.
"""

from __future__ import annotations

import bisect
import math
from decimal import Decimal
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Union

MIN_SAMPLES = 6
NOISY = 0.02
NOISY_TARGETS = 4.0
DEFAULT_TARGET_REL_ERROR = 0.005
# How far a printed time may lie from its samples, besides the rounding of its last digit.
_ROUNDED = 0.01
_BLOCKS = 20
_BY_CHANCE = 1.8
_SHARED = 0.25


class SamplesError(Exception):
    """Samples that are none, or that contradict the time beside them; the message is a measurement's reason."""


class Time(NamedTuple):
    """A time as a row has it: `value` times `factor` are microseconds."""

    name: str
    value: Union[int, float]
    factor: float

    @property
    def us(self) -> float:
        """In microseconds."""
        return self.value * self.factor


def timing_of(time: Optional[Time], samples: Any) -> Optional[Dict[str, Any]]:
    """`timing` of a record; None without a time and samples. Raises SamplesError."""
    timing: Dict[str, Any] = {"timer": "program", "cache": None, "samples": 0}
    if samples is not None:
        values = _checked(samples)
        ordered = sorted(values)
        if time is not None:
            _must_fit(time, ordered)
        timing.update(samples=len(ordered), p20_us=quantile(ordered, 0.2), p80_us=quantile(ordered, 0.8))
        timing["rel_error"] = relative_error(values)
        timing["median_us"] = quantile(ordered, 0.5)
    if time is not None:
        timing["median_us"] = time.us
    return timing if "median_us" in timing else None


def doubts(timing: Optional[Dict[str, Any]], target_rel_error: float) -> List[str]:
    """What its samples say against a time, in the words of the harness; nothing where it has none."""
    if timing is None or not timing["samples"]:
        return []
    error = timing["rel_error"]
    if error is None:
        return ["few_samples"]
    return ["noisy"] if error > max(NOISY, NOISY_TARGETS * target_rel_error) else []


def quantile(ordered: Sequence[float], share: float) -> float:
    """Linear interpolation between the closest ranks."""
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def relative_error(values: Sequence[float]) -> Optional[float]:
    """Half the width of the median's 95% interval over the median; None for fewer than 6 samples."""
    n = len(values)
    if n < MIN_SAMPLES:
        return None
    ordered = sorted(values)
    middle = quantile(ordered, 0.5)
    low = _lower_rank(n, _inflation(values, middle))
    half = (ordered[n - low] - ordered[low - 1]) / 2
    return min(max(half, _tick(ordered, middle) / 2) / middle, 1e300)  # strict JSON has no infinity


def _checked(samples: Any) -> List[float]:
    if not isinstance(samples, list) or not samples or not all(map(_is_number, samples)):
        raise SamplesError("samples_us is no list of numbers")
    values = [as_float(sample) for sample in samples]
    wrong = [value for value in values if not math.isfinite(value) or value <= 0]
    if wrong:
        raise SamplesError(f"samples_us holds {len(wrong)} values that are no positive, finite times")
    return values


def as_float(value: Union[int, float]) -> float:
    """A number as a float; an integer beyond all of them is an infinity."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _must_fit(time: Time, ordered: Sequence[float]) -> None:
    """A median lies between the quartiles; a time that may be a mean, or the best, somewhere among the samples."""
    last = len(ordered) - 1
    low, high = ordered[0], ordered[last]
    if time.name == "median_us":
        low, high = ordered[math.floor(0.25 * last)], ordered[math.ceil(0.75 * last)]
    exponent = Decimal(repr(time.value)).as_tuple().exponent
    digit = 10.0 ** min(exponent, 0) if isinstance(exponent, int) else 0.0
    slack = _ROUNDED * time.us + 0.5 * digit * time.factor
    if not low - slack <= time.us <= high + slack:
        who = "one sample contradicts" if last == 0 else f"{last + 1} samples contradict"
        raise SamplesError(
            f"{time.name} is {time.value:g}, which its {who}: the median is {quantile(ordered, 0.5):g} µs, "
            f"from {ordered[0]:g} to {ordered[last]:g} µs"
        )


def _inflation(values: Sequence[float], middle: float) -> float:
    """How many times as wide as of independent samples the variance of their median is: as batch means tell it."""
    length = len(values) // _BLOCKS
    if length < 2:
        return 1.0
    shares = []
    for block in range(_BLOCKS):
        part = values[block * length : (block + 1) * length]
        shares.append(sum(0.5 * ((value > middle) + (value >= middle)) for value in part) / length)
    mean = sum(shares) / _BLOCKS
    found = sum((share - mean) ** 2 for share in shares) / (_BLOCKS - 1) * length * 4
    return found if found > _BY_CHANCE else 1.0


def _tick(ordered: Sequence[float], middle: float) -> float:
    """The smallest step to another value from a median that many samples share: what the clock could not resolve."""
    low, high = bisect.bisect_left(ordered, middle), bisect.bisect_right(ordered, middle)
    if high - low < 2 or high - low < _SHARED * len(ordered):
        return 0.0
    steps = [middle - ordered[low - 1]] if low else []
    steps += [ordered[high] - middle] if high < len(ordered) else []
    return min(steps, default=0.0)


def _lower_rank(n: int, inflated: float) -> int:
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


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
