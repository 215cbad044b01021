"""The step of a clock, as far as times show it: whole microseconds, the half microsecond of an event, a rounded print."""

from __future__ import annotations

import math
from collections.abc import Sequence

FINEST_US = 1e-4
"""Times that lie on no grid of this step show none."""
MOST_US = 1e11
"""A day. What is longer is no time of a call, and its float has no digits left for the grid."""
COARSEST = 0.1
"""Of the time itself: that 10 became 20 does not show a clock that counts in tens."""
_PRECISION = 1e-9


def resolution(times: Sequence[float]) -> float:
    """The largest step that all times are multiples of, at most a tenth of the smallest; 0 where they show none.

    Times that hardly repeat lie on no grid but the one they were written with, and its step is too fine to matter."""
    step = 0
    for time in set(times):
        if time > MOST_US:
            return 0.0
        ticks = round(time / FINEST_US)
        if abs(ticks * FINEST_US - time) > _PRECISION * time:
            return 0.0
        step = math.gcd(step, ticks)
    if not step:
        return 0.0
    found, coarsest = step * FINEST_US, COARSEST * min(times)
    return found / max(1, math.ceil(found / coarsest - _PRECISION))
