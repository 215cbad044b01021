"""One measurement, again: as a folder that needs no farbench, or over SSH with a word on whether the number came back."""

from orchestrator.repro.again import Comeback, run_again
from orchestrator.repro.folder import command_line, files_of, write
from orchestrator.repro.judging import Judgement, judge
from orchestrator.repro.recipe import Recipe, find

__all__ = [
    "Comeback",
    "Judgement",
    "Recipe",
    "command_line",
    "files_of",
    "find",
    "judge",
    "run_again",
    "write",
]
