"""Round numbers for the axes of charts."""

from __future__ import annotations

import math

FEWEST = 3
"""With fewer ticks nobody can read a value off an axis, a logarithmic one least of all."""
_STEPS = (5.0, 2.0, 1.0)


def log_ticks(low: float, high: float) -> list[float]:
    """Ticks of a logarithmic axis between two positive numbers, in order: digits of decades, and where fewer than `FEWEST` of those
    lie between the two, equal steps. One tick for an axis without extent."""
    if not low < high:
        return [low]
    decades = math.log10(high / low)
    digits: tuple[float, ...] = (1, 2, 5) if decades <= 3 else (1,)
    if decades < 0.7:
        digits = (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [digit * 10.0**power for power in powers for digit in digits]
    ticks = [tick for tick in found if low <= tick <= high]
    return ticks if len(ticks) >= FEWEST else _even(low, high)


def _even(low: float, high: float) -> list[float]:
    power = math.ceil(math.log10(high - low))
    while True:
        for digit in _STEPS:
            step = digit * 10.0**power
            first, last = math.ceil(low / step), math.floor(high / step)
            if last - first + 1 >= FEWEST:
                return [float(f"{place * step:.12g}") for place in range(first, last + 1)]
        power -= 1
