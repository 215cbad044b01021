"""Many comparisons at once: which of them may be called a change.

Holm's step-down procedure (Holm 1979), because a comparison is used as a gate: one false `slower` fails a build. It
bounds the chance of *any* false call in the whole table, whatever the dependence between its rows, and rows of one run
do depend on each other: they share the machine's day. Benjamini and Hochberg's would bound the share of false calls
among the calls only, so that a table with many true changes may hold some false ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Decision:
    """Whether a hypothesis is rejected, and `level`: the p-value below which this one would be."""

    rejected: bool
    level: float


def holm(p_values: Sequence[float], alpha: float) -> list[Decision]:
    """Decisions in the order of `p_values`, with the chance of any false rejection at most `alpha`.

    The smallest of m p-values is held against alpha/m, the next against alpha/(m-1), and so on until one fails; that
    one and all larger ones are not rejected, and their level is the one at which it failed.
    """
    count = len(p_values)
    decisions = [Decision(False, alpha)] * count
    going = True
    level = alpha
    for rank, index in enumerate(sorted(range(count), key=lambda i: p_values[i])):
        if going:
            level = alpha / (count - rank)
            going = p_values[index] < level
        decisions[index] = Decision(going, level)
    return decisions
