"""Statistics of times: bootstrap of medians, noise between runs, tails, many tests at once, change points.

Times are compared as logarithms: a ratio is then a difference, and a change means the same in both directions.
"""

from orchestrator.statistics.changepoints import segments
from orchestrator.statistics.multiplicity import Decision, holm
from orchestrator.statistics.noise import (
    MAD_TO_DEVIATION,
    Noise,
    Spread,
    moderate,
    spread,
    typical_scale,
    worst_case,
)
from orchestrator.statistics.resampling import Draws, median_draws
from orchestrator.statistics.resolution import resolution
from orchestrator.statistics.tails import t_quantile, t_tail

__all__ = [
    "MAD_TO_DEVIATION",
    "Decision",
    "Draws",
    "Noise",
    "Spread",
    "holm",
    "median_draws",
    "moderate",
    "resolution",
    "segments",
    "spread",
    "t_quantile",
    "t_tail",
    "typical_scale",
    "worst_case",
]
