"""What a batch job of Slurm runs on its node: the agent of one run, as that process."""

from __future__ import annotations

import os
import sys
from typing import Sequence

from .daemon import run_agent
from .paths import RunPaths


def main(arguments: Sequence[str]) -> None:
    """`arguments`: the run's folder, and `first` where it was never begun. Exits with 96 where that folder is not here."""
    root, how = arguments
    if not os.path.isdir(root):
        sys.exit(
            f"farbench: this node does not see {root}: the work folder must be on a file system that all nodes share"
        )
    runs, folder = os.path.split(root)
    # The agent says how its start went to whoever started it; here that is its log.
    run_agent(RunPaths(os.path.dirname(runs), folder), {}, how == "first", os.dup(2))
