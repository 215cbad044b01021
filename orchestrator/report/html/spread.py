"""How far the devices of one model differ, within a host and across hosts."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.identity import canonical_row
from orchestrator.model import Measurement, Status, Verdict
from orchestrator.report.build import Report
from orchestrator.report.html.blocks import Cell, Chart, Column, Figure, Section, Table, Text
from orchestrator.report.html.comparison import place
from orchestrator.report.html.page import plain
from orchestrator.wording import assignments, number, visible

DEVICES = 256
_ROWS = 2000


@dataclass(frozen=True)
class Shared:
    """Times of one thing (case, row, backend, timer, cache) on several devices of one model: device → median in µs."""

    first: Measurement
    times: Mapping[tuple[str, str], Measurement]

    @property
    def middle(self) -> float:
        """The median over devices, in µs."""
        return statistics.median(_us(m) for m in self.times.values())

    def hosts(self) -> dict[str, list[float]]:
        """The devices' times by host."""
        found: dict[str, list[float]] = {}
        for (host, _), m in self.times.items():
            found.setdefault(host, []).append(_us(m))
        return found

    def within(self) -> float | None:
        """The widest (max - min) / median of a host with several devices."""
        return max((_range(times) for times in self.hosts().values() if len(times) > 1), default=None)

    def across(self) -> float | None:
        """(max - min) / median of the hosts' medians, where there are several hosts."""
        medians = [statistics.median(times) for times in self.hosts().values()]
        return _range(medians) if len(medians) > 1 else None


def shared(report: Report) -> list[Shared]:
    """What several devices measured, in the order of the run; invalid times are left out."""
    found: dict[tuple[str, ...], dict[tuple[str, str], Measurement]] = {}
    for m in report.measurements:
        if m.status is Status.OK and m.verdict is not Verdict.INVALID and m.timing and m.device:
            row = canonical_row(m.row)
            key = (m.case_id, row, m.backend, m.device.model, m.timing.timer, m.timing.cache or "")
            found.setdefault(key, {}).setdefault((m.host, m.device.uuid), m)
    return [Shared(next(iter(times.values())), times) for times in found.values() if len(times) > 1]


def sections(report: Report) -> list[Section]:
    """The devices' deviations as a chart, and the widest spreads as a table."""
    found = shared(report)
    if not found:
        told = "No case was measured on several devices of one model. placement: replicate_devices in the sweep does that."
        return [Section("Devices", [Text(told)])]
    lead = (
        "The same cases on devices of one model: how far each device's time lies from the median over all of them. A box "
        "that sits apart is a device that is slower or faster than its like."
    )
    return [Section("Devices", [_chart(found), _table(found)], lead)]


def _chart(found: Sequence[Shared]) -> Chart:
    figures: dict[str, Figure] = {}
    for model in dict.fromkeys(s.first.device.model for s in found if s.first.device):
        deviations: dict[tuple[str, str], list[float]] = {}
        names: dict[tuple[str, str], str] = {}
        for s in found:
            if s.first.device is None or s.first.device.model != model:
                continue
            for device, m in s.times.items():
                deviations.setdefault(device, []).append(100 * (_us(m) / s.middle - 1))
                names[device] = place(m)
        figures[visible(model)] = _figure(deviations, names)
    return Chart(
        "Device to device",
        "Deviation of each device's times from the median over the devices, in per cent; a box a device, a colour a host.",
        figures,
        "Device model",
    )


def _figure(
    deviations: Mapping[tuple[str, str], Sequence[float]], names: Mapping[tuple[str, str], str]
) -> Figure:
    devices = sorted(deviations, key=lambda d: (d[0], names[d]))[:DEVICES]
    hosts = list(dict.fromkeys(host for host, _ in devices))
    traces = [
        {
            "type": "box", "name": plain(names[device], 40), "series": hosts.index(device[0]), "x0": position,
            "y": list(deviations[device]), "boxpoints": "outliers", "showlegend": False, "hoverinfo": "y+name", "width": 0.6,
        }
        for position, device in enumerate(devices)
    ]  # fmt: skip
    x_axis = {
        "tickmode": "array",
        "tickvals": list(range(len(devices))),
        "ticktext": [plain(names[device], 24) for device in devices],
        "range": [-0.6, len(devices) - 0.4],
    }
    return Figure(
        traces, {"xaxis": x_axis, "yaxis": {"title": {"text": "% of the median"}, "ticksuffix": "%"}}, 380
    )


def _table(found: Sequence[Shared]) -> Table:
    rows: list[list[Cell | str | None]] = []
    for s in sorted(found, key=lambda s: -_range([_us(m) for m in s.times.values()]))[:_ROWS]:
        fastest, slowest = (pick(s.times.values(), key=_us) for pick in (min, max))
        label = f"{s.first.label} {assignments(s.first.row)}" if s.first.row else s.first.label
        rows.append(
            [
                visible(label, 200),
                visible(s.first.backend),
                Cell(f"{len(s.times)}", len(s.times)),
                _us_cell(fastest),
                place(fastest),
                _us_cell(slowest),
                place(slowest),
                _percent(s.within()),
                _percent(s.across()),
            ]
        )
    columns = [
        Column("Case"), Column("Backend", choices=True), Column("Devices", "number"), Column("Fastest, µs", "number"),
        Column("on"), Column("Slowest, µs", "number"), Column("on"), Column("Range within a host", "number"),
        Column("Range across hosts", "number"),
    ]  # fmt: skip
    return Table("Spread over devices, widest first", columns, rows, first=20)


def _us(m: Measurement) -> float:
    return m.timing.median_us if m.timing else 0.0


def _us_cell(m: Measurement) -> Cell:
    return Cell(number(_us(m)), _us(m))


def _range(times: Sequence[float]) -> float:
    return (max(times) - min(times)) / statistics.median(times)


def _percent(value: float | None) -> Cell | None:
    return None if value is None else Cell(f"{100 * value:.2f}%", value)
