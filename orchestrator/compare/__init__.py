"""What changed between two runs, held against the noise of the machine; and how a case went over time.

comparison = compare(Archive("archive"), "baseline", "latest", threshold=0.02)
for pair in comparison.pairs:
    print(pair.match.label, pair.outcome, pair.change, pair.floor)
"""

from orchestrator.compare.api import compare, compare_measurements
from orchestrator.compare.formats import FORMATS, render
from orchestrator.compare.json_ import comparison_document, history_document
from orchestrator.compare.table import history_table
from orchestrator.compare.trend import Change, History, Series, history
from orchestrator.compare.values import (
    Comparison,
    Difference,
    LeftOut,
    Match,
    Outcome,
    Pair,
    PastTime,
    SideLine,
    Subject,
    Timed,
)

__all__ = [
    "FORMATS",
    "Change",
    "Comparison",
    "Difference",
    "History",
    "LeftOut",
    "Match",
    "Outcome",
    "Pair",
    "PastTime",
    "Series",
    "SideLine",
    "Subject",
    "Timed",
    "compare",
    "compare_measurements",
    "comparison_document",
    "history",
    "history_document",
    "history_table",
    "render",
]
