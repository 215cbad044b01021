"""How far a time can be trusted, by one table of rules.

| reason            | when                                                                               | verdict |
|-------------------|------------------------------------------------------------------------------------|---------|
| `few_samples`     | fewer than 6 samples: no 95% interval of the median exists                         | suspect |
| `noisy`           | the median's interval is wider than ±2% (or ±4 times the sweep's target)           | suspect |
| `noisy`           | the rounds' medians differ by more than 10%                                        | suspect |
| `noisy`           | the interval is wider than ±25%                                                    | invalid |
| `timers_disagree` | graph replay and another timer differ by more than 15% and more than 2 µs          | suspect |
| (told in words)   | more than 2.2 times the device's peak of arithmetic, or 1.25 times that of memory  | suspect |
| `throttled`       | a thermal or hardware slowdown; or the power cap and a falling SM clock            | suspect |
| `contended`       | another process had a compute context on the device                                | suspect |
| `clock_offset`    | the SM clock differs by more than 5% from another backend's of the case, uncapped  | suspect |

The last three are the agent's, since only the host can see them: `agent/looks.py` and `agent/offsets.py`.
"""

from __future__ import annotations

from typing import Any, List, Mapping, Optional, Tuple

from .stats import MIN_SAMPLES

NOISY = 0.02
NOISY_TARGETS = 4.0
ROUNDS_DIFFER = 0.10
HOPELESS = 0.25
DISAGREE_FRACTION = 0.15
DISAGREE_US = 2.0

# Cards clock higher than their tables say, and some have a mode that is twice as fast (sums in 16 bits); but not more: the
# work is less than was declared, or was not done.
BEYOND_ARITHMETIC = 2.2
BEYOND_MEMORY = 1.25


def timers_disagree(one_us: float, other_us: float) -> bool:
    """Whether two timers of the same work differ by more than the larger of 15% and 2 µs."""
    return abs(one_us - other_us) > max(DISAGREE_FRACTION * min(one_us, other_us), DISAGREE_US)


def beyond_peak(metrics: Mapping[str, Any], from_memory: bool) -> Optional[str]:
    """How much more than the device can a call seems to do, or None. `from_memory`: all of its bytes must come from memory
    and go back to it within the time."""
    arithmetic, memory = metrics.get("peak_fraction", 0.0), metrics.get("bandwidth_fraction", 0.0)
    if arithmetic > BEYOND_ARITHMETIC:
        found = (arithmetic, "arithmetic", "flops")
    elif from_memory and memory > BEYOND_MEMORY:
        found = (memory, "memory", "bytes_moved")
    else:
        return None
    return "{:.3g} times the device's peak of {}: {} is wrong, or the work is not done".format(*found)


def judge(
    samples: int,
    rel_error: Optional[float],
    target_rel_error: float,
    rounds_spread: float,
    disagreement: bool = False,
    beyond_peak: bool = False,
) -> Tuple[str, List[str]]:
    """(verdict, reasons) of a measurement that is correct."""
    reasons: List[str] = []
    verdict = "valid"
    if samples < MIN_SAMPLES or rel_error is None:
        reasons.append("few_samples")
    error = 0.0 if rel_error is None else rel_error
    if (
        error > max(NOISY, NOISY_TARGETS * target_rel_error)
        or error > HOPELESS
        or rounds_spread > ROUNDS_DIFFER
    ):
        reasons.append("noisy")
    if error > HOPELESS:
        verdict = "invalid"
    if disagreement:
        reasons.append("timers_disagree")
    if (reasons or beyond_peak) and verdict == "valid":
        verdict = "suspect"
    return verdict, reasons
