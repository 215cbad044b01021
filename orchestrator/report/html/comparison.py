"""The tables of a run's page: every measurement, speed-ups as a heat map, and what has no number."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from orchestrator.model import Measurement, Status, Verdict
from orchestrator.report import phrases
from orchestrator.report.build import PayloadTable, Report
from orchestrator.report.ceilings import Share
from orchestrator.report.html.blocks import Block, Cell, Column, Section, Table, Text, Tone
from orchestrator.report.speedup import NoSpeedup, Speedup
from orchestrator.report.whole import PENDING
from orchestrator.wording import assignments, number, ratio, share, visible

LOG_CHARACTERS = 16_000
"""Of one log's tail; its beginning is left out."""
ALL_LOGS_CHARACTERS = 4_000_000
"""Of all of them, so that a run of thousands of crashes is still a page that opens."""

_COLUMNS = (
    Column("Case"), Column("Backend", choices=True), Column("Median, µs", "number"), Column("Speed-up", "number"),
    Column("p20 – p80, µs", "number"), Column("Status", choices=True), Column("Place", choices=True),
    Column("Payload", choices=True), Column("Device model", choices=True), Column("TFLOP/s", "number"),
    Column("GB/s", "number"), Column("Of peak", "number"), Column("Of ceiling", "number"),
    Column("Remark", "prose"),
)  # fmt: skip
_SAID_ABOVE = frozenset({"Place", "Payload", "Device model"})
"""Where these are the same everywhere, the page's head has said so."""
_DETAILS = (
    "Case id", "Parameters", "Ran as", "Timer", "Cache", "Samples", "Relative error", "Median with warm caches, µs",
    "Of one eager call, µs", "Compiling, s", "Cosine", "Cosine to the float operands", "Largest error", "Attempt", "Started",
    "Took, s", "Telemetry", "Other metrics", "Environment",
)  # fmt: skip
_TONES: dict[Status, Tone] = {Status.OK: "good", Status.UNSUPPORTED: "muted", Status.LOST: "open", Status.CANCELLED: "open"}  # fmt: skip
_SHOWN_METRICS = frozenset({"tflops", "gbps", "peak_fraction"})


def sections(report: Report) -> list[Section]:
    """Comparison, speed-ups, and statuses."""
    return [_comparison(report), *_heat(report), *_statuses(report)]


def _comparison(report: Report) -> Section:
    logs = _Logs()
    rows = [
        _row(m, s, of_ceilings, logs)
        for m, s, of_ceilings in zip(report.measurements, report.speedups, report.shares, strict=True)
    ]
    rows += [_pending(m) for m in report.pending]
    before = zip(report.measured_before, report.speedups_before, strict=True)
    rows += [_row(m, s, None, logs, f"of run {m.run_id}") for m, s in before]
    columns = [*_COLUMNS, *(Column(title, detail=True) for title in _DETAILS)]
    columns += [Column("Measure it again", "code", detail=True), Column("Log", "log", detail=True)]
    kept = _used(columns, rows)
    table = Table(
        caption="Every measurement",
        columns=[columns[i] for i in kept],
        rows=[[row[i] for i in kept] for row in rows],
        empty="Nothing was measured.",
    )
    lead = (
        "Times are medians of one call, beside them the 20th and 80th percentiles; ? marks a suspect one, ! an invalid one. A speed-up is the baseline's time over the backend's, and is given only between "
        "times of the same thing: case, device model, timer and cache. Open a row for its parameters, accuracy, telemetry, "
        "log, and the command that measures it again."
    )
    return Section("Comparison", [table], lead)


def _used(columns: Sequence[Column], rows: Sequence[Sequence[Cell | str | None]]) -> list[int]:
    """The columns that say anything."""
    kept = []
    for index, column in enumerate(columns):
        values = {_shown(row[index]) for row in rows}
        if column.title in _SAID_ABOVE and len(values) < 2:
            continue
        if values - {""} or index == 0:
            kept.append(index)
    return kept


def _shown(cell: Cell | str | None) -> str:
    return cell.shown if isinstance(cell, Cell) else cell or ""


def _row(
    m: Measurement,
    speedup: Speedup | NoSpeedup | None,
    of_ceilings: Share | None,
    logs: _Logs,
    also: str = "",
) -> list[Cell | str | None]:
    timing, verdict = m.timing, m.verdict
    status = m.status.value if verdict in (None, Verdict.VALID) else f"ok, {verdict}"
    low, high = (timing.p20_us, timing.p80_us) if timing and m.status is Status.OK else (None, None)
    return [
        visible(f"{m.label} {assignments(m.row)}" if m.row else m.label),
        visible(m.backend),
        _median(m),
        _speedup(speedup),
        Cell(f"{number(low)} – {number(high)}", high - low) if low is not None and high is not None else None,
        Cell(status, None, _tone(m)),
        place(m),
        visible(m.payload),
        visible(m.device.model) if m.device else "",
        _number(m.metrics.get("tflops"), 3),
        _number(m.metrics.get("gbps"), 3),
        _share(m.metrics.get("peak_fraction")),
        _share(of_ceilings.fraction if of_ceilings else None),
        _remark(m, speedup, also),
        *_detail(m),
        visible(repeat_command(m)),
        logs.tail(m),
    ]


def _pending(m: Measurement) -> list[Cell | str | None]:
    """The row of what is not measured yet."""
    row: list[Cell | str | None] = [None] * (len(_COLUMNS) + len(_DETAILS) + 2)
    said = {"Case": m.label, "Backend": m.backend, "Payload": m.payload, "Remark": PENDING}
    for index, column in enumerate(_COLUMNS):
        if column.title in said:
            row[index] = visible(said[column.title])
        elif column.title == "Status":
            row[index] = Cell("…", None, "muted")
    return row


def _detail(m: Measurement) -> list[str | None]:
    t, a = m.timing, m.accuracy
    return [
        m.case_id,
        visible(assignments(m.params)),
        visible(m.resolved_backend) if m.resolved_backend not in (None, m.backend) else None,
        visible(t.timer) if t else None,
        visible(t.cache) if t and t.cache else None,
        f"{t.samples}" if t else None,
        share(t.rel_error) if t and t.rel_error is not None else None,
        number(t.hot_median_us) if t else None,
        number(t.host_us) if t else None,
        number(t.compile_s, 3) if t else None,
        f"{a.cosine:.8g}" if a and a.cosine is not None else None,
        f"{a.float_cosine:.8g}" if a and a.float_cosine is not None else None,
        number(a.max_abs_error) if a else None,
        f"{m.attempt}" if m.attempt > 1 else None,
        visible(m.started_at or ""),
        number(m.duration_s, 3),
        _telemetry(m),
        visible(
            ", ".join(
                f"{k} {v if isinstance(v, int) else number(v)}"
                for k, v in m.metrics.items()
                if k not in _SHOWN_METRICS
            ),
            2000,
        ),
        m.environment_id,
    ]


def place(m: Measurement) -> str:
    """`host:index`."""
    return visible(f"{m.host}:{m.device.index}" if m.device else m.host)


def repeat_command(m: Measurement) -> str:
    """The command that measures it again on its host and says whether the number came back."""
    return shlex.join(["farbench", "repro", m.run_id, m.case_id, "--backend", m.backend, "--run"])


def _telemetry(m: Measurement) -> str:
    t = m.telemetry
    if t is None:
        return ""
    told = [
        f"{name} {number(value)} {unit}"
        for name, value, unit in (
            ("SM clock", t.sm_clock_mhz, "MHz"), ("memory clock", t.mem_clock_mhz, "MHz"), ("power", t.power_w, "W"),
            ("temperature", t.temperature_c, "°C"),
        )
        if value is not None
    ]  # fmt: skip
    if t.throttle_reasons:
        told.append("throttled by " + ", ".join(t.throttle_reasons))
    if t.foreign_pids:
        told.append(f"{len(t.foreign_pids)} processes of others")
    return visible(", ".join(told))


def _remark(m: Measurement, speedup: Speedup | NoSpeedup | None, also: str) -> str:
    told = [also, ", ".join(m.reasons), m.reason or ""]
    if isinstance(speedup, Speedup) and speedup.doubts:
        told.append("speed-up " + ", ".join(speedup.doubts))
    elif isinstance(speedup, NoSpeedup) and not speedup.comparable:
        told.append(f"no speed-up: {speedup.why}")
    return visible("; ".join(part.strip() for part in told if part.strip()), 2000)


def _speedup(speedup: Speedup | NoSpeedup | None) -> Cell | None:
    if not isinstance(speedup, Speedup):
        return None
    marks = "".join(phrases.MARKS[doubt] for doubt in speedup.doubts)
    return Cell(ratio(speedup.value) + marks, speedup.value)


def _median(m: Measurement) -> Cell | None:
    if m.timing is None or m.status is not Status.OK:
        return None
    return Cell(number(m.timing.median_us) + phrases.flag(m), m.timing.median_us)


def _tone(m: Measurement) -> Tone:
    of_verdict: dict[Verdict | None, Tone] = {Verdict.SUSPECT: "suspect", Verdict.INVALID: "invalid"}
    return of_verdict.get(m.verdict) or _TONES.get(m.status, "bad")


def _number(value: float | None, digits: int = 4) -> Cell | None:
    return None if value is None else Cell(number(value, digits), value)


def _share(value: float | None) -> Cell | None:
    return None if value is None else Cell(share(value), value)


class _Logs:
    """Tails of logs, as many as fit."""

    def __init__(self) -> None:
        self._left = ALL_LOGS_CHARACTERS

    def tail(self, m: Measurement) -> str | None:
        if not m.log_tail or m.status in (Status.OK, Status.UNSUPPORTED):
            return None
        if self._left <= 0:
            return "left out of this page; `farbench report --format json` has it"
        text = m.log_tail[-LOG_CHARACTERS:]
        text = "\n".join(visible(line) for line in text.replace("\r\n", "\n").split("\n"))
        self._left -= len(text)
        return text if len(m.log_tail) <= LOG_CHARACTERS else "…\n" + text


def _heat(report: Report) -> list[Section]:
    tables: list[Block] = [_heat_table(t) for t in report.tables if _has_speedup(t)]
    if not tables:
        return []
    lead = (
        "Shapes down, backends across: the baseline's time over the backend's. Blue is faster than the baseline, orange "
        "slower, deeper the further from it. ? and * mark speed-ups between suspect times and unchecked outputs."
    )
    return [Section("Speed-ups", tables, lead)]


def _has_speedup(table: PayloadTable) -> bool:
    return any(isinstance(cell.speedup, Speedup) for row in table.rows for cell in row.cells)


def _heat_table(table: PayloadTable) -> Table:
    rows: list[list[Cell | str | None]] = []
    for index, row in enumerate(table.rows):
        cells: list[Cell | str | None] = [phrases.row_label(table, index)]
        for backend, cell in zip(table.backends, row.cells, strict=True):
            said = phrases.of_cell(cell)
            if isinstance(cell.speedup, Speedup):
                cells.append(_speedup(cell.speedup))
            elif backend == table.baseline and said.median:
                cells.append(Cell(f"{said.median} µs{said.flag}"))
            else:
                cells.append(Cell(said.word or "–", None, "muted"))
        rows.append(cells)
    heads = [f"{b} (baseline)" if b == table.baseline else b for b in table.backends]
    return Table(
        caption=f"{phrases.heading(table)}: speed-up over {visible(table.baseline or '')}",
        columns=[Column("Case"), *(Column(visible(head), "heat") for head in heads)],
        rows=rows,
        first=40,
    )


def _statuses(report: Report) -> list[Section]:
    """Everything without a number that can be trusted, gathered by status, reason and backend."""
    found: dict[tuple[str, str, str], list[Measurement]] = {}
    for m in report.measurements:
        if m.status is Status.OK and m.verdict is Verdict.VALID:
            continue
        status = m.status.value if m.verdict is None else f"ok, {m.verdict}"
        reason = "; ".join(part for part in (", ".join(m.reasons), m.reason or "") if part)
        found.setdefault((status, reason or "no reason given", m.backend), []).append(m)
    if not found:
        return [Section("Statuses", [Text("Every measurement is ok and valid.")])]
    logs = _Logs()
    rows = [
        [
            Cell(status, None, _tone(members[0])),
            visible(backend),
            Cell(f"{len(members)}", len(members)),
            visible(reason, 2000),
            visible(", ".join(dict.fromkeys(place(m) for m in members)), 400),
            visible(", ".join(dict.fromkeys(m.label for m in members)), 2000),
            visible(repeat_command(members[0])),
            next((tail for m in members if (tail := logs.tail(m))), None),
        ]
        for (status, reason, backend), members in found.items()
    ]
    columns = [
        Column("Status", choices=True), Column("Backend", choices=True), Column("Measurements", "number"), Column("Reason", "prose"),
        Column("Places", "prose"), Column("Cases", detail=True), Column("Measure the first again", "code", detail=True),
        Column("Log of the first", "log", detail=True),
    ]  # fmt: skip
    table = Table("Measurements without a valid number, by reason", columns, rows)
    return [Section("Statuses", [table], "Open a row for the cases it stands for and the end of the log.")]
