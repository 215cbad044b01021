"""The telemetry of a crew's devices while it measures: one window at a time, shared by backends that take turns."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, List, Optional, Sequence, Set

from . import procs
from .recorder import Telemetry
from .telemetry import Sampler
from .worker import Worker


class Window:
    """Opened when a backend begins to measure, closed by the next result.

    Backends whose rounds are interleaved report one after the other when all is over: they get the same telemetry."""

    def __init__(self, devices: Sequence[Dict[str, Any]], nonce: str, problem: Callable[[str], None]) -> None:
        self._mark = os.fsencode(f"{procs.NONCE_VARIABLE}={nonce}")
        gpus = any(device["kind"] == "gpu" for device in devices)
        self._sampler: Optional[Sampler] = Sampler(devices, os.environ, self._owns) if gpus else None
        self._problem = problem
        self._told = False
        self._open = False
        self._last: Telemetry = (None, ())

    def before_start(self) -> None:
        """No worker of ours is on the devices at this moment."""
        if self._sampler is not None:
            self._sampler.baseline()

    def open(self) -> None:
        """Something is being measured from now on."""
        if self._sampler is not None and not self._open:
            self._sampler.begin()
            self._open = True

    def close(self, workers: Sequence[Worker]) -> Telemetry:
        """What was seen since `open`; what was seen last if nothing was measured since. Without workers, nothing counts."""
        if self._sampler is not None and self._open:
            own: Set[int] = set()
            for worker in workers:
                own.update(worker.own_pids())
            telemetry, reasons = self._sampler.end(own)
            self._last = (telemetry, reasons)
            self._open = False
            self._tell_problem(self._sampler)
        if not workers:
            self._last = (None, ())
        return self._last

    def _owns(self, pid: int) -> bool:
        entries: Optional[List[bytes]] = procs.environ_of(pid)
        return self._mark in (entries or ())

    def _tell_problem(self, sampler: Sampler) -> None:
        if sampler.problem and not self._told:
            self._told = True
            self._problem(sampler.problem)
