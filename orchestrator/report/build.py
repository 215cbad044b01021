"""From a run's folder to a report: pure data that every format renders.

There is one table for each payload and device model; they are never mixed. A row is a case (and the row of a script
payload's output). Under `replicate` each host has a row of its own, under `replicate_devices` each device: numbers of
different machines are never averaged away. Under `shard` a case has one row, wherever it was measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from orchestrator.model import Measurement, RunCounts
from orchestrator.report import ceilings, whole
from orchestrator.report.ceilings import Ceiling, Share
from orchestrator.report.footnotes import Footnotes
from orchestrator.report.speedup import NoSpeedup, Speedup, speedup
from orchestrator.report.whole import Plan, Slot, TakenUp


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
        """Whether rows were measured in different places, so that each must say where. A host without a device is no other
        place than its device: what was not measured there has none."""
        places = {place for row in self.rows for place in row.places}
        hosts = {place.rpartition(":")[0] for place in places}
        return len(places - hosts) > 1


@dataclass(frozen=True)
class Report:
    """A run, its measurements and their tables. `state` as `Archive.state` has it.

    The tables also have what `pending` lists, and what the runs that this one takes up had `measured_before`;
    `unread_before` is the one of them that the archive does not have."""

    run: RunDocument
    state: str
    measurements: tuple[Measurement, ...]
    tables: tuple[PayloadTable, ...]
    counts: RunCounts
    pending: tuple[Measurement, ...] = ()
    measured_before: tuple[Measurement, ...] = ()
    unread_before: str | None = None

    @property
    def speedups(self) -> tuple[Speedup | NoSpeedup | None, ...]:
        """The speed-up of each measurement, in their order; None where there is no baseline to compare with."""
        return self._speedups(self.measurements)

    @property
    def speedups_before(self) -> tuple[Speedup | NoSpeedup | None, ...]:
        """Those of what was measured before."""
        return self._speedups(self.measured_before)

    @property
    def shares(self) -> tuple[Share | None, ...]:
        """Of each measurement, in their order: its share of the ceilings measured on its device, where they are known."""
        of_object = {id(cell.measurement): cell.share for cell in self._cells()}
        return tuple(of_object.get(id(measurement)) for measurement in self.measurements)

    def _speedups(self, measurements: Iterable[Measurement]) -> tuple[Speedup | NoSpeedup | None, ...]:
        of_object = {id(cell.measurement): cell.speedup for cell in self._cells()}
        return tuple(of_object.get(id(measurement)) for measurement in measurements)

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
    gaps: tuple[Slot, ...] = ()
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
        gaps = whole.gaps(document, fold, state)
    before = whole.taken_up(archive, document)
    known = ceilings.earlier(archive, folder, measurements)
    return lay_out(document, state, measurements, known, gaps=gaps, before=before)


def lay_out(
    document: RunDocument,
    state: str,
    measurements: Iterable[Measurement],
    earlier: Mapping[ceilings.Key, Ceiling] | None = None,
    *,
    gaps: Sequence[Slot] = (),
    before: TakenUp | None = None,
) -> Report:
    """The report of a run whose document and measurements are at hand; `earlier` are ceilings from before the run,
    `gaps` what has no result, `before` what the runs had that it takes up."""
    before = before or TakenUp()
    lost = [gap for gap in gaps if not gap.is_pending]
    own = [*(Slot(m) for m in measurements), *lost]
    measurements = tuple(slot.measurement for slot in own)
    pending = [gap for gap in gaps if gap.is_pending]
    newer = [slot.measurement for slot in (*own, *pending)]
    old = tuple(whole.not_among(before.measurements, newer, document.placement))
    known = {**(earlier or {}), **ceilings.measured(measurements)}
    models = _Models(document, (*measurements, *old))
    plan = Plan.of(document, before)
    # Two parts of a sweep may measure one payload against different baselines: they are two tables.
    groups: dict[tuple[str, str | None, str], list[Slot]] = {}
    for slot in (*own, *pending, *map(Slot, old)):
        m = slot.measurement
        key = m.payload, plan.baselines.get(m.case_id), slot.model or models.of(m)
        groups.setdefault(key, []).append(slot)
    tables = [
        _table(document, plan, payload, baseline, model, members, known)
        for (payload, baseline, model), members in sorted(
            groups.items(), key=lambda g: plan.payloads.get(g[0][0], len(plan.payloads))
        )
    ]
    statuses = Counter(m.status.value for m in measurements)
    verdicts = Counter(m.verdict.value for m in measurements if m.verdict is not None)
    return Report(
        run=document,
        state=state,
        measurements=measurements,
        tables=tuple(tables),
        counts=RunCounts(dict(statuses), dict(verdicts)),
        pending=tuple(slot.measurement for slot in pending),
        measured_before=old,
        unread_before=before.unread,
    )


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
    plan: Plan,
    payload: str,
    wanted: str | None,
    model: str,
    slots: list[Slot],
    known: Mapping[ceilings.Key, Ceiling],
) -> PayloadTable:
    members = [slot.measurement for slot in slots]
    backends = _in_plan_order((m.backend for m in members), plan.backends)
    resolved = {m.backend: m.resolved_backend for m in members if m.resolved_backend}
    baseline = wanted if wanted in backends else next((b for b, r in resolved.items() if r == wanted), None)
    rows: dict[tuple[str, str, str], dict[str, Slot]] = {}
    for slot in slots:
        m = slot.measurement
        rows.setdefault(_row_key(m, document.placement, model), {}).setdefault(m.backend, slot)
    notes = Footnotes(document.run_id, plan.unread)
    laid_out = [
        _row(found, backends, baseline, notes, known)
        for (case_id, _, _), found in sorted(
            rows.items(), key=lambda r: plan.cases.get(r[0][0], len(plan.cases))
        )
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
    found: Mapping[str, Slot],
    backends: tuple[str, ...],
    baseline: str | None,
    notes: Footnotes,
    known: Mapping[ceilings.Key, Ceiling],
) -> Row:
    first = next(iter(found.values())).measurement
    beside = found.get(baseline or "")
    cells = []
    for backend in backends:
        slot = found.get(backend)
        if slot is None or slot.is_pending:
            note = notes.of_nothing(pending=slot is not None)
            cells.append(Cell(None, note=note, pending=slot is not None))
            continue
        measurement = slot.measurement
        against = None
        if baseline not in (None, backend):
            against = speedup(beside.measurement if beside else None, measurement)
        note, share = notes.of(measurement, against), ceilings.share_of(measurement, known)
        cells.append(Cell(measurement, against, note, share=share))
    places = dict.fromkeys(_place(slot.measurement) for slot in found.values() if not slot.is_pending)
    ranks = max(slot.measurement.ranks for slot in found.values())
    label = f"{first.label} ({ranks} devices)" if ranks > 1 else first.label
    return Row(first.case_id, label, first.row, tuple(filter(None, places)), tuple(cells))


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
