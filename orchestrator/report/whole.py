"""What stands in the tables of a run beside its own results: what has none yet, and what the run it takes up had measured.

So a table shows the whole of what was asked for, and says of each cell without a number why there is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.archive import Archive, RunDocument, expected, read_document, read_results
from orchestrator.archive.document import CaseRecord
from orchestrator.errors import ArchiveError
from orchestrator.events import Fold, as_record, lacking
from orchestrator.model import Measurement, Status

PENDING = "not yet measured"
LOST = "no result of it has come home"


@dataclass(frozen=True)
class Slot:
    """A place in a table. `model` is the device model, where the measurement itself does not know it; a slot that is
    `pending` has a record of status `lost` that is shown as nothing but its place."""

    measurement: Measurement
    model: str | None = None
    is_pending: bool = False


@dataclass(frozen=True)
class TakenUp:
    """What earlier runs had measured of what a run takes up: `cases` is the whole plan. `unread` names the first run of the
    chain that is not to be had, and `why`."""

    cases: Sequence[CaseRecord] = ()
    backends: Sequence[str] = ()
    baselines: Mapping[str, str | None] | None = None
    measurements: Sequence[Measurement] = ()
    unread: str | None = None


@dataclass(frozen=True)
class Plan:
    """What was asked for, by the run or by the first of those that it takes up, and in which order.
    `unread` is the run of which nothing is to be had."""

    cases: Mapping[str, int]
    payloads: Mapping[str, int]
    backends: list[str]
    baselines: Mapping[str, str | None]
    unread: str | None

    @classmethod
    def of(cls, document: RunDocument, before: TakenUp) -> Plan:
        """Of a run and what it takes up."""
        own = document.plan
        defaults = {**(before.baselines or {}), **own.baselines}
        cases = {case.id: case for case in (*before.cases, *own.cases)}
        backends = list(dict.fromkeys((*before.backends, *own.backends)))
        names = dict.fromkeys(case.payload for case in cases.values())
        return cls(
            cases={case_id: number for number, case_id in enumerate(cases)},
            payloads={name: number for number, name in enumerate(names)},
            backends=backends,
            baselines={c.id: c.baseline or defaults.get(c.payload) for c in cases.values()},
            unread=before.unread,
        )


def gaps(document: RunDocument, fold: Fold, state: str) -> tuple[Slot, ...]:
    """A slot for all that an open run has no result of. Once it is `lost`, nobody is measuring it."""
    wanted = lacking(expected(document, fold), fold)
    is_pending = state != "lost"
    reason = PENDING if is_pending else LOST
    return tuple(
        Slot(
            as_record(item, run_id=document.run_id, status=Status.LOST, reason=reason),
            item.models[0] if item.models else None,
            is_pending,
        )
        for item in wanted
    )


def taken_up(archive: Archive, document: RunDocument) -> TakenUp:
    """What the run had before it that this one resumes, and the run before that. Of each measurement the newest counts."""
    found = TakenUp()
    seen = {document.run_id}
    before = document.resumes
    while before is not None and before not in seen:
        seen.add(before)
        try:
            folder = archive.find(before)
            if folder.run_id != before:
                raise ArchiveError(f"there is no run {before}")
            parent = read_document(folder.run_json)
            measured = [m for m in read_results(folder) if m.status.is_result]
        except (ArchiveError, OSError):
            return TakenUp(found.cases, found.backends, found.baselines, found.measurements, unread=before)
        found = TakenUp(
            cases=parent.plan.cases,
            backends=parent.plan.backends,
            baselines=parent.plan.baselines,
            measurements=[
                *found.measurements,
                *not_among(measured, found.measurements, document.placement),
            ],
        )
        before = parent.resumes
    return found


def not_among(
    earlier: Iterable[Measurement], later: Iterable[Measurement], placement: str
) -> Iterator[Measurement]:
    """Those of `earlier` that were not measured again."""
    again = {_what(m, placement) for m in later}
    return (m for m in earlier if _what(m, placement) not in again)


def _what(m: Measurement, placement: str) -> tuple[str, str, str]:
    """All rows of a program are measured again together. A shard's case may have moved; its device model is the scope,
    which what was lost does not know."""
    device = m.device.uuid if m.device else ""
    scope = {"replicate": m.host, "replicate_devices": f"{m.host}\n{device}"}.get(
        placement, m.device.model if m.device else ""
    )
    return m.case_id, m.backend, scope
