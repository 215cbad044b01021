"""What a batch job of Slurm runs on its node: the agent of one run, as that process."""

from __future__ import annotations

import os
import sys
from typing import Sequence

from . import lock, slurm
from .daemon import run_locked
from .paths import RunPaths

LOCK_WAIT_S = 120.0
"""A file system gives the lock of a node that died back after a while; and whoever cancels holds it for as long as Slurm takes."""


def main(arguments: Sequence[str]) -> None:
    """`arguments`: the run's folder, and `first` where it was never begun. Exits with 96 where that folder is not here."""
    root, how = arguments
    if not os.path.isdir(root):
        sys.exit(
            f"farbench: this node does not see {root}: the work folder must be on a file system that all nodes share"
        )
    runs, folder = os.path.split(root)
    paths = RunPaths(os.path.dirname(runs), folder)
    try:
        held = lock.acquire(paths, wait_s=LOCK_WAIT_S)
    except OSError as error:
        sys.exit(f"farbench: {error.filename}: {error.strerror}")
    if held is None:
        sys.exit(f"farbench: another agent of this run is still at work, as it holds {paths.lock}")
    if not slurm.adopt(paths, os.environ.get("SLURM_JOB_ID", "")):
        print("farbench: this job is not wanted any more: the run is over, or has another one", flush=True)
        return
    # The agent says how its start went to whoever started it; here that is its log.
    run_locked(paths, {}, how == "first", os.dup(2), held)
