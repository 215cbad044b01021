"""The words of a report that its table and its Markdown share: what a cell says, and the lines around the tables."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.archive.document import HostRecord
from orchestrator.model import Measurement, Status, Verdict
from orchestrator.report.build import Cell, PayloadTable, Report
from orchestrator.report.ceilings import MEMORY, Share
from orchestrator.report.speedup import Speedup
from orchestrator.wording import assignments, number, ratio, share, tally, visible, without_name

LABEL_LENGTH = 120
MARKS = {"suspect": "?", "unchecked": "*"}
_METRICS_SHOWN = 2
_HOSTS_NAMED = 6
_CEILINGS_NAMED = 6
_LEGEND = {
    "suspect": "? suspect: one of the two times may not be what it seems",
    "unchecked": "* unchecked: nothing compared the outputs of the two",
}
STATUS_ORDER = tuple(Status)
VERDICT_ORDER = tuple(Verdict)


@dataclass(frozen=True)
class Phrases:
    """What is said of one measurement: `word` stands where there is no number, `median` is in µs, `flag` is its
    verdict (`?` suspect, `!` invalid), `marks` are the doubts about the speed-up."""

    median: str = ""
    flag: str = ""
    speedup: str = ""
    marks: str = ""
    rate: str = ""
    peak: str = ""
    word: str = ""
    note: str = ""


def of_cell(cell: Cell) -> Phrases:
    """The phrases of a cell. A measurement that is not ok shows no number: it would be one of something else."""
    note = f"[{cell.note}]" if cell.note else ""
    measurement = cell.measurement
    if measurement is None:
        return Phrases(word="…" if cell.pending else "–", note=note)
    if measurement.status is not Status.OK:
        return Phrases(word=measurement.status.value, note=note)
    mark = flag(measurement)
    if measurement.timing is None:
        return Phrases(word=f"ok{mark}", rate=_metrics(measurement), note=note)
    speedup, marks = "", ""
    if isinstance(cell.speedup, Speedup):
        speedup = ratio(cell.speedup.value)
        marks = "".join(MARKS[doubt] for doubt in cell.speedup.doubts)
    return Phrases(
        median=number(measurement.timing.median_us),
        flag=mark,
        speedup=speedup,
        marks=marks,
        rate=_rate(measurement),
        peak=_shares(measurement, cell.share),
        note=note,
    )


def flag(measurement: Measurement) -> str:
    """The mark of its verdict."""
    return {Verdict.SUSPECT: "?", Verdict.INVALID: "!"}.get(measurement.verdict or Verdict.VALID, "")


def _shares(measurement: Measurement, of_ceilings: Share | None) -> str:
    """Of the peak in a specification, and of what was measured on the device: `23% / 41%`."""
    peak = measurement.metrics.get("peak_fraction")
    if of_ceilings is None:
        return "" if peak is None else share(peak)
    return f"{'–' if peak is None else share(peak)} / {share(of_ceilings.fraction)}"


def _rate(measurement: Measurement) -> str:
    for metric, unit in (("tflops", "TFLOP/s"), ("gbps", "GB/s")):
        value = measurement.metrics.get(metric)
        if value is not None:
            return f"{number(value, 3)} {unit}"
    return ""


def _metrics(measurement: Measurement) -> str:
    known = [(name, value) for name, value in measurement.metrics.items() if value is not None]
    return ", ".join(
        f"{visible(name, 24)} {value if isinstance(value, int) else number(value)}"
        for name, value in known[:_METRICS_SHOWN]
    )


def row_label(table: PayloadTable, number_of_row: int) -> str:
    """A row's label, with what tells it from others of its case and, where there are several, its place."""
    row = table.rows[number_of_row]
    apart = [assignments(row.row)] if row.row else []
    if table.several_places and row.places:
        apart.append("@ " + ", ".join(row.places))
    ending = visible(" ".join(apart), LABEL_LENGTH // 2)
    # A long label is cut before what tells the rows apart.
    label = visible(row.label, LABEL_LENGTH - len(ending) - bool(ending))
    return f"{label} {ending}" if ending else label


def title(report: Report) -> str:
    """Sweep, run, state and date."""
    began = (report.run.started_at or "").replace("T", " ")[:16]
    parts = [report.run.sweep.name, f"run {report.run.run_id}", report.state, f"{began} UTC" if began else ""]
    return visible(" · ".join(part for part in parts if part))


def summary(report: Report) -> list[str]:
    """What a reader must know before any number: how many measurements ended how, and which hosts took part."""
    counts, expected = report.counts, report.run.plan.expected
    total = f"{counts.total} measurement{'' if counts.total == 1 else 's'}"
    is_open = report.state in ("running", "detached")
    if is_open:
        known = expected is not None and counts.total <= expected
        total = f"{counts.total} of {expected} measurements so far" if known else f"{total} so far"
    statuses = tally(counts.statuses, STATUS_ORDER)
    verdicts = tally(counts.verdicts, VERDICT_ORDER)
    if verdicts and set(counts.verdicts) != {"valid"}:
        statuses = statuses.replace(
            f"{counts.statuses['ok']} ok", f"{counts.statuses['ok']} ok ({verdicts})", 1
        )
    lines = [f"{total}: {statuses}" if statuses else total if is_open else f"{total}: nothing was measured"]
    if counts.total and not counts.statuses.get("ok"):
        lines.append("Not one measurement is ok.")
    lines += _hosts(report)
    lines += _usage(report)
    if report.run.resumes:
        lines.append(f"takes up what run {report.run.resumes} left" + _also(report))
    return [visible(line) for line in lines]


def _also(report: Report) -> str:
    told = ", of which the tables have the other results, too" if report.measured_before else ""
    if report.unread_before == report.run.resumes:
        return ", which is not in this archive"
    return told + (f"; run {report.unread_before} is not in this archive" if report.unread_before else "")


def _hosts(report: Report) -> list[str]:
    devices: dict[str, dict[str, str]] = {
        name: {device.uuid: device.model for device in host.devices}
        for name, host in report.run.hosts.items()
    }
    for m in report.measurements:
        seen = devices.setdefault(m.host, {})
        if m.device is not None:
            seen.setdefault(m.device.uuid, m.device.model)
    alike: dict[str, list[str]] = {}
    for host, models in devices.items():
        told = _described(host, report.run.hosts.get(host), list(models.values()))
        alike.setdefault(told, []).append(host)
    lines = []
    for what, hosts in alike.items():
        more = f" and {len(hosts) - _HOSTS_NAMED} more" if len(hosts) > _HOSTS_NAMED else ""
        names = ", ".join(hosts[:_HOSTS_NAMED]) + more
        lines.append(
            f"{'host' if len(hosts) == 1 else f'{len(hosts)} hosts'} {names}" + (f": {what}" if what else "")
        )
    return lines


def _usage(report: Report) -> list[str]:
    """How well the devices were used, which is what farbench itself costs."""
    shares = {
        name: host.busy_fraction for name, host in report.run.hosts.items() if host.busy_fraction is not None
    }
    if not shares:
        return []
    what = "measuring, checking or compiling"
    if len(shares) == 1:
        ((host, busy),) = shares.items()
        whose = "its devices" if len(report.run.hosts) == 1 else f"devices of {host}"
        return [f"{whose} were {what} {share(busy)} of the time after the first import"]
    low, high = share(min(shares.values())), share(max(shares.values()))
    return [f"devices were {what} {low} to {high} of the time after the first import, by host"]


def _described(host: str, told: HostRecord | None, models: list[str]) -> str:
    counted = ((models.count(model), model) for model in dict.fromkeys(models))
    what = ", ".join(f"{count} × {model}" if count > 1 else model for count, model in counted)
    if told is None or told.state in (None, "ok"):
        return what
    error = without_name(host, told.error or "").split("\n", 1)[0]
    state = f"{told.state}: {error}" if error else str(told.state)
    return f"{what} ({state})" if what else state


def heading(table: PayloadTable) -> str:
    """Payload and device model."""
    nothing_yet = all(cell.measurement is None for cell in _cells(table))
    unknown = "a device that is not known yet" if nothing_yet else "no device"
    return visible(f"{table.payload} on {table.device_model or unknown}")


def conditions(table: PayloadTable) -> str:
    """The unit, and how the times were taken."""
    parts = ["median of one call in µs"]
    if table.timers:
        parts.append(f"timer {' or '.join(table.timers)}")
    if table.caches:
        parts.append(f"cache {' or '.join(table.caches)}")
    if table.baseline and any(cell.speedup is not None for cell in _cells(table)):
        parts.append(f"speed-up over {table.baseline}")
    if any(cell.share for cell in _cells(table)):
        parts.append("% of the device's peak / of the ceilings measured on it")
    elif any(phrase.peak for phrase in map(of_cell, _cells(table))):
        parts.append("% of the device's peak")
    return visible(" · ".join(parts))


def _cells(table: PayloadTable) -> list[Cell]:
    return [cell for row in table.rows for cell in row.cells]


def legend(table: PayloadTable) -> list[str]:
    """Footnotes, what the marks mean, and what the backends resolved to."""
    lines = [f"[{number_}] {visible(note)}" for number_, note in enumerate(table.notes, 1)]
    lines += [_LEGEND[doubt] for doubt in MARKS if doubt in table.doubts]
    lines += [visible(f"{backend} ran as {name}") for backend, name in table.resolved.items()]
    return lines + _ceilings(table)


def _ceilings(table: PayloadTable) -> list[str]:
    """A line for each ceiling that shares of the table are of, while they are few."""
    found = dict.fromkeys(c for cell in _cells(table) if cell.share for c in _told(cell))
    told = [visible(line) for line in found]
    if len(told) > _CEILINGS_NAMED:
        return [f"ceilings of {len(told)} kinds and devices: `report --format json` names each"]
    return told


def _told(cell: Cell) -> list[str]:
    assert cell.share is not None
    lines = []
    for ceiling in cell.share.ceilings:
        by = ceiling.by
        rate = f"{number(ceiling.rate, 3)} {'GB/s' if ceiling.kind == MEMORY else 'TFLOP/s'}"
        of_run = cell.measurement is not None and cell.measurement.run_id == by.run_id
        run = "" if of_run else f", run {by.run_id}"
        device = f" of {by.host}:{by.device.index}" if by.device else ""
        lines.append(
            f"{ceiling.kind} ceiling{device}: {rate} ({by.payload} {by.backend}, {by.label[: LABEL_LENGTH // 2]}{run})"
        )
    return lines
