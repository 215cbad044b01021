"""What this host can measure on: its GPUs by UUID, or CPU slots.

Whatever is asked for and is not there is refused (`DeviceError`) with what there is; a GPU that was asked for
never turns into a CPU.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from . import bounded, nvml, smi
from .exits import ended

Device = Dict[str, Any]
"""{"uuid", "index", "name", "compute_capability", "kind": "gpu" | "cpu"}"""

MASK_VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER_VARIABLE = "CUDA_DEVICE_ORDER"

# Runs a module of this package in a fresh interpreter, from a folder or from a zip.
_RUN_MODULE = (
    "import runpy, sys; sys.path.insert(0, sys.argv[1]); runpy.run_module(sys.argv[2], run_name='__main__')"
)


FRESH_S = 10.0
_ahead: Optional[Tuple[float, Dict[str, str], Tuple[Optional[List[Dict[str, Any]]], Optional[str]]]] = None


class DeviceError(Exception):
    """A device that was asked for does not exist, or the driver that should tell is broken."""


class _Gpus(NamedTuple):
    devices: List[Device]
    parents: Dict[str, str]  # UUID of a MIG slice to its GPU's
    gpus: List[Tuple[int, str]]  # index and UUID of whole GPUs in PCI order, also those in MIG mode
    driver: bool  # whether there is a driver at all, working or not


def discover(
    spec: Union[str, Mapping[str, Any], Sequence[Union[int, str]]],
    environ: Mapping[str, str],
    timeout_s: float = 5.0,
) -> Tuple[List[Device], List[str]]:
    """The devices that `spec` and a pre-set CUDA_VISIBLE_DEVICES leave, and problems that a person should know.

    `spec` is "all", {"cpu": n}, or a list of indices (in PCI order, as nvidia-smi counts) and UUIDs or unique
    beginnings of them. A GPU in MIG mode stands for its slices, whose `index` is their GPU's. "all" is one CPU slot
    on a host without an NVIDIA driver, and nothing, with a problem that says so, where the driver is broken.
    Raises `DeviceError`. Takes at most about `timeout_s`, even if the driver hangs.
    """
    if isinstance(spec, Mapping):
        return _cpu_slots(spec), []
    found, problems = _installed(environ, timeout_s)
    visible = _visible(found, environ, problems)
    if isinstance(spec, str):
        if spec != "all":
            raise DeviceError(
                f'devices is {spec!r}: it may be "all", {{cpu: n}}, or a list of indices and UUIDs'
            )
        if not found.driver:
            return _cpu_slots({"cpu": 1}), problems
        return visible, problems
    return _selected(spec, found, visible, problems), problems


def masks(env: Mapping[str, Any]) -> Dict[str, str]:
    """Those of a host's variables for payloads that choose devices."""
    return {name: str(env[name]) for name in (MASK_VARIABLE, ORDER_VARIABLE) if name in env}


def ask_ahead(environ: Mapping[str, str], timeout_s: float = 5.0) -> None:
    """Ask the driver now what `discover` will need in the next seconds, here or in a process forked from this one."""
    global _ahead
    answer = _ask_nvml(environ, timeout_s)
    _ahead = (time.monotonic(), dict(environ), answer)


def mask(devices: Sequence[Device], environ: Optional[Mapping[str, str]] = None) -> Dict[str, str]:
    """The variables that pin a process to `devices`; with `environ`, a copy of it with them laid over.

    By UUID, so that no enumeration order matters; CPU slots hide every GPU. CUDA lets a process use one MIG slice
    at most, so a gang of slices is only good for a process each."""
    pinned = {MASK_VARIABLE: ""}
    if devices and all(device["kind"] == "gpu" for device in devices):
        pinned = {MASK_VARIABLE: ",".join(device["uuid"] for device in devices), ORDER_VARIABLE: "PCI_BUS_ID"}
    return {**(environ or {}), **pinned}


def describe(devices: Sequence[Device]) -> str:
    """For messages: `0: NVIDIA H200 (GPU-…), 1: …`."""
    return (
        ", ".join(f"{device['index']}: {device['name']} ({device['uuid']})" for device in devices) or "none"
    )


def _cpu_slots(spec: Mapping[str, Any]) -> List[Device]:
    count = spec.get("cpu")
    if (
        set(spec) != {"cpu"}
        or not isinstance(count, int)
        or isinstance(count, bool)
        or not 1 <= count <= 4096
    ):
        raise DeviceError(f"devices is {dict(spec)!r}: CPU slots are asked for as {{cpu: n}}, n from 1")
    name = _cpu_name()
    return [
        {"uuid": f"cpu-{n}", "index": n, "name": name, "compute_capability": None, "kind": "cpu"}
        for n in range(count)
    ]


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() in ("model name", "Model", "cpu model") and value.strip():
                    return " ".join(value.split())
    except OSError:
        pass
    return platform.processor() or platform.machine() or "CPU"


def _installed(environ: Mapping[str, str], timeout_s: float) -> Tuple[_Gpus, List[str]]:
    """Every GPU of the host, whatever is masked; problems instead of GPUs where the driver is broken."""
    deadline = time.monotonic() + timeout_s
    problems: List[str] = []
    fresh = _ahead is not None and time.monotonic() - _ahead[0] < FRESH_S and _ahead[1] == environ
    listing, why = _ahead[2] if _ahead is not None and fresh else _ask_nvml(environ, timeout_s)
    program = smi.find(environ)
    if listing is None and program is not None and deadline > time.monotonic():
        try:
            listing = smi.inventory(program, environ, max(0.1, deadline - time.monotonic()))
        except smi.SmiError as error:
            problems.append(f"NVIDIA driver: {error}")
    if listing is None and why is not None and not problems:
        problems.append(f"NVIDIA driver: {why}")
    if listing is None and not problems:
        if nvml.LIBRARY_VARIABLE in environ or not os.path.exists("/dev/nvidiactl"):
            return _Gpus([], {}, [], False), []
        problems.append("/dev/nvidiactl exists, but neither libnvidia-ml.so.1 nor nvidia-smi was found")
    elif listing == []:
        problems.append("the NVIDIA driver answers, but knows no GPU")
    return _flatten(listing or [], problems), problems


def _ask_nvml(
    environ: Mapping[str, str], timeout_s: float
) -> Tuple[Optional[List[Dict[str, Any]]], Optional[str]]:
    """(inventory, None); (None, why not); (None, None) when there is no library to ask."""
    package = os.path.dirname(os.path.abspath(__file__))
    argv = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        _RUN_MODULE,
        os.path.dirname(package),
        f"{os.path.basename(package)}.nvml",
    ]
    try:
        done = bounded.run(argv, environ, timeout_s)
    except OSError as error:
        return None, f"cannot start {sys.executable} to ask it: {error}"
    if done.code is None:
        return None, f"it did not answer within {timeout_s:.3g} s: the driver hangs"
    try:
        answer = json.loads(done.stdout.splitlines()[-1])  # a preloaded library may print before
    except (ValueError, IndexError):
        return None, f"asking it {ended(done.code)}: {done.stderr.strip()[-300:]}"
    if isinstance(answer, list):
        return answer, None
    if answer["code"] == nvml.LIBRARY_NOT_FOUND:
        return None, None
    return None, answer["error"]


def _flatten(listing: List[Dict[str, Any]], problems: List[str]) -> _Gpus:
    """Whole GPUs and MIG slices, each as a device of its own, in PCI order."""
    devices: List[Device] = []
    parents: Dict[str, str] = {}
    gpus: List[Tuple[int, str]] = []
    for gpu in sorted(listing, key=lambda entry: (str(entry.get("pci_bus_id", "")), entry["index"])):
        if "error" in gpu:
            problems.append(f"GPU {gpu['index']} does not answer: {gpu['error']}")
            continue
        gpus.append((gpu["index"], gpu["uuid"]))
        parts = [gpu] if gpu["slices"] is None else gpu["slices"]
        if not parts:
            problems.append(f"GPU {gpu['index']} ({gpu['uuid']}) is in MIG mode and has no slices")
        for part in parts:
            if part is not gpu:
                parents[part["uuid"]] = gpu["uuid"]
            devices.append(
                {
                    "uuid": part["uuid"],
                    "index": gpu["index"],
                    "name": part["name"],
                    "compute_capability": gpu["compute_capability"],
                    "kind": "gpu",
                }
            )
    return _Gpus(devices, parents, gpus, True)


def _visible(found: _Gpus, environ: Mapping[str, str], problems: List[str]) -> List[Device]:
    """What a pre-set CUDA_VISIBLE_DEVICES leaves, read as CUDA reads it, except that a wrong entry is refused."""
    value = environ.get(MASK_VARIABLE)
    if value is None or (found.driver and not found.gpus):
        return found.devices  # a broken driver has been told of; nothing can be said of the mask
    words = [word.strip() for word in value.split(",") if word.strip()]
    shown = f"{MASK_VARIABLE}={value}"
    if not found.driver and not words:
        return []
    if not words or words[0] in ("-1", "NoDevFiles"):
        if not found.driver:
            return []
        raise DeviceError(
            f"{shown} hides every GPU of this host ({describe(found.devices)}); unset it, or ask for {{cpu: 1}}"
        )
    chosen: List[Device] = []
    for word in words:
        if word == "-1":
            break  # CUDA stops reading here
        # Positions among the GPUs this process may use, which is how CUDA counts.
        if word.isdigit() and int(word) < len(found.gpus):
            chosen += _parts(found, found.gpus[int(word)][1])
        else:
            chosen += _match(word, found, shown)
    _refuse_twice(chosen, shown)
    names = {device["name"] for device in found.devices}
    if (
        any(word.isdigit() for word in words)
        and len(names) > 1
        and environ.get(ORDER_VARIABLE) != "PCI_BUS_ID"
    ):
        problems.append(
            f"{shown} was read in PCI order, but CUDA's own order may differ on a host with different GPUs: "
            f"use UUIDs, or set {ORDER_VARIABLE}=PCI_BUS_ID"
        )
    return chosen


def _selected(
    spec: Sequence[Union[int, str]], found: _Gpus, visible: List[Device], problems: Sequence[str]
) -> List[Device]:
    if not spec:
        raise DeviceError('devices is an empty list: name indices or UUIDs, or "all"')
    if found.driver and not found.gpus:
        raise DeviceError(f"devices {list(spec)!r}: {'; '.join(problems)}")
    chosen: List[Device] = []
    for entry in spec:
        if isinstance(entry, bool) or not isinstance(entry, (int, str)):
            raise DeviceError(f"devices: {entry!r} is neither an index nor a UUID")
        chosen += _match(str(entry), found, f"devices {entry!r}")
    _refuse_twice(chosen, f"devices {list(spec)!r}")
    allowed = {device["uuid"] for device in visible}
    hidden = [device for device in chosen if device["uuid"] not in allowed]
    if hidden:
        raise DeviceError(
            f"devices {list(spec)!r}: CUDA_VISIBLE_DEVICES of this host hides {describe(hidden)}"
        )
    return chosen


def _match(word: str, found: _Gpus, asked: str) -> List[Device]:
    """The devices that an index or the beginning of a UUID names. Raises `DeviceError` unless it is one GPU or slice."""
    if word.isdigit():
        uuids = [uuid for index, uuid in found.gpus if index == int(word)]
    elif word[:4].upper() in ("GPU-", "MIG-"):
        every = [uuid for _, uuid in found.gpus] + list(found.parents)
        uuids = [uuid for uuid in every if uuid.lower() == word.lower()]
        uuids = uuids or [uuid for uuid in every if uuid.lower().startswith(word.lower())]
    else:
        uuids = []
    if not uuids:
        there = (
            f"it has {describe(found.devices)}"
            if found.driver
            else "no NVIDIA driver was found; {cpu: 1} asks for a CPU slot"
        )
        raise DeviceError(f"{asked} names no device of this host: {there}")
    if len(uuids) > 1:
        raise DeviceError(f"{asked} fits more than one device: {', '.join(uuids)}")
    return _parts(found, uuids[0])


def _parts(found: _Gpus, uuid: str) -> List[Device]:
    return [device for device in found.devices if uuid in (device["uuid"], found.parents.get(device["uuid"]))]


def _refuse_twice(devices: Sequence[Device], asked: str) -> None:
    uuids = [device["uuid"] for device in devices]
    twice = sorted({uuid for uuid in uuids if uuids.count(uuid) > 1})
    if twice:
        raise DeviceError(f"{asked} names a device twice: {', '.join(twice)}")
