"""NVIDIA's management library by ctypes: what the driver says of GPUs, without any package on the host.

`Nvml` wraps the few calls that are needed; each raises `NvmlError`. A call can hang with the driver, so nothing
here is called from a thread that must go on: `devices` asks in a process of its own (`main`), `telemetry` in a
thread of its own. Indices are NVML's, which are in the order of PCI bus ids.

`FARBENCH_NVML_LIBRARY` names the library to load instead of the usual one (empty: none).
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from ctypes import byref, c_char_p, c_int, c_uint, c_ulonglong, c_void_p
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

LIBRARY_VARIABLE = "FARBENCH_NVML_LIBRARY"

NOT_SUPPORTED = 3
NO_PERMISSION = 4
INSUFFICIENT_SIZE = 7
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13

SM_CLOCK = 1
MEMORY_CLOCK = 2

EVENT_REASONS: Tuple[Tuple[int, str], ...] = (
    (0x1, "gpu_idle"),
    (0x2, "applications_clocks_setting"),
    (0x4, "sw_power_cap"),
    (0x8, "hw_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "sw_thermal_slowdown"),
    (0x40, "hw_thermal_slowdown"),
    (0x80, "hw_power_brake_slowdown"),
    (0x100, "display_clock_setting"),
)
"""The bits of nvmlClocksEventReasons (nvml.h), by name."""

# Where container runtimes and distributions put it when the loader's own path does not have it, as is common
# in a shell without a login.
_FOLDERS = (
    "/usr/local/nvidia/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
)


class NvmlError(Exception):
    """A call that failed; `code` is NVML's return value."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class _ProcessV2(ctypes.Structure):
    _fields_ = [
        ("pid", c_uint),
        ("memory", c_ulonglong),
        ("gpu_instance", c_uint),
        ("compute_instance", c_uint),
    ]


class _ProcessV1(ctypes.Structure):
    _fields_ = [("pid", c_uint), ("memory", c_ulonglong)]


class _Pci(ctypes.Structure):
    _fields_ = [
        ("legacy", ctypes.c_char * 16),
        ("domain", c_uint),
        ("bus", c_uint),
        ("device", c_uint),
        ("device_id", c_uint),
        ("subsystem_id", c_uint),
        ("bus_id", ctypes.c_char * 32),
    ]


class Nvml:
    """The loaded and initialised library; handles are opaque."""

    def __init__(self, library: Optional[str] = None) -> None:
        """Load `library` (None: the usual one). Raises `NvmlError`, LIBRARY_NOT_FOUND when there is none."""
        self._library = _load(library)
        try:
            self._library.nvmlErrorString.restype = c_char_p
        except AttributeError:
            raise NvmlError(FUNCTION_NOT_FOUND, "the library is not NVML") from None
        self._call("nvmlInit_v2")

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise NvmlError(FUNCTION_NOT_FOUND, f"{name} is not in this driver's NVML") from None
        code = function(*arguments)
        if code != 0:
            text = self._library.nvmlErrorString(code) or b"?"
            raise NvmlError(code, f"{name}: {text.decode('ascii', 'replace')} ({code})")

    def _number(self, name: str, handle: c_void_p, *arguments: Any) -> int:
        value = c_uint()
        self._call(name, handle, *arguments, byref(value))
        return value.value

    def _text(self, name: str, handle: c_void_p) -> str:
        buffer = ctypes.create_string_buffer(128)
        self._call(name, handle, buffer, c_uint(len(buffer)))
        return buffer.value.decode("utf-8", "replace")

    def count(self) -> int:
        """Number of GPUs."""
        value = c_uint()
        self._call("nvmlDeviceGetCount_v2", byref(value))
        return value.value

    def by_index(self, index: int) -> c_void_p:
        """Handle of the GPU with this index."""
        handle = c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(handle))
        return handle

    def by_uuid(self, uuid: str) -> c_void_p:
        """Handle of the GPU or MIG slice with this UUID."""
        handle = c_void_p()
        self._call("nvmlDeviceGetHandleByUUID", uuid.encode("ascii", "replace"), byref(handle))
        return handle

    def parent(self, handle: c_void_p) -> c_void_p:
        """The GPU a MIG slice is part of; a GPU's own handle unchanged."""
        above = c_void_p()
        try:
            self._call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle, byref(above))
        except NvmlError:
            return handle
        return above

    def slices(self, handle: c_void_p) -> Optional[List[c_void_p]]:
        """Handles of a GPU's MIG slices in their order; None when it is not in MIG mode."""
        current, pending = c_uint(), c_uint()
        try:
            self._call("nvmlDeviceGetMigMode", handle, byref(current), byref(pending))
            if not current.value:
                return None
            most = self._number("nvmlDeviceGetMaxMigDeviceCount", handle)
        except NvmlError as error:
            if error.code in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
                return None
            raise
        found = []
        for index in range(most):
            part = c_void_p()
            try:
                self._call("nvmlDeviceGetMigDeviceHandleByIndex", handle, c_uint(index), byref(part))
            except NvmlError:
                continue  # positions without a slice
            found.append(part)
        return found

    def uuid(self, handle: c_void_p) -> str:
        """`GPU-…` or `MIG-…`."""
        return self._text("nvmlDeviceGetUUID", handle)

    def name(self, handle: c_void_p) -> str:
        """The product's name."""
        return self._text("nvmlDeviceGetName", handle)

    def pci_bus_id(self, handle: c_void_p) -> str:
        """`00000000:1B:00.0`."""
        info = _Pci()
        self._call("nvmlDeviceGetPciInfo_v3", handle, byref(info))
        return bytes(info.bus_id).decode("ascii", "replace")

    def compute_capability(self, handle: c_void_p) -> str:
        """As `9.0`."""
        major, minor = c_int(), c_int()
        self._call("nvmlDeviceGetCudaComputeCapability", handle, byref(major), byref(minor))
        return f"{major.value}.{minor.value}"

    def clock_mhz(self, handle: c_void_p, kind: int) -> int:
        """The present clock: `SM_CLOCK` or `MEMORY_CLOCK`."""
        return self._number("nvmlDeviceGetClockInfo", handle, c_int(kind))

    def power_w(self, handle: c_void_p) -> float:
        """What the board draws."""
        return self._number("nvmlDeviceGetPowerUsage", handle) / 1000

    def temperature_c(self, handle: c_void_p) -> int:
        """Of the GPU die."""
        return self._number("nvmlDeviceGetTemperature", handle, c_int(0))

    def event_reasons(self, handle: c_void_p) -> int:
        """Why clocks are not higher: bits of `EVENT_REASONS`."""
        value = c_ulonglong()
        try:
            self._call("nvmlDeviceGetCurrentClocksEventReasons", handle, byref(value))
        except NvmlError as error:
            if error.code != FUNCTION_NOT_FOUND:
                raise
            self._call("nvmlDeviceGetCurrentClocksThrottleReasons", handle, byref(value))  # before R535
        return value.value

    def compute_pids(self, handle: c_void_p) -> Set[int]:
        """Processes with a compute context, as the driver numbers them: the host's PIDs, also in a container."""
        return self._pids("Compute", handle)

    def graphics_pids(self, handle: c_void_p) -> Set[int]:
        """Processes with a graphics context."""
        return self._pids("Graphics", handle)

    def _pids(self, kind: str, handle: c_void_p) -> Set[int]:
        for suffix, record in (("_v3", _ProcessV2), ("_v2", _ProcessV2), ("", _ProcessV1)):
            room = 32
            while True:
                records, count = (record * room)(), c_uint(room)
                try:
                    self._call(f"nvmlDeviceGet{kind}RunningProcesses{suffix}", handle, byref(count), records)
                except NvmlError as error:
                    if error.code == INSUFFICIENT_SIZE and room < 1 << 16:
                        room *= 4  # more may start before the next try
                        continue
                    if error.code == FUNCTION_NOT_FOUND and suffix:
                        break
                    raise
                return {records[i].pid for i in range(count.value)}
        raise NvmlError(FUNCTION_NOT_FOUND, "NVML cannot list processes")


def from_environ(environ: Mapping[str, str]) -> Nvml:
    """Load the library that `environ` asks for. Raises `NvmlError`."""
    return Nvml(environ.get(LIBRARY_VARIABLE))


def inventory(nvml: Nvml) -> List[Dict[str, Any]]:
    """Every GPU: uuid, index, name, pci_bus_id, compute_capability, and `slices` (uuid, name) or None without MIG.

    A GPU that does not answer is {"index", "error"}; one that this process may not use is left out."""
    gpus: List[Dict[str, Any]] = []
    for index in range(nvml.count()):
        try:
            gpus.append(_describe(nvml, index))
        except NvmlError as error:
            if error.code != NO_PERMISSION:
                gpus.append({"index": index, "error": str(error)})
    return gpus


def _describe(nvml: Nvml, index: int) -> Dict[str, Any]:
    handle = nvml.by_index(index)
    parts = nvml.slices(handle)
    return {
        "uuid": nvml.uuid(handle),
        "index": index,
        "name": nvml.name(handle),
        "pci_bus_id": nvml.pci_bus_id(handle),
        "compute_capability": nvml.compute_capability(handle),
        "slices": None
        if parts is None
        else [{"uuid": nvml.uuid(part), "name": nvml.name(part)} for part in parts],
    }


def _load(library: Optional[str]) -> ctypes.CDLL:
    if library is None:
        names = ["libnvidia-ml.so.1", *(f"{folder}/libnvidia-ml.so.1" for folder in _FOLDERS)]
    else:
        names = [library] if library else []
    problem = "libnvidia-ml.so.1 is not installed"
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            if os.path.exists(name):
                problem = str(error)
    raise NvmlError(LIBRARY_NOT_FOUND, problem)


def main() -> None:
    """Print the inventory, or {"error", "code"}, as one JSON line: the whole of a process that may hang."""
    try:
        answer: Any = inventory(from_environ(os.environ))
    except NvmlError as error:
        answer = {"error": str(error), "code": error.code}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    # The driver's clean-up at exit is not worth waiting for.
    os._exit(0)
