"""What workers left behind that shows in no other way: processes in sessions of their own, without our mark in their
environment, whose worker has died.

Every worker of a template, and the agent, adopts what loses its parent below it (a subreaper, in Linux's words). So
while a worker lives its orphans are its own, and once it is dead they are the agent's: a child of the agent's in another
session, which it has not started, was left behind by a dead worker.
"""

from __future__ import annotations

import os
from typing import List

from . import children, procs
from .spawning import adopt_orphans

LOOK_S = 1.0
_adopting = False


def adopt() -> None:
    """From now on orphans below this process are found by `adopted`."""
    global _adopting
    _adopting = True
    adopt_orphans()


def adopted() -> List[int]:
    """PIDs of adopted processes and of what is below them; those that are dead are waited for. [] before `adopt`."""
    if not _adopting or not children.starting.acquire(timeout=LOOK_S):
        return []
    try:
        ours = procs.stat(os.getpid())
        found: List[int] = []
        for child in procs.children_of(os.getpid()):
            if ours is None or child.sid == ours.sid or child.pid in children.own:
                continue
            if child.state in procs.DEAD_STATES:
                _reap(child.pid)
            else:
                found += [child.pid, *procs.descendants(child.pid)]
        return found
    finally:
        children.starting.release()


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass
