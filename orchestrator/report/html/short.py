"""The first thing on a run's page: what each backend is worth over all its cases, in a table that is short enough to quote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import exp, log

from orchestrator.model import Measurement, Status, Verdict
from orchestrator.report import phrases
from orchestrator.report.build import PayloadTable, Report, Row
from orchestrator.report.html.blocks import Block, Cell, Column, Section, Table
from orchestrator.report.speedup import Speedup
from orchestrator.wording import ratio, visible

_LEAD = (
    "Over every case and place where both were measured: the baseline's time over the backend's, as a geometric mean, its least "
    "and its largest. Fastest counts the cases in which no other backend took less time; invalid times count for nothing. "
    "? and * mark means over suspect times and unchecked outputs."
)


def sections(report: Report) -> list[Section]:
    """A table for each payload and device model on which several backends have a time."""
    tables: list[Block] = [_table(table) for table in report.tables if _comparable(table) > 1]
    return [Section("In short", tables, _LEAD)] if tables else []


def _comparable(table: PayloadTable) -> int:
    return sum(any(map(_has_time, members)) for members in _columns(table))


def _columns(table: PayloadTable) -> list[list[Measurement | None]]:
    return [[row.cells[index].measurement for row in table.rows] for index in range(len(table.backends))]


def _has_time(m: Measurement | None) -> bool:
    return (
        m is not None and m.status is Status.OK and m.timing is not None and m.verdict is not Verdict.INVALID
    )


def _table(table: PayloadTable) -> Table:
    fastest = Counter(name for row in table.rows for name in _fastest(table.backends, row))
    rows: list[list[Cell | str | None]] = []
    for index, (backend, members) in enumerate(zip(table.backends, _columns(table), strict=True)):
        measured = sum(map(_has_time, members))
        is_baseline = backend == table.baseline
        speedups = [row.cells[index].speedup for row in table.rows]
        rows.append(
            [
                visible(f"{backend} (baseline)" if is_baseline else backend),
                *_over_baseline([one for one in speedups if isinstance(one, Speedup)]),
                Cell(f"{fastest[backend]} of {len(table.rows)}", fastest[backend]),
                Cell(f"{measured} of {len(table.rows)}", measured),
                _without(members),
            ]
        )
    columns = [
        Column("Backend"), Column("Speed-up", "heat"), Column("From – to", "number"), Column("Fastest in", "number"),
        Column("Measured", "number"), Column("The others", "prose"),
    ]  # fmt: skip
    kept = [i for i in range(len(columns)) if i in (0, 3, 4) or any(row[i] for row in rows)]
    over = f": speed-up over {visible(table.baseline or '')}" if 1 in kept else ""
    return Table(
        phrases.heading(table) + over,
        [columns[i] for i in kept],
        [[row[i] for i in kept] for row in rows],
        search=False,
    )


def _over_baseline(speedups: Sequence[Speedup]) -> tuple[Cell | None, Cell | None]:
    if not speedups:
        return None, None
    values = [one.value for one in speedups]
    mean = exp(sum(map(log, values)) / len(values))
    doubts = {doubt for one in speedups for doubt in one.doubts}
    marks = "".join(mark for doubt, mark in phrases.MARKS.items() if doubt in doubts)
    low, high = min(values), max(values)
    return Cell(ratio(mean) + marks, mean), Cell(f"{ratio(low)} – {ratio(high)}", high / low)


def _fastest(backends: Sequence[str], row: Row) -> list[str]:
    """The backends with the least time; none where they were not measured in the same way, or only one was."""
    found: dict[str, float] = {}
    ways = set()
    for backend, cell in zip(backends, row.cells, strict=True):
        m = cell.measurement
        if m is not None and m.timing is not None and _has_time(m):
            found[backend] = m.timing.median_us
            ways.add((m.timing.timer, m.timing.cache))
    if len(found) < 2 or len(ways) > 1:
        return []
    least = min(found.values())
    return [backend for backend, us in found.items() if us == least]


def _without(members: Sequence[Measurement | None]) -> str | None:
    """How the cases without a time ended."""
    ends = Counter(
        "not measured" if m is None else "invalid" if m.status is Status.OK and m.timing else m.status.value
        for m in members
        if not _has_time(m)
    )
    return ", ".join(f"{count} {end}" for end, count in ends.items()) or None
