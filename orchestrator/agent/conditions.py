"""Under what conditions a crew's devices measure: clocks held where a case asks for it, telemetry while it runs."""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from .clocks import ClockLock
from .recorder import Telemetry
from .runsetup import RunSetup
from .window import Windows
from .worker import Worker


class Conditions:
    """One for a crew. `problem` hears what a person should know; nothing here ever fails a measurement."""

    def __init__(
        self, devices: List[Dict[str, Any]], setup: RunSetup, problem: Callable[[str], None]
    ) -> None:
        self._windows = Windows(devices, setup.nonce, problem)
        self._clocks = ClockLock(devices, {**os.environ, **setup.environment()})
        self._problem = problem
        self._told = ""

    def before_start(self) -> None:
        """No worker of ours is on the devices at this moment."""
        self._windows.before_start()

    def begin_case(self, item: Mapping[str, Any]) -> None:
        """A case is about to be measured."""
        why_not = self._clocks.hold((item.get("measure") or {}).get("lock_clocks"))
        if why_not is not None and why_not != self._told:
            self._told = why_not
            self._problem(f"the clocks cannot be locked, and cases are measured as they are: {why_not}")

    def measuring(self, backend: str) -> None:
        """A backend takes a turn at being measured."""
        self._windows.open(backend)

    def reported(
        self, sent: Mapping[str, Any], backend: str, workers: Sequence[Worker]
    ) -> Tuple[Mapping[str, Any], Telemetry]:
        """What a worker sent, with the clock that was held, and what was seen while it measured."""
        if self._clocks.locked_mhz is not None:
            extra = sent.get("extra") if isinstance(sent.get("extra"), dict) else {}
            sent = {**sent, "extra": {**(extra or {}), "locked_clock_mhz": self._clocks.locked_mhz}}
        return sent, self._windows.close(backend, workers)

    def clock_of(self, backend: str) -> Optional[float]:
        """The SM clock that a reported backend was measured at, if it can be held against that of another."""
        return self._windows.clock_of(backend)

    def end_case(self) -> None:
        """The case is over, however it ended."""
        self._windows.close_all()

    def over(self) -> None:
        """The crew is over: the devices are as they were."""
        why_not = self._clocks.give_back()
        if why_not is not None:
            self._problem(f"the clocks could not be given back (nvidia-smi -rgc): {why_not}")
