"""How the GPUs are just now, as nvidia-smi tells it: settings, errors, clocks, and who else is on them.

Nothing is judged here; `doctor` on the controller does.
"""

from __future__ import annotations

import os
import pwd
import re
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from . import bounded, smi
from .exits import describe
from .nvml import EVENT_REASONS

_FAULT = re.compile(r"\[(?!N/A|Not Supported|Not Found|Insufficient Permissions|Unknown Field)[^\]]+\]|ERR!")
"""What stands in place of a value where the GPU cannot be asked: `[GPU is lost]`, `[Unknown Error]`."""
_UNKNOWN_FIELD = re.compile(r'Field "([^"]+)" is not a valid field')


def _number(text: str) -> Optional[float]:
    try:
        return float(text)
    except ValueError:
        return None  # "[N/A]", "[Not Supported]"


def _switch(text: str) -> Optional[bool]:
    return {"Enabled": True, "Disabled": False}.get(text)


def _text(text: str) -> Optional[str]:
    return None if text.startswith("[") else text


def _reasons(text: str) -> Optional[List[str]]:
    try:
        bits = int(text, 16)
    except ValueError:
        return None
    return [name for bit, name in EVENT_REASONS if bits & bit]


# nvidia-smi's field, our key, and how it is read. The name comes last, since it may hold a comma.
_FIELDS: Tuple[Tuple[str, str, Callable[[str], Any]], ...] = (
    ("index", "index", _number),
    ("uuid", "uuid", _text),
    ("driver_version", "driver", _text),
    ("compute_cap", "compute_capability", _text),
    ("persistence_mode", "persistence", _switch),
    ("ecc.mode.current", "ecc", _switch),
    ("ecc.errors.uncorrected.volatile.total", "ecc_errors", _number),
    ("mig.mode.current", "mig", _switch),
    ("compute_mode", "compute_mode", _text),
    ("clocks.sm", "sm_clock_mhz", _number),
    ("clocks.max.sm", "max_sm_clock_mhz", _number),
    ("clocks.mem", "mem_clock_mhz", _number),
    ("temperature.gpu", "temperature_c", _number),
    ("power.draw", "power_w", _number),
    ("power.limit", "power_limit_w", _number),
    ("utilization.gpu", "utilization_percent", _number),
    ("memory.used", "memory_used_mib", _number),
    ("memory.total", "memory_total_mib", _number),
    ("clocks_event_reasons.active", "reasons", _reasons),
    ("clocks_throttle_reasons.active", "reasons", _reasons),  # its name before R535
    ("name", "name", _text),
)


def look(environ: Mapping[str, str], timeout_s: float) -> Dict[str, Any]:
    """{"gpus": [facts by key, null where the driver does not say], "processes": [{"uuid", "pid", "name", "user",
    "memory_mib"}], "problem": text or null}. `user` is null for a process that cannot be seen from here (a container)."""
    program = smi.find(environ)
    if program is None:
        return {"gpus": [], "processes": [], "problem": "nvidia-smi was not found"}
    deadline = time.monotonic() + timeout_s
    try:
        gpus = _gpus(program, environ, deadline)
        return {"gpus": gpus, "processes": _processes(program, environ, deadline), "problem": None}
    except smi.SmiError as error:
        return {"gpus": [], "processes": [], "problem": str(error)}


def _gpus(program: str, environ: Mapping[str, str], deadline: float) -> List[Dict[str, Any]]:
    fields = list(_FIELDS)
    while True:
        asked = ",".join(field for field, _, _ in fields)
        code, said = _ask(
            [program, f"--query-gpu={asked}", "--format=csv,noheader,nounits"], environ, deadline
        )
        unknown = _UNKNOWN_FIELD.search(said) if code else None
        if unknown is None:
            break
        # Drivers know different fields, and refuse the whole question for one that they do not know.
        left = [entry for entry in fields if entry[0] != unknown.group(1)]
        if len(left) == len(fields):
            raise smi.SmiError(f"nvidia-smi refuses a field that it was not asked for: {said[:200]}")
        fields = left
    if code:
        raise smi.SmiError(
            f"nvidia-smi failed ({f'exit {code}' if code >= 0 else describe(code)}): {' '.join(said.split())[:300] or 'it said nothing'}"
        )
    found = []
    for line in said.splitlines():
        cells = [cell.strip() for cell in line.split(",", len(fields) - 1)]
        if len(cells) != len(fields):
            continue
        gpu: Dict[str, Any] = {**{key: None for _, key, _ in _FIELDS}, "faults": []}
        for (field, key, read), cell in zip(fields, cells):
            if _FAULT.fullmatch(cell):
                gpu["faults"].append(f"{field}: {cell.strip('[]')}")
                continue
            value = read(cell)
            gpu[key] = gpu[key] if value is None else value
        if gpu["uuid"] is not None:
            found.append(gpu)
    return found


def _processes(program: str, environ: Mapping[str, str], deadline: float) -> List[Dict[str, Any]]:
    question = "--query-compute-apps=gpu_uuid,pid,used_memory,process_name"
    code, said = _ask([program, question, "--format=csv,noheader,nounits"], environ, deadline)
    found = []
    for line in said.splitlines() if code == 0 else ():
        cells = [cell.strip() for cell in line.split(",", 3)]
        if len(cells) == 4 and cells[1].isdigit():
            pid, name = int(cells[1]), cells[3]
            found.append(
                {
                    "uuid": cells[0],
                    "pid": pid,
                    "name": name,
                    "user": _owner(pid, name),
                    "memory_mib": _number(cells[2]),
                }
            )
    return found


def _owner(pid: int, name: str) -> Optional[str]:
    """Who runs it. In a container the driver's PIDs are the host's, so the name must fit too."""
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            program = file.read().split(b"\0")[0].decode("utf-8", "replace")
    except OSError:
        return None
    if name not in (program, os.path.basename(program)) and not name.startswith("["):
        return None
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _ask(argv: List[str], environ: Mapping[str, str], deadline: float) -> Tuple[int, str]:
    """(exit code, what it printed). Raises `SmiError` when it cannot be started or does not answer in time."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise smi.SmiError("nvidia-smi took too long: the driver is slow or hangs")
    try:
        done = bounded.run(argv, {**environ, "LC_ALL": "C"}, left)
    except OSError as error:
        raise smi.SmiError(f"nvidia-smi cannot be started: {error}") from None
    if done.code is None:
        raise smi.SmiError(f"nvidia-smi did not answer within {left:.1f} s: the driver hangs")
    if "No devices were found" in done.stdout:
        return 0, ""
    return done.code, done.stdout if done.code == 0 else done.stdout + done.stderr
