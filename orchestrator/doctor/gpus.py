"""Judging the devices: which there are, how they are set, what slows them down, and who else is on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from .check import Check, State, failed, ok, skipped, warning

NAMES = ("devices", "driver", "gpu settings", "gpu clocks", "gpu use")
_SLOWING = {
    "hw_slowdown": "hardware slowdown",
    "sw_thermal_slowdown": "too hot (software thermal slowdown)",
    "hw_thermal_slowdown": "too hot (hardware thermal slowdown)",
    "hw_power_brake_slowdown": "power brake asserted by the power supply",
}
BUSY_PERCENT = 5
HELD_MIB = 1024

Gpu = Mapping[str, Any]


def judge_gpus(facts: Mapping[str, Any]) -> list[Check]:
    """All five, from the facts of the group `gpus`."""
    devices = facts.get("devices") or []
    problems = [str(problem) for problem in facts.get("problems") or []]
    if facts.get("error"):
        fix = "fix `devices:` in hosts.yaml, or CUDA_VISIBLE_DEVICES on the host"
        return [failed("devices", str(facts["error"]), fix, blocking=True), *_nothing("no device")]
    if not devices:
        found = "; ".join(problems) or "no device"
        fix = "does `nvidia-smi` work on the host? After a driver update it needs a reboot"
        if "is in MIG mode and has no slices" in found:
            fix = "make slices (sudo nvidia-smi mig -cgi PROFILE -C), or leave MIG mode (sudo nvidia-smi -mig 0)"
        return [failed("devices", found, fix, blocking=True), *_nothing("no device")]
    counted = Counter(f"{device['name']}" for device in devices)
    listed = ", ".join(f"{count} × {name}" for name, count in counted.items())
    first = warning("devices", "; ".join([listed, *problems])) if problems else ok("devices", listed)
    gpus = [gpu for gpu in facts.get("gpus") or [] if _is_used(gpu, devices)]
    if all(device["kind"] != "gpu" for device in devices):
        return [first, *_nothing("no GPU")]
    if not gpus:
        why = facts.get("problem") or "nvidia-smi lists none of them"
        return [first, *(skipped(name, str(why)) for name in NAMES[1:])]
    return [first, _driver(gpus), _settings(gpus), _clocks(gpus), _use(gpus, facts)]


def _nothing(why: str) -> list[Check]:
    return [skipped(name, why) for name in NAMES[1:]]


def _is_used(gpu: Gpu, devices: Sequence[Mapping[str, Any]]) -> bool:
    # A MIG slice has a UUID of its own; its index is its GPU's.
    return any(
        device["uuid"] == gpu["uuid"]
        or (device["uuid"].startswith("MIG-") and device["index"] == gpu["index"])
        for device in devices
    )


def _driver(gpus: Sequence[Gpu]) -> Check:
    versions = sorted({str(gpu["driver"] or "unknown") for gpu in gpus})
    capabilities = sorted({str(gpu["compute_capability"]) for gpu in gpus if gpu["compute_capability"]})
    return ok("driver", f"{', '.join(versions)}; compute capability {', '.join(capabilities) or 'unknown'}")


def _settings(gpus: Sequence[Gpu]) -> Check:
    """Persistence, ECC, MIG and compute mode; the gravest finding decides the state."""
    findings: list[tuple[State, str, str | None]] = []

    def add(state: State, of: Sequence[Gpu], what: str, fix: str | None = None) -> None:
        if of:
            findings.append((state, f"{_which(of, gpus)}{what}", fix))

    prohibited = [gpu for gpu in gpus if gpu["compute_mode"] == "Prohibited"]
    add(
        State.FAILED,
        prohibited,
        "compute mode Prohibited: nothing may run there",
        "sudo nvidia-smi -c DEFAULT",
    )
    mute = [gpu for gpu in gpus if gpu.get("faults")]
    faults = sorted({str(fault) for gpu in mute for fault in gpu["faults"]})
    add(
        State.WARNING, mute, f"the driver tells an error instead of values ({'; '.join(faults)[:200]})",
        "`sudo dmesg | grep -i xid` says what happened; reset the GPU (sudo nvidia-smi --gpu-reset) or reboot",
    )  # fmt: skip
    broken = [gpu for gpu in gpus if (gpu["ecc_errors"] or 0) > 0]
    add(
        State.WARNING, broken, "uncorrected ECC errors since the driver was loaded",
        "reset or replace the GPU: its memory is going bad, and results may be wrong",
    )  # fmt: skip
    idle = [gpu for gpu in gpus if gpu["persistence"] is False]
    add(
        State.WARNING, idle, "persistence mode off: the driver unloads between workers, clocks and settings are lost",
        "sudo nvidia-smi -pm 1 (or start nvidia-persistenced)",
    )  # fmt: skip
    with_ecc = [gpu for gpu in gpus if gpu["ecc"] is True]
    if 0 < len(with_ecc) < sum(gpu["ecc"] is not None for gpu in gpus):
        add(
            State.WARNING, with_ecc, "ECC on, off on the others: their memory speeds differ",
            "set it alike on all: sudo nvidia-smi -e 1, then reboot",
        )  # fmt: skip
    add(State.OK, [gpu for gpu in gpus if gpu["mig"] is True], "MIG mode: the slices are the devices")
    if not any(state is not State.OK for state, _, _ in findings):
        said = ["persistence on", f"ECC {'on' if with_ecc else 'off'}", *(text for _, text, _ in findings)]
        return ok("gpu settings", ", ".join(said))
    order = [State.OK, State.WARNING, State.FAILED]
    state = max((entry[0] for entry in findings), key=order.index)
    fixes = [fix for _, _, fix in findings if fix]
    return Check("gpu settings", state, "; ".join(text for _, text, _ in findings), "; ".join(fixes) or None)


def _clocks(gpus: Sequence[Gpu]) -> Check:
    slow = [gpu for gpu in gpus if set(gpu["reasons"] or ()) & set(_SLOWING)]
    if slow:
        told = sorted({_SLOWING[reason] for gpu in slow for reason in gpu["reasons"] if reason in _SLOWING})
        heat = max(gpu["temperature_c"] or 0 for gpu in slow)
        return warning(
            "gpu clocks",
            f"{_which(slow, gpus)}slowed down now: {', '.join(told)}; {heat:.0f} °C",
            "check cooling and power; measurements made meanwhile will be marked throttled",
        )
    capped = [gpu for gpu in gpus if "sw_power_cap" in (gpu["reasons"] or ())]
    locked = [gpu for gpu in gpus if "applications_clocks_setting" in (gpu["reasons"] or ())]
    now = [gpu["sm_clock_mhz"] for gpu in gpus if gpu["sm_clock_mhz"] is not None]
    most = [gpu["max_sm_clock_mhz"] for gpu in gpus if gpu["max_sm_clock_mhz"] is not None]
    heat = max((gpu["temperature_c"] or 0 for gpu in gpus), default=0)
    text = (
        f"SM {_range(now)} of {_range(most)} MHz, {heat:.0f} °C" if now and most else "not told by the driver"
    )
    if capped:
        text += f"; {_which(capped, gpus)}at the power limit"
    if locked:
        text += f"; {_which(locked, gpus)}held by application clocks"
    return ok("gpu clocks", text)


def _use(gpus: Sequence[Gpu], facts: Mapping[str, Any]) -> Check:
    by_uuid = {gpu["uuid"]: gpu for gpu in gpus}
    holders: Mapping[str, Mapping[str, Any]] = facts.get("holders") or {}
    told = []
    for uuid, holder in holders.items():
        index = f"GPU {by_uuid[uuid]['index']:.0f}" if uuid in by_uuid else uuid
        told.append(f"{index}: farbench run {holder.get('run_id')} of {holder.get('user')}")
    strangers = [entry for entry in facts.get("processes") or [] if entry["uuid"] in by_uuid]
    for entry in strangers:
        if entry["uuid"] not in holders:
            index = by_uuid[entry["uuid"]]["index"]
            who = f" of {entry['user']}" if entry["user"] else ""
            told.append(
                f"GPU {index:.0f}: {entry['name']} (pid {entry['pid']}{who}, {entry['memory_mib'] or 0:.0f} MiB)"
            )
    listed = {entry["uuid"] for entry in strangers} | set(holders)
    for gpu in gpus:
        busy, held = gpu["utilization_percent"] or 0, gpu["memory_used_mib"] or 0
        if gpu["uuid"] not in listed and (busy > BUSY_PERCENT or held > HELD_MIB):
            told.append(
                f"GPU {gpu['index']:.0f}: {busy:.0f}% busy, {held:.0f} MiB held by nobody who can be seen from here"
            )
    if not told:
        return ok("gpu use", "nobody else")
    fix = "runs wait for other farbench runs; what others compute makes measurements contended: `devices:` picks free GPUs"
    return warning("gpu use", "; ".join(told), fix)


def _which(some: Sequence[Gpu], every: Sequence[Gpu]) -> str:
    if len(some) == len(every):
        return ""
    return "GPU " + ", ".join(f"{gpu['index']:.0f}" for gpu in some) + ": "


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.0f}" if low == high else f"{low:.0f}–{high:.0f}"
