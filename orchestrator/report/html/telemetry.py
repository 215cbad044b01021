"""What the devices told of themselves while they measured: clocks, power, temperature, throttling, company."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import datetime

from orchestrator.model import Measurement
from orchestrator.report.build import Report
from orchestrator.report.html.blocks import Cell, Chart, Column, Figure, Section, Table, Text
from orchestrator.report.html.comparison import place
from orchestrator.report.html.curves import thinned
from orchestrator.report.html.page import plain
from orchestrator.wording import number, visible

_QUANTITIES = (
    ("sm_clock_mhz", "SM clock", "MHz"), ("mem_clock_mhz", "Memory clock", "MHz"), ("power_w", "Power", "W"),
    ("temperature_c", "Temperature", "°C"),
)  # fmt: skip
DEVICES = 64


def sections(report: Report) -> list[Section]:
    """A chart of each quantity over time, and a table by device."""
    by_device: dict[str, list[Measurement]] = {}
    for m in report.measurements:
        if m.telemetry is not None:
            by_device.setdefault(place(m), []).append(m)
    if not any(_told(m) for members in by_device.values() for m in members):
        return [Section("Telemetry", [Text("No device reported clocks, power or temperature.")])]
    figures = {
        f"{title}, {unit}": figure
        for name, title, unit in _QUANTITIES
        if (figure := _figure(by_device, name, f"{title}, {unit}"))
    }
    blocks: list[Chart | Table] = [_table(by_device)]
    if figures:
        summary = "Each mark is a measurement: the median of what its device reported while it ran."
        blocks.insert(0, Chart("Clocks, power and temperature over the run", summary, figures, "Quantity"))
    return [Section("Telemetry", blocks)]


def _told(m: Measurement) -> bool:
    t = m.telemetry
    return t is not None and (
        any(getattr(t, name) is not None for name, _, _ in _QUANTITIES)
        or bool(t.throttle_reasons or t.foreign_pids)
    )


def _figure(by_device: dict[str, list[Measurement]], name: str, title: str) -> Figure | None:
    traces = []
    for series, (device, members) in enumerate(sorted(by_device.items())[:DEVICES]):
        points = sorted(
            (m.started_at, value)
            for m in members
            if (value := getattr(m.telemetry, name)) is not None and m.started_at and _is_time(m.started_at)
        )
        shown = thinned(points)
        if shown:
            traces.append(
                {
                    "type": "scatter", "mode": "markers", "name": plain(device, 40), "series": series,
                    "x": [when for when, _ in shown], "y": [value for _, value in shown], "hoverinfo": "text",
                    "hovertext": [plain(f"{device}: {number(value)} at {when}") for when, value in shown],
                    "marker": {"size": 6},
                }
            )  # fmt: skip
    if not traces:
        return None
    return Figure(
        traces, {"xaxis": {"type": "date"}, "yaxis": {"title": {"text": title}}, "showlegend": True}, 360
    )


def _table(by_device: dict[str, list[Measurement]]) -> Table:
    rows: list[list[Cell | str | None]] = []
    for device, members in sorted(by_device.items()):
        cells: list[Cell | str | None] = [device]
        for name, _, _ in _QUANTITIES:
            cells.append(_range([v for m in members if (v := getattr(m.telemetry, name)) is not None]))
        throttled = [m for m in members if m.telemetry and m.telemetry.throttle_reasons]
        reasons = sorted({r for m in throttled if m.telemetry for r in m.telemetry.throttle_reasons})
        cells.append(visible(f"{len(throttled)}: {', '.join(reasons)}") if throttled else "")
        foreign = sum(1 for m in members if m.telemetry and m.telemetry.foreign_pids)
        cells.append(Cell(str(foreign), foreign) if foreign else "")
        cells.append(Cell(str(len(members)), len(members)))
        rows.append(cells)
    columns = [
        Column("Device"),
        *(Column(f"{title}, {unit}", "number") for _, title, unit in _QUANTITIES),
        Column("Throttled measurements"),
        Column("Beside others' processes", "number"),
        Column("Measurements", "number"),
    ]
    return Table("Lowest, median and highest, by device", columns, rows, search=len(rows) > 10)


def _range(values: Sequence[float]) -> Cell | None:
    if not values:
        return None
    middle = statistics.median(values)
    if min(values) == max(values):
        return Cell(number(middle), middle)
    return Cell(f"{number(min(values))} – {number(middle)} – {number(max(values))}", middle)


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
