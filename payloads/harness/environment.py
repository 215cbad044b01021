"""What the `ready` message says of the software and the device that a worker measures with."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from importlib import metadata
from typing import Any, Dict, Iterable

from . import cuda
from .device import Device

ALWAYS = (
    "torch",
    "numpy",
    "triton",
    "cupti-python",
    "nvidia-cuda-cupti",
    "nvidia-cublas",
    "nvidia-cublas-cu12",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
)


def describe(device: Device, distributions: Iterable[str]) -> Dict[str, Any]:
    """JSON-ready facts: Python, platform, versions of `distributions` and the usual ones, CPU, GPU and driver."""
    packages = {}
    for name in sorted(set(ALWAYS) | set(distributions)):
        try:
            packages[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    found: Dict[str, Any] = {
        "python": platform.python_version(),
        "python_executable": sys.executable,
        "platform": system(),
        "cpu": cpu_model(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "packages": packages,
        "device": device.name,
        "cuda": None,
    }
    if device.is_gpu:
        found["cuda"] = dict(cuda.facts(), driver=driver_version())
    found["freeze"] = freeze()
    return found


def freeze() -> Any:
    """What `farbench setup` installed this environment with (`freeze.json` beside the interpreter), or None."""
    try:
        with open(os.path.join(sys.prefix, "freeze.json"), encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def driver_version() -> Any:
    """Version of the loaded NVIDIA kernel driver, or None."""
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8", errors="replace") as file:
            match = re.search(r"\b(\d+\.\d+(\.\d+)?)\b", file.read())
    except OSError:
        return None
    return match.group(1) if match else None


def system() -> str:
    """What `platform.platform()` says. On Linux with glibc without its way, which starts a process and reads all of Python."""
    try:
        kernel, libc = os.uname(), os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, OSError, ValueError):
        return platform.platform()
    if kernel.sysname != "Linux" or not libc.startswith("glibc "):
        return platform.platform()
    return "-".join((kernel.sysname, kernel.release, kernel.machine, "with", libc.replace(" ", "")))


def cpu_model() -> str:
    """The processor's name."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            match = re.search(r"^model name\s*:\s*(.+)$", file.read(), re.MULTILINE)
    except OSError:
        match = None
    return match.group(1).strip() if match else platform.processor() or platform.machine()


def last_level_cache_bytes() -> int:
    """Size of the largest cache of CPU 0; 32 MiB where the system does not say."""
    largest = 0
    base = "/sys/devices/system/cpu/cpu0/cache"
    try:
        entries = os.listdir(base)
    except OSError:
        entries = []
    for entry in entries:
        try:
            with open(os.path.join(base, entry, "size"), encoding="ascii") as file:
                text = file.read().strip()
        except OSError:
            continue
        match = re.match(r"(\d+)([KMG]?)", text)
        if match:
            largest = max(largest, int(match.group(1)) << {"": 0, "K": 10, "M": 20, "G": 30}[match.group(2)])
    return largest or 32 << 20


_evictor = bytearray()


def evict_caches() -> None:
    """Read through twice the largest cache, so that nothing else is left in it."""
    size = 2 * last_level_cache_bytes()
    if len(_evictor) != size:
        _evictor[:] = bytes(size)
    _evictor.count(1)


def available_memory_bytes() -> int:
    """Memory that could be used without swapping; 1 GiB where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            match = re.search(r"^MemAvailable:\s*(\d+) kB", file.read(), re.MULTILINE)
    except OSError:
        match = None
    return int(match.group(1)) << 10 if match else 1 << 30
