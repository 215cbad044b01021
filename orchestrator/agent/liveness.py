"""Whether somebody works on a run, or will: its agent, or the job of Slurm that is to bring one."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Optional

from . import lock, slurm
from .journal import last_event, state_of
from .paths import RunPaths, read_json

ASK_EVERY_S = 5.0
"""Slurm's controller serves a whole cluster."""


class Liveness:
    """Asked again and again; `note` tells meanwhile what is waited for, and `why` in the end what became of the job."""

    def __init__(self, paths: RunPaths, clock: Callable[[], float] = time.monotonic) -> None:
        self.note: Optional[str] = None
        self.why: Optional[str] = None
        self.hopeless = False
        """Whether another job would fare no better: somebody cancelled this one, or it never became an agent."""
        self._paths = paths
        self._clock = clock
        self._asked_at = float("-inf")
        self._job: Optional[slurm.Job] = None

    def alive(self) -> bool:
        """The lock tells of an agent here and on file systems that share locks; of a job that waits, and where locks are
        not shared, Slurm does."""
        self.note = None
        if lock.is_held(self._paths):
            return True
        number = slurm.number_of(self._paths)
        if number is None or end_state(self._paths) != "dead":
            return False
        try:
            job = self._look(number)
        except slurm.SlurmError as error:
            self.note = f"Slurm job {number}: {error}"
            return True  # as far as anybody knows
        if job.alive:
            self.note = None if self._began(number) else str(job)
            return True
        self.why = str(job)
        self.hopeless = job.state == "CANCELLED" or not self._began(number)
        if not self._began(number):
            self.why += f", and no agent began in it; see {self._paths.log('agent')}"
        return False

    def _look(self, number: str) -> slurm.Job:
        if self._job is None or self._job.number != number or self._clock() - self._asked_at >= ASK_EVERY_S:
            self._job = slurm.look(number)
            self._asked_at = self._clock()
        return self._job

    def verdict(self) -> Dict[str, Any]:
        """What `end` says of a job that is gone."""
        return {} if self.why is None else {"why": self.why, "again": not self.hopeless}

    def _began(self, number: str) -> bool:
        who = read_json(self._paths.identity)
        return isinstance(who, dict) and who.get("slurm_job") == number


def is_alive(paths: RunPaths) -> bool:
    """`Liveness.alive`, once."""
    return Liveness(paths).alive()


def end_state(paths: RunPaths) -> str:
    """How a run without an agent stands. One that finished before it saw the newest batch is not over: `dead`."""
    return str(ending(paths)["state"])


def ending(paths: RunPaths) -> Dict[str, Any]:
    """{"state"} as `end_state` has it; for one that finished also `sealed`, and `reason` if it had to give up."""
    event = last_event(paths.journal)
    state = state_of(event)
    batches = paths.batches()
    if state == "finished" and batches and batches[-1] > str(event.get("batch", "")):
        state = "dead"
    if state != "finished":
        return {"state": state}
    return {"state": state, "sealed": event.get("sealed") is not False, "reason": event.get("reason")}
