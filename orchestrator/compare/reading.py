"""The sides of a comparison, and what went before, from the archive."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.archive import (
    Archive,
    RunDocument,
    RunFolder,
    fold_run,
    read_document,
    read_measurements,
    read_results,
)
from orchestrator.archive.columns import text
from orchestrator.compare.values import PastTime, Subject
from orchestrator.identity import canonical_row
from orchestrator.model import Measurement, hardware

NEWEST_RUNS = 40
"""How many earlier times of one thing on one device count: older ones are of another day's machine."""


@dataclass(frozen=True)
class Side:
    """A run, its measurements, and the environments that they were taken in."""

    document: RunDocument
    measurements: tuple[Measurement, ...]

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.document.run_id


@dataclass(frozen=True)
class Past:
    """Earlier times, oldest first, and what had to be left out."""

    times: tuple[PastTime, ...] = ()
    warnings: tuple[str, ...] = field(default_factory=tuple)


def read_side(archive: Archive, folder: RunFolder) -> Side:
    """A run as it is now, open or committed. Raises `ArchiveError`."""
    try:
        return _read(folder)
    except FileNotFoundError:
        return _read(archive.find(folder.run_id))  # it was committed while we read


def _read(folder: RunFolder) -> Side:
    document = read_document(folder.run_json)
    if folder.is_committed:
        return Side(document, tuple(read_results(folder)))
    fold = fold_run(folder, document)
    document.environments = {**document.environments, **fold.environments}
    return Side(document, tuple(read_measurements(folder, fold, document)))


def read_past(
    archive: Archive,
    *,
    case_ids: Collection[str] | None = None,
    before: str | None = None,
    without: Iterable[str] = (),
    newest: int = NEWEST_RUNS,
) -> Past:
    """The times of the archive's runs that count as noise or trend: ok, with a time, not invalid.

    `case_ids` and run ids (`before`: only earlier runs; `without`: not these) narrow it down. Of each subject on each
    device the `newest` are kept. Runs are in the order in which they began.
    """
    from orchestrator.archive.query import query  # DuckDB takes a moment to load

    conditions = ["status = 'ok'", "verdict <> 'invalid'", "timing.median_us > 0"]
    if case_ids is not None:
        conditions.append(f"case_id IN ({_texts(case_ids)})")
    if before is not None:
        conditions.append(f"run_id < {text(before)}")
    excluded = tuple(without)
    if excluded:
        conditions.append(f"run_id NOT IN ({_texts(excluded)})")
    answer = query(
        archive, _PAST.format(conditions=" AND ".join(conditions), newest=int(newest), ranks=_RANKS)
    )
    return Past(tuple(map(_past_time, answer.rows)), tuple(answer.warnings))


def read_cases(archive: Archive) -> tuple[tuple[str, str], ...]:
    """(id, label) of every case that any run of the archive has a time of."""
    from orchestrator.archive.query import query

    sql = "SELECT DISTINCT case_id, label FROM results WHERE timing IS NOT NULL ORDER BY ALL"
    return tuple((str(case_id), str(label)) for case_id, label in query(archive, sql).rows)


# How many devices worked together, as `Measurement.ranks` has it; `extra` is JSON, as text, and may have anything within.
_RANKS = """greatest(1, coalesce(TRY_CAST(
    CASE WHEN json_type(extra, '$.ranks') IN ('UBIGINT', 'BIGINT') THEN json_extract_string(extra, '$.ranks') END
AS INTEGER), 1))"""

_PAST = """
SELECT run_id, case_id, CAST(row AS VARCHAR), backend, device.name, timing.cache, timing.timer, host, device.uuid,
       timing.median_us, verdict = 'valid', reasons, label, payload, strftime(started_at, '%Y-%m-%dT%H:%M:%SZ'), {ranks}
FROM results
WHERE {conditions}
QUALIFY row_number() OVER (
    PARTITION BY case_id, CAST(row AS VARCHAR), backend, device, timing.cache, timing.timer, host, {ranks}
    ORDER BY run_id DESC
) <= {newest}
ORDER BY run_id, case_id, backend, host
"""


def _texts(values: Iterable[str]) -> str:
    return ", ".join(text(value) for value in values) or "''"


def _past_time(row: Sequence[Any]) -> PastTime:
    (
        run_id,
        case_id,
        row_text,
        backend,
        model,
        cache,
        timer,
        host,
        uuid,
        median_us,
        is_valid,
        reasons,
        *rest,
    ) = row
    label, payload, started_at, ranks = rest
    return PastTime(
        run_id=run_id,
        subject=Subject(
            case_id=case_id,
            row=canonical_row(json.loads(row_text) if row_text else None),
            backend=backend,
            device_model=hardware(model or "", ranks),
            cache=cache,
            timer=timer,
        ),
        host=host,
        device_uuid=uuid or "",
        median_us=float(median_us),
        is_valid=bool(is_valid),
        reasons=tuple(reasons or ()),
        label=label,
        payload=payload,
        started_at=started_at,
    )
