"""Whether somebody works on a run, or will: its agent, or the job of Slurm that is to bring one."""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, Optional

from . import lock, slurm
from .journal import last_event, state_of
from .paths import RunPaths, read_json
from .wire import portable

ASK_EVERY_S = 5.0
"""Slurm's controller serves a whole cluster."""


class Liveness:
    """Asked again and again; `note` tells meanwhile what is waited for, and `why` in the end what became of the job."""

    def __init__(self, paths: RunPaths, clock: Callable[[], float] = time.monotonic) -> None:
        self.note: Optional[str] = None
        self.waits = False
        """Whether there is no agent yet, only a job that is to bring one."""
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
            self.waits = False
            self._asked_at = float("-inf")  # what Slurm said before that is not true any more
            return True
        if not slurm.asked_for(self._paths) or end_state(self._paths) != "dead":
            return False
        try:
            job = self._look()
        except slurm.SlurmError as error:
            number = slurm.number_of(self._paths)
            self.note = f"Slurm job{f' {number}' if number else ''}: {error}"
            return True  # as far as anybody knows
        if job is None:
            self.why = "Slurm has no job for it"
            return False
        begun = began(self._paths, job.number)
        if job.alive:
            self.waits = not begun
            self.note = str(job) if not begun or job.state != "RUNNING" else None
            return True
        self.why = str(job)
        self.hopeless = job.state == "CANCELLED" or not (begun or job.taken_away)
        if not begun:
            self.why += ", and no agent began in it"
            if job.ran:
                self.why += f"; {self._last_words()}"
        return False

    def _look(self) -> Optional[slurm.Job]:
        if self._clock() - self._asked_at >= ASK_EVERY_S or (
            self._job is not None and self._job.number != slurm.number_of(self._paths)
        ):
            number = slurm.find(self._paths)
            self._job = None if number is None else slurm.look(number)
            self._asked_at = self._clock()
        return self._job

    def _last_words(self) -> str:
        """What the log of an agent that never began has to say."""
        log = self._paths.log("agent")
        try:
            with open(log, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 2000))
                words = file.read().decode("utf-8", "replace").split("\n")
        except OSError:
            words = []
        said = [line.strip() for line in words if line.strip()]
        if not said:
            return f"does its node see {portable(self._paths.root)}? The work folder must be on a file system that all nodes share"
        return f"{portable(log)} ends with: {said[-1][:300]}"

    def verdict(self) -> Dict[str, Any]:
        """What `end` says of a job that is gone."""
        return {} if self.why is None else {"why": self.why, "again": not self.hopeless}


def began(paths: RunPaths, number: str) -> bool:
    """Whether an agent has begun in a job of Slurm."""
    who = read_json(paths.identity)
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
