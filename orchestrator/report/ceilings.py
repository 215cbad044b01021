"""What share a measurement reaches of the ceilings measured on its own GPU: by a copy, and by a large product.

A ceiling is found when a report is made, not when a record is written: it may be measured later in the run, or have been in
an earlier one, and a record never changes. It is of one device (by UUID), and of arithmetic of one precision:

- *memory*: the highest rate of a cold measurement that only moves data, 256 MiB at least;
- *arithmetic*: the highest rate of any product of that precision, once one with no side below 4096 is among them.

Only valid measurements make ceilings, the run's own before those of earlier runs. The share is that of the roofline: the
larger of the two, so 1 is the time that the slower of arithmetic and memory takes at its ceiling.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from orchestrator.archive import Archive, RunFolder, read_outline, read_results
from orchestrator.errors import ArchiveError
from orchestrator.model import Measurement, Status, Verdict

LARGE = 4096
"""A product with no side below this is bound by arithmetic on every device of today."""
LEAST_BYTES = 1 << 28
"""Less than this fits the caches at least in part."""
RUNS_LOOKED_AT = 50
MEASUREMENTS_READ = 2500
"""A report must stay quick in an archive of thousands of runs: that many of the newest earlier ones are looked at, and of
those that used a device in question one after the other is read until it was so many measurements, about half a second.
Small runs, of which a session makes many, thus do not hide the one that measured the ceilings."""
MEMORY = "memory"
_SAME = {"fp16": "bf16"}

Key = tuple[str, str]
"""Device UUID, and `memory` or a precision."""


@dataclass(frozen=True)
class Ceiling:
    """The highest rate on one device, in GB/s (memory) or TFLOP/s, and what reached it."""

    kind: str
    rate: float
    by: Measurement

    def as_json(self) -> dict[str, Any]:
        """The rate, and where it comes from."""
        unit = "gbps" if self.kind == MEMORY else "tflops"
        source = {name: getattr(self.by, name) for name in ("run_id", "payload", "backend", "label")}
        return {unit: self.rate, **source}


@dataclass(frozen=True)
class Share:
    """Of a measurement: its rates over the ceilings that are known, None where one is not."""

    arithmetic: float | None = None
    memory: float | None = None
    ceilings: tuple[Ceiling, ...] = ()

    @property
    def fraction(self) -> float:
        """Of the roofline."""
        return max(self.arithmetic or 0.0, self.memory or 0.0)

    @property
    def bound(self) -> str:
        """Which ceiling it is nearer to: `memory` or `arithmetic`."""
        return MEMORY if (self.memory or 0.0) >= (self.arithmetic or 0.0) else "arithmetic"

    def as_json(self) -> dict[str, Any]:
        """`ceiling_fraction`, which ceiling it is of, and both with their sources."""
        found: dict[str, Any] = {"ceiling_fraction": self.fraction, "bound": self.bound}
        for ceiling in self.ceilings:
            part, fraction = (
                (MEMORY, self.memory) if ceiling.kind == MEMORY else ("arithmetic", self.arithmetic)
            )
            found[part] = {"fraction": fraction, **ceiling.as_json()}
        return found


def measured(measurements: Iterable[Measurement]) -> dict[Key, Ceiling]:
    """The ceilings that these show."""
    best: dict[Key, Ceiling] = {}
    with_large: set[Key] = set()
    for m in measurements:
        if m.verdict is not Verdict.VALID or m.device is None or m.device.kind != "gpu":
            continue
        kind, rate = _precision(m), m.metrics.get("tflops")
        if not rate:
            kind, rate = MEMORY, m.metrics.get("gbps")
            if not _moves_much(m):
                continue
        if kind is None or not rate:
            continue
        key = (m.device.uuid, kind)
        if kind == MEMORY or is_large(m):
            with_large.add(key)
        if key not in best or rate > best[key].rate:
            best[key] = Ceiling(kind, float(rate), m)
    return {key: ceiling for key, ceiling in best.items() if key in with_large}


def earlier(archive: Archive, run: RunFolder, measurements: Iterable[Measurement]) -> dict[Key, Ceiling]:
    """What the newest earlier runs say of the ceilings that these measurements want and do not have themselves."""
    measurements = tuple(measurements)
    missing = {key for m in measurements for key in _wanted(m)} - set(measured(measurements))
    found: dict[Key, Ceiling] = {}
    if not missing:
        return found
    candidates = (folder for folder in archive.runs() if folder.is_committed and folder.run_id < run.run_id)
    read = 0
    for folder in islice(candidates, RUNS_LOOKED_AT):
        if not missing or read >= MEASUREMENTS_READ:
            break
        try:
            hosts = read_outline(folder.run_json).hosts.values()
            if not {device.uuid for host in hosts for device in host.devices} & {uuid for uuid, _ in missing}:
                continue
            archive.bring(folder)
            results = tuple(read_results(folder))
        except (ArchiveError, OSError):
            continue  # a run that is damaged, gone or elsewhere is no reason against a report of this one
        read += len(results)
        found |= {key: ceiling for key, ceiling in measured(results).items() if key in missing}
        missing -= set(found)
    return found


def share_of(m: Measurement, ceilings: Mapping[Key, Ceiling]) -> Share | None:
    """The share of a measurement that is ok; None where no ceiling is known that it could be held against."""
    known = [ceilings[key] for key in _wanted(m) if key in ceilings]
    if not known:
        return None
    shares: dict[str, float] = {}
    for ceiling in known:
        name = "gbps" if ceiling.kind == MEMORY else "tflops"
        part = MEMORY if ceiling.kind == MEMORY else "arithmetic"
        shares[part] = float(m.metrics[name] or 0) / ceiling.rate
    return Share(**shares, ceilings=tuple(known))


def is_large(m: Measurement) -> bool:
    """Whether it is a product large enough in every direction to be bound by arithmetic alone."""
    sides = [m.params.get(name) for name in ("m", "n", "k")]
    return all(isinstance(side, int) and side >= LARGE for side in sides)


def _wanted(m: Measurement) -> list[Key]:
    """The ceilings that a measurement can be held against."""
    if m.status is not Status.OK or m.verdict is Verdict.INVALID:
        return []
    if m.device is None or m.device.kind != "gpu":
        return []
    kinds = []
    precision = _precision(m)
    if precision is not None and m.metrics.get("tflops"):
        kinds.append(precision)
    # What is found in the cache does not come from memory.
    if m.metrics.get("gbps") and m.timing is not None and m.timing.cache != "hot":
        kinds.append(MEMORY)
    return [(m.device.uuid, kind) for kind in kinds]


def _precision(m: Measurement) -> str | None:
    said = m.extra.get("precision")
    return _SAME.get(said, said) if isinstance(said, str) else None


def _moves_much(m: Measurement) -> bool:
    if m.timing is None or m.timing.cache == "hot" or not m.metrics.get("gbps"):
        return False
    return float(m.metrics["gbps"] or 0) * 1e3 * m.timing.median_us >= LEAST_BYTES
