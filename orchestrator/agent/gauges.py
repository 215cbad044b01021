"""Where telemetry comes from: NVIDIA's management library, else nvidia-smi. Calls may hang: only for `telemetry`'s thread."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Set, Tuple

from . import nvml, smi
from .smi import Reading

_SMI_S = 5.0

# What a board says that does not have a sensor, or does not show it. Any other failure may pass: a driver under load, a GPU
# that is being reset.
_NEVER = frozenset((nvml.NOT_SUPPORTED, nvml.NO_PERMISSION, nvml.FUNCTION_NOT_FOUND))


class NvmlGauges:
    """Reads in microseconds to a few milliseconds; made for being asked many times a second."""

    continuous = True

    def __init__(self, uuids: Sequence[str], environ: Mapping[str, str]) -> None:
        """Raises `nvml.NvmlError`."""
        self._nvml = nvml.from_environ(environ)
        self._parts = {uuid: self._nvml.by_uuid(uuid) for uuid in uuids}
        # A MIG slice has processes of its own, but the clocks, power and temperature of its GPU.
        self._boards = {uuid: self._nvml.parent(handle) for uuid, handle in self._parts.items()}
        self._missing: Set[Tuple[str, str]] = set()

    def read(self, uuid: str, everything: bool) -> Reading:
        """The device now; with `everything` also what changes slowly (memory clock, temperature)."""
        board, library = self._boards[uuid], self._nvml

        def ask(name: str, call: Callable[..., Any], *arguments: Any) -> Any:
            if (uuid, name) in self._missing:
                return None
            try:
                return call(board, *arguments)
            except nvml.NvmlError as error:
                if error.code in _NEVER:
                    self._missing.add((uuid, name))
                return None

        return Reading(
            ask("sm", library.clock_mhz, nvml.SM_CLOCK),
            ask("memory", library.clock_mhz, nvml.MEMORY_CLOCK) if everything else None,
            ask("power", library.power_w),
            ask("temperature", library.temperature_c) if everything else None,
            ask("reasons", library.event_reasons),
        )

    def pids(self, uuid: str) -> Tuple[Set[int], Set[int]]:
        """Processes with a compute context, and with a graphics context."""
        found = []
        for call in (self._nvml.compute_pids, self._nvml.graphics_pids):
            try:
                found.append(call(self._parts[uuid]))
            except nvml.NvmlError:
                found.append(set())
        return found[0], found[1]


class SmiGauges:
    """Reads in tens of milliseconds and more, a process each: for a look before and after."""

    continuous = False

    def __init__(self, program: str, environ: Mapping[str, str]) -> None:
        self._program = program
        self._environ: Dict[str, str] = dict(environ)

    def read(self, uuid: str, everything: bool) -> Reading:
        """The device now."""
        try:
            return smi.read(self._program, uuid, self._environ, _SMI_S)
        except smi.SmiError:
            return Reading(None, None, None, None, None)

    def pids(self, uuid: str) -> Tuple[Set[int], Set[int]]:
        """Processes with a compute context; those with a graphics context are not listed."""
        try:
            return smi.compute_pids(self._program, uuid, self._environ, _SMI_S), set()
        except smi.SmiError:
            return set(), set()


def open_gauges(uuids: Sequence[str], environ: Mapping[str, str]) -> Optional["NvmlGauges | SmiGauges"]:
    """The best there is for these devices; None when nothing can be asked."""
    try:
        return NvmlGauges(uuids, environ)
    except nvml.NvmlError:
        program = smi.find(environ)
        return None if program is None else SmiGauges(program, environ)
