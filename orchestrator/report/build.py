"""From a run's folder to a report: pure data that every format renders.

There is one table for each payload and device model; they are never mixed. A row is a case (and the row of a script
payload's output). Under `replicate` each host has a row of its own, under `replicate_devices` each device: numbers of
different machines are never averaged away. Under `shard` a case has one row, wherever it was measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from orchestrator import identity
from orchestrator.archive import (
    Archive,
    RunDocument,
    RunFolder,
    fold_run,
    known_total,
    read_document,
    read_measurements,
    read_results,
)
from orchestrator.model import Measurement, RunCounts, Status
from orchestrator.report import ceilings
from orchestrator.report.ceilings import Ceiling, Share
from orchestrator.report.speedup import NoSpeedup, Speedup, speedup

_NOTE_LENGTH = 300


@dataclass(frozen=True)
class Cell:
    """One backend in one row. `note` numbers a line of the table's `notes`; `pending` is still to come; `share` is of
    the ceilings measured on its device."""

    measurement: Measurement | None
    speedup: Speedup | NoSpeedup | None = None
    note: int | None = None
    pending: bool = False
    share: Share | None = None


@dataclass(frozen=True)
class Row:
    """One case; `row` tells several results of one script run apart, `places` are `host` or `host:index`."""

    case_id: str
    label: str
    row: Mapping[str, Any] | None
    places: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class PayloadTable:
    """Everything measured of one payload on one device model; `cells` of each row stand in the order of `backends`."""

    payload: str
    device_model: str
    backends: tuple[str, ...]
    baseline: str | None
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    resolved: Mapping[str, str] = field(default_factory=dict)
    timers: tuple[str, ...] = ()
    caches: tuple[str, ...] = ()
    doubts: frozenset[str] = frozenset()

    @cached_property
    def several_places(self) -> bool:
        """Whether rows were measured in different places, so that each must say where."""
        return len({place for row in self.rows for place in row.places}) > 1


@dataclass(frozen=True)
class Report:
    """A run, its measurements and their tables. `state` as `Archive.state` has it."""

    run: RunDocument
    state: str
    measurements: tuple[Measurement, ...]
    tables: tuple[PayloadTable, ...]
    counts: RunCounts

    @property
    def speedups(self) -> tuple[Speedup | NoSpeedup | None, ...]:
        """The speed-up of each measurement, in their order; None where there is no baseline to compare with."""
        of_object = {id(cell.measurement): cell.speedup for cell in self._cells()}
        return tuple(of_object.get(id(measurement)) for measurement in self.measurements)

    @property
    def shares(self) -> tuple[Share | None, ...]:
        """Of each measurement, in their order: its share of the ceilings measured on its device, where they are known."""
        of_object = {id(cell.measurement): cell.share for cell in self._cells()}
        return tuple(of_object.get(id(measurement)) for measurement in self.measurements)

    def _cells(self) -> Iterator[Cell]:
        return (cell for table in self.tables for row in table.rows for cell in row.cells)


def build(archive: Archive, folder: RunFolder) -> Report:
    """Read a run, open or committed, and lay out its tables. Raises `ArchiveError`."""
    try:
        return _build(archive, folder)
    except FileNotFoundError:
        return _build(archive, archive.find(folder.run_id))  # it was committed while we read


def _build(archive: Archive, folder: RunFolder) -> Report:
    document = read_document(folder.run_json)
    state = archive.state(folder, document)
    if folder.is_committed:
        measurements = tuple(read_results(folder))
    else:
        fold = fold_run(folder, document)
        measurements = tuple(read_measurements(folder, fold, document))
        document.plan.expected = known_total(document, fold)
        document.environments = {**document.environments, **fold.environments}
        for host, told in fold.hosts.items():
            if told.devices and host in document.hosts:
                document.hosts[host].devices = list(told.devices)
    return lay_out(document, state, measurements, ceilings.earlier(archive, folder, measurements))


def lay_out(
    document: RunDocument,
    state: str,
    measurements: Iterable[Measurement],
    earlier: Mapping[ceilings.Key, Ceiling] | None = None,
) -> Report:
    """The report of a run whose document and measurements are at hand; `earlier` are ceilings from before the run."""
    measurements = tuple(measurements)
    known = {**(earlier or {}), **ceilings.measured(measurements)}
    models = _Models(document, measurements)
    # Two parts of a sweep may measure one payload against different baselines: they are two tables.
    baselines = {c.id: c.baseline or document.plan.baselines.get(c.payload) for c in document.plan.cases}
    groups: dict[tuple[str, str | None, str], list[Measurement]] = {}
    for measurement in measurements:
        baseline = baselines.get(measurement.case_id)
        groups.setdefault((measurement.payload, baseline, models.of(measurement)), []).append(measurement)
    order = {
        name: number
        for number, name in enumerate(dict.fromkeys(case.payload for case in document.plan.cases))
    }
    is_open = state in ("running", "detached")
    tables = [
        _table(document, payload, baseline, model, members, is_open, known)
        for (payload, baseline, model), members in sorted(
            groups.items(), key=lambda g: order.get(g[0][0], len(order))
        )
    ]
    statuses = Counter(m.status.value for m in measurements)
    verdicts = Counter(m.verdict.value for m in measurements if m.verdict is not None)
    return Report(document, state, measurements, tuple(tables), RunCounts(dict(statuses), dict(verdicts)))


class _Models:
    """Finds the device model of measurements that were lost before they had a device."""

    def __init__(self, document: RunDocument, measurements: Iterable[Measurement]) -> None:
        self._of_host: dict[str, set[str]] = {
            name: {device.model for device in host.devices} for name, host in document.hosts.items()
        }
        self._of_payload: dict[str, set[str]] = {}
        for m in measurements:
            if m.device is not None:
                self._of_host.setdefault(m.host, set()).add(m.device.model)
                self._of_payload.setdefault(m.payload, set()).add(m.device.model)

    def of(self, measurement: Measurement) -> str:
        if measurement.device is not None:
            return measurement.device.model
        for known in (self._of_host.get(measurement.host), self._of_payload.get(measurement.payload)):
            if known and len(known) == 1:
                return next(iter(known))
        return ""


def _table(
    document: RunDocument,
    payload: str,
    wanted: str | None,
    model: str,
    members: list[Measurement],
    is_open: bool,
    known: Mapping[ceilings.Key, Ceiling],
) -> PayloadTable:
    backends = _in_plan_order((m.backend for m in members), document.plan.backends)
    resolved = {m.backend: m.resolved_backend for m in members if m.resolved_backend}
    baseline = wanted if wanted in backends else next((b for b, r in resolved.items() if r == wanted), None)
    planned = {case.id: case.backends or document.plan.backends for case in document.plan.cases}
    rows: dict[tuple[str, str, str], dict[str, Measurement]] = {}
    for measurement in members:
        key = _row_key(measurement, document.placement, model)
        rows.setdefault(key, {}).setdefault(measurement.backend, measurement)
    number = {case.id: position for position, case in enumerate(document.plan.cases)}
    notes = _Notes()
    laid_out = [
        _row(found, backends, baseline, planned.get(case_id, []) if is_open else [], notes, known)
        for (case_id, _, _), found in sorted(rows.items(), key=lambda r: number.get(r[0][0], len(number)))
    ]
    timings = [m.timing for m in members if m.timing is not None]
    marks = {
        d for row in laid_out for c in row.cells if isinstance(c.speedup, Speedup) for d in c.speedup.doubts
    }
    return PayloadTable(
        payload=payload,
        device_model=model,
        backends=backends,
        baseline=baseline or wanted,
        rows=tuple(laid_out),
        notes=tuple(notes.lines),
        resolved={backend: name for backend, name in resolved.items() if name != backend},
        timers=tuple(sorted({t.timer for t in timings})),
        caches=tuple(sorted({t.cache for t in timings if t.cache})),
        doubts=frozenset(marks),
    )


def _row(
    found: Mapping[str, Measurement],
    backends: tuple[str, ...],
    baseline: str | None,
    pending: list[str],
    notes: _Notes,
    known: Mapping[ceilings.Key, Ceiling],
) -> Row:
    cells = []
    for backend in backends:
        measurement = found.get(backend)
        if measurement is None:
            cells.append(Cell(None, pending=backend in pending))
            continue
        against = None if baseline in (None, backend) else speedup(found.get(baseline or ""), measurement)
        note, share = notes.of(measurement, against), ceilings.share_of(measurement, known)
        cells.append(Cell(measurement, against, note, share=share))
    first = next(iter(found.values()))
    places = tuple(dict.fromkeys(_place(m) for m in found.values()))
    return Row(first.case_id, first.label, first.row, places, tuple(cells))


class _Notes:
    """Footnotes of a table: equal ones share a number."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def of(self, measurement: Measurement, against: Speedup | NoSpeedup | None) -> int | None:
        told = []
        if measurement.status is not Status.OK:
            told.append(f"{measurement.status}: {measurement.reason or 'no reason given'}")
        elif measurement.verdict != "valid":
            why = ", ".join(measurement.reasons) or measurement.reason or "no reason given"
            told.append(f"{measurement.verdict}: {why}")
        elif measurement.reasons:  # a program's own samples, which no verdict rests on
            told.append(f"valid, but {', '.join(measurement.reasons)}")
        if isinstance(against, NoSpeedup) and not against.comparable:
            told.append(f"no speed-up: {against.why}")
        if not told:
            return None
        line = "; ".join(told).strip().split("\n", 1)[0][:_NOTE_LENGTH]
        if line not in self.lines:
            self.lines.append(line)
        return self.lines.index(line) + 1


def _row_key(measurement: Measurement, placement: str, model: str) -> tuple[str, str, str]:
    """What measurements of one row share; `model` is their table's, also of what was lost before it had a device."""
    uuid = measurement.device.uuid if measurement.device else ""
    where = identity.scope(placement, measurement.host, uuid, model)
    return measurement.case_id, identity.canonical_row(measurement.row), where


def _place(measurement: Measurement) -> str:
    return f"{measurement.host}:{measurement.device.index}" if measurement.device else measurement.host


def _in_plan_order(names: Iterable[str], planned: list[str]) -> tuple[str, ...]:
    present = dict.fromkeys(names)
    return (
        *(name for name in dict.fromkeys(planned) if name in present),
        *(n for n in present if n not in planned),
    )
