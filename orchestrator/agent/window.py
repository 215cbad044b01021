"""The telemetry of a crew's devices while it measures: a window for each backend, from its first turn to its result."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, List, Optional, Sequence, Set

from . import procs
from .recorder import Telemetry
from .telemetry import Sampler
from .worker import Worker

_NOTHING: Telemetry = (None, ())


class Windows:
    """Backends take turns, so their windows overlap; each ends with its own backend's result.

    Samplers are used again: opening the driver's library takes longer than many a measurement."""

    def __init__(self, devices: Sequence[Dict[str, Any]], nonce: str, problem: Callable[[str], None]) -> None:
        self._mark = os.fsencode(f"{procs.NONCE_VARIABLE}={nonce}")
        gpus = any(device["kind"] == "gpu" for device in devices)
        self._first: Optional[Sampler] = Sampler(devices, os.environ, self._owns) if gpus else None
        self._problem = problem
        self._told = False
        self._idle: List[Sampler] = []
        self._open: Dict[str, Sampler] = {}
        self._seen: Dict[str, Telemetry] = {}
        self._clocks: Dict[str, Optional[float]] = {}

    def before_start(self) -> None:
        """No worker of ours is on the devices at this moment."""
        if self._first is not None:
            self._first.baseline()

    def open(self, backend: str) -> None:
        """A backend is measured from now on, if it is not already."""
        if self._first is None or backend in self._open:
            return
        sampler = self._idle.pop() if self._idle else self._first.another()
        sampler.begin()
        self._open[backend] = sampler
        self._seen.pop(backend, None)

    def close(self, backend: str, workers: Sequence[Worker]) -> Telemetry:
        """What was seen since `open`; for a further row of the same result, the same again."""
        sampler = self._open.pop(backend, None)
        if sampler is not None:
            self._seen[backend] = self._end(sampler, workers)
            self._clocks[backend] = sampler.steady_clock_mhz
        return self._seen.get(backend, _NOTHING)

    def clock_of(self, backend: str) -> Optional[float]:
        """The SM clock of a window that was closed, if it can be held against that of another backend."""
        return self._clocks.get(backend)

    def close_all(self) -> None:
        """The case is over: what is still open counts for nothing."""
        for backend in list(self._open):
            self.close(backend, ())
        self._seen.clear()
        self._clocks.clear()

    def _end(self, sampler: Sampler, workers: Sequence[Worker]) -> Telemetry:
        own: Set[int] = set()
        for worker in workers:
            own.update(worker.own_pids())
        telemetry, reasons = sampler.end(own)
        self._idle.append(sampler)
        if sampler.problem and not self._told:
            self._told = True
            self._problem(sampler.problem)
        return telemetry, reasons

    def _owns(self, pid: int) -> bool:
        entries: Optional[List[bytes]] = procs.environ_of(pid)
        return self._mark in (entries or ())
