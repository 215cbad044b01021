"""`nvidia-smi`, for hosts where NVIDIA's management library cannot be loaded. Every call is bounded in time."""

from __future__ import annotations

import os
import re
import shutil
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Set

from . import bounded
from .exits import describe
from .nvml import LIBRARY_VARIABLE

_FOLDERS = ("/usr/bin", "/usr/local/nvidia/bin", "/usr/lib/wsl/lib", "/run/current-system/sw/bin")
_MIG_LINE = re.compile(r"\s+(MIG \S+)\s+Device\s+\d+: \(UUID: (MIG-[^)\s]+)\)")
_GPU_LINE = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[^)\s]+)\)")


class SmiError(Exception):
    """nvidia-smi failed, hung, or printed something else than was asked for; the message says which."""


class Reading(NamedTuple):
    """One look at a device; None where the driver does not say. `event_reasons` are the bits of `nvml.EVENT_REASONS`."""

    sm_clock_mhz: Optional[float]
    mem_clock_mhz: Optional[float]
    power_w: Optional[float]
    temperature_c: Optional[float]
    event_reasons: Optional[int]


def find(environ: Mapping[str, str]) -> Optional[str]:
    """The path of nvidia-smi: from PATH, else from where drivers put it; None when there is none."""
    path = environ.get("PATH", os.defpath)
    if LIBRARY_VARIABLE not in environ:  # whoever names a library wants no other driver to be found
        path = os.pathsep.join((path, *_FOLDERS))
    return shutil.which("nvidia-smi", path=path)


def inventory(program: str, environ: Mapping[str, str], timeout_s: float) -> List[Dict[str, Any]]:
    """Every GPU, as `nvml.inventory` gives it. Raises `SmiError`."""
    try:
        rows = _query(
            program,
            "gpu",
            ["index", "uuid", "pci.bus_id", "mig.mode.current", "compute_cap", "name"],
            environ,
            timeout_s,
        )
    except _UnknownField:  # drivers before R510 have no compute_cap
        rows = [
            [*row[:4], "", *row[4:]]
            for row in _query(
                program,
                "gpu",
                ["index", "uuid", "pci.bus_id", "mig.mode.current", "name"],
                environ,
                timeout_s,
            )
        ]
    gpus: List[Dict[str, Any]] = []
    for index, uuid, bus_id, mig, capability, name in rows:
        if not index.isdigit() or not uuid.startswith("GPU-"):
            raise SmiError(
                f"nvidia-smi printed something that is no list of GPUs: {', '.join((index, uuid))[:200]!r}"
            )
        gpus.append(
            {
                "uuid": uuid,
                "index": int(index),
                "name": name,
                "pci_bus_id": bus_id,
                "compute_capability": capability if re.fullmatch(r"\d+\.\d+", capability) else None,
                "slices": [] if mig == "Enabled" else None,
            }
        )
    if any(gpu["slices"] is not None for gpu in gpus):
        _add_slices(gpus, _text([program, "-L"], environ, timeout_s))
    return gpus


def read(program: str, uuid: str, environ: Mapping[str, str], timeout_s: float) -> Reading:
    """Clocks, power, temperature and event reasons of a GPU. Raises `SmiError`."""
    fields = ["clocks.sm", "clocks.mem", "power.draw", "temperature.gpu"]
    for reasons in (
        "clocks_event_reasons.active",
        "clocks_throttle_reasons.active",
    ):  # its name since R535, and before
        try:
            rows = _query(program, "gpu", [*fields, reasons], environ, timeout_s, "nounits", f"--id={uuid}")
        except _UnknownField:
            continue
        if len(rows) != 1:
            raise SmiError(f"nvidia-smi answered for {len(rows)} devices instead of {uuid}")
        sm, memory, power, temperature, bits = rows[0]
        try:
            return Reading(_number(sm), _number(memory), _number(power), _number(temperature), int(bits, 16))
        except ValueError:
            return Reading(_number(sm), _number(memory), _number(power), _number(temperature), None)
    raise SmiError("nvidia-smi knows neither name of the clock event reasons")


def compute_pids(program: str, uuid: str, environ: Mapping[str, str], timeout_s: float) -> Set[int]:
    """PIDs with a compute context on a GPU. Raises `SmiError`."""
    rows = _query(program, "compute-apps", ["pid"], environ, timeout_s, f"--id={uuid}")
    return {int(row[0]) for row in rows if row[0].isdigit()}


def query(
    program: str, uuid: str, fields: List[str], environ: Mapping[str, str], timeout_s: float
) -> List[Optional[float]]:
    """Numbers of a GPU by nvidia-smi's names for them; None for what it does not have. Raises `SmiError`."""
    rows = _query(program, "gpu", fields, environ, timeout_s, "nounits", f"--id={uuid}")
    return [_number(cell) for cell in rows[0]] if len(rows) == 1 else [None] * len(fields)


def run(argv: List[str], environ: Mapping[str, str], timeout_s: float) -> str:
    """What a call prints. Raises `SmiError` when it fails."""
    return _text(argv, environ, timeout_s)


class _UnknownField(SmiError):
    pass


def _query(
    program: str, what: str, fields: List[str], environ: Mapping[str, str], timeout_s: float, *extra: str
) -> List[List[str]]:
    options = [option for option in extra if option.startswith("--")]
    formats = ",".join(["csv", "noheader", *(word for word in extra if not word.startswith("--"))])
    text = _text(
        [program, f"--query-{what}={','.join(fields)}", f"--format={formats}", *options], environ, timeout_s
    )
    # The last field takes what is left: a product's name may hold a comma.
    rows = [
        [cell.strip() for cell in line.split(",", len(fields) - 1)]
        for line in text.splitlines()
        if line.strip()
    ]
    if any(len(row) != len(fields) for row in rows):
        raise SmiError(f"nvidia-smi printed something that is not what was asked for: {text.strip()[:200]!r}")
    return rows


def _text(argv: List[str], environ: Mapping[str, str], timeout_s: float) -> str:
    try:
        done = bounded.run(argv, {**environ, "LC_ALL": "C"}, timeout_s)
    except OSError as error:
        raise SmiError(f"nvidia-smi cannot be started: {error}") from None
    if done.code is None:
        raise SmiError(f"nvidia-smi did not answer within {timeout_s:.3g} s: the driver hangs")
    # It writes its complaints to standard output.
    said = " ".join((done.stdout + " " + done.stderr).split())
    if done.code != 0 and "is not a valid field" in said:
        raise _UnknownField(said[:300])
    if done.code != 0:
        raise SmiError(
            f"nvidia-smi failed ({f'exit {done.code}' if done.code >= 0 else describe(done.code)}): {said[:300] or 'it said nothing'}"
        )
    if "No devices were found" in said:
        return ""
    return done.stdout


def _add_slices(gpus: List[Dict[str, Any]], listing: str) -> None:
    current: Optional[Dict[str, Any]] = None
    for line in listing.splitlines():
        gpu, part = _GPU_LINE.match(line), _MIG_LINE.match(line)
        if gpu:
            current = next((entry for entry in gpus if entry["uuid"] == gpu.group(2)), None)
        elif part and current is not None and current["slices"] is not None:
            current["slices"].append({"uuid": part.group(2), "name": f"{current['name']} {part.group(1)}"})


def _number(text: str) -> Optional[float]:
    try:
        return float(text)
    except ValueError:  # "[N/A]", "[Not Supported]"
        return None
