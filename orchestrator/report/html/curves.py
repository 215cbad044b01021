"""Charts over shapes: time and rate against M, and the roofline."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from orchestrator.model import Measurement, Status, Verdict
from orchestrator.report.build import Report
from orchestrator.report.ceilings import is_large
from orchestrator.report.families import Family, Point, families
from orchestrator.report.html.blocks import Block, Chart, Figure, Section
from orchestrator.report.html.page import plain
from orchestrator.report.ticks import log_ticks
from orchestrator.wording import number, visible

FIGURES = 60
POINTS = 2000
"""Of one backend in one chart: more would not be told apart, and take a browser seconds."""
_HARDLY = 1.05
_METRICS = (("time", "Time", "µs"), ("tflops", "TFLOP/s", "TFLOP/s"), ("gbps", "GB/s", "GB/s"))


def sections(report: Report) -> list[Section]:
    """Time and rates by family, and the roofline; those that the run has numbers for."""
    number_of = {name: i for i, name in enumerate(_backends(report))}
    charts: list[Block] = []
    for metric, title, unit in _METRICS:
        found = families(report, metric)
        if metric == "gbps" and len(charts) > 1:
            break  # where arithmetic counts, bandwidth stands in the roofline
        if found:
            charts.append(_chart(found, title, unit, number_of))
    made = [Section("Curves", charts, _LEAD)] if charts else []
    roofline = _roofline(report)
    if roofline:
        made.append(roofline)
    return made


_LEAD = (
    "Each line is a backend. The bars span the 20th to the 80th percentile of its calls; where several devices measured a "
    "shape, the line runs through their median and the bars span all of them. Invalid times are left out, suspect ones "
    "have hollow marks."
)


def _chart(found: Sequence[Family], title: str, unit: str, number_of: dict[str, int]) -> Chart:
    left_out = f"; {len(found) - FIGURES} more are in the comparison table" if len(found) > FIGURES else ""
    axes = ", ".join(dict.fromkeys(family.axis for family in found))
    return Chart(
        title=f"{title} against {visible(axes)}",
        summary=f"{len(found)} {'family' if len(found) == 1 else 'families'} of shapes, both axes logarithmic{left_out}.",
        figures={
            f"{i}. {visible(family.name)}" if len(found) > 1 else visible(family.name): _figure(family, unit, number_of)
            for i, family in enumerate(found[:FIGURES], 1)
        },
        choose="Shapes",
    )  # fmt: skip


def _figure(family: Family, unit: str, number_of: dict[str, int]) -> Figure:
    traces = [
        {
            "type": "scatter", "mode": "lines+markers", "name": plain(backend, 40), "series": number_of[backend],
            "x": [p.x for p in points], "y": [p.value for p in points], "hoverinfo": "text",
            "hovertext": [_hover(backend, family.axis, p, unit) for p in points],
            "error_y": {
                "type": "data", "symmetric": False, "array": [p.high - p.value for p in points],
                "arrayminus": [p.value - p.low for p in points],
            },
            "hollow": [p.doubtful for p in points],
        }
        for backend, curve in family.curves.items()
        if (points := thinned(curve))
    ]  # fmt: skip
    xs = sorted({p.x for curve in family.curves.values() for p in curve})
    ys = [edge for curve in family.curves.values() for p in curve for edge in (p.low, p.high)]
    return Figure(traces, {"xaxis": x_axis(family.axis, xs), "yaxis": log_axis(unit, ys), "showlegend": True})


def _hover(backend: str, axis: str, p: Point, unit: str) -> str:
    spread = f"{number(p.low)} to {number(p.high)}"
    devices = f", {p.devices} devices" if p.devices > 1 else ""
    doubt = ", suspect" if p.doubtful else ""
    return plain(f"{backend}, {axis}={p.x:g}: {number(p.value)} {unit} ({spread}{devices}{doubt})", 300)


def thinned(points: Sequence[Any]) -> Sequence[Any]:
    """At most `POINTS` of them, evenly."""
    step = math.ceil(len(points) / POINTS)
    return points if step < 2 else points[::step]


def x_axis(name: str, xs: Sequence[float]) -> dict[str, Any]:
    """An axis of a size: logarithmic, with its values as ticks while they are few."""
    axis: dict[str, Any] = {"title": {"text": plain(name)}}
    if all(x > 0 for x in xs):
        axis["type"] = "log"
        if len(xs) <= 12:
            axis |= {"tickmode": "array", "tickvals": list(xs), "ticktext": [f"{x:g}" for x in xs]}
        if len(set(xs)) == 1:
            axis["range"] = [math.log10(xs[0]) - 0.5, math.log10(xs[0]) + 0.5]
    return axis


def log_axis(title: str, values: Sequence[float]) -> dict[str, Any]:
    """A logarithmic axis of a positive quantity, with round ticks. What hardly differs is drawn as such, not from edge to edge."""
    low, high = min(values), max(values)
    axis: dict[str, Any] = {"type": "log", "title": {"text": plain(title)}, "tickmode": "array"}
    if high < low * _HARDLY:
        low, high = low / _HARDLY, high * _HARDLY
        axis["range"] = [math.log10(low), math.log10(high)]
    ticks = log_ticks(low, high)
    return axis | {"tickvals": ticks, "ticktext": [f"{tick:.6g}" for tick in ticks]}


def _roofline(report: Report) -> Section | None:
    by_model: dict[str, list[Measurement]] = {}
    for m in report.measurements:
        if m.status is Status.OK and m.verdict is not Verdict.INVALID and m.device is not None:
            by_model.setdefault(m.device.model, []).append(m)
    figures = {}
    for model, members in by_model.items():
        figure = _roofline_figure(members)
        if figure:
            figures[visible(model)] = figure
    if not figures:
        return None
    summary = (
        "Arithmetic done for each byte that must be moved, against the rate reached. Solid ceilings were measured in this run, "
        "by a copy and by a large product; dashed ones come from public specification tables, a secondary source."
    )
    return Section("Roofline", [Chart("Rate against arithmetic intensity", summary, figures, "Device model")])


def _roofline_figure(members: Sequence[Measurement]) -> Figure | None:
    points: dict[str, list[tuple[float, float, str]]] = {}
    several = len({m.payload for m in members if m.metrics.get("tflops")}) > 1
    for m in members:
        tflops, gbps = m.metrics.get("tflops"), m.metrics.get("gbps")
        if tflops and gbps and tflops > 0 and gbps > 0:
            name = f"{m.payload} {m.backend}" if several else m.backend
            text = plain(f"{name}, {m.label}: {number(tflops, 3)} TFLOP/s, {number(gbps, 3)} GB/s", 300)
            points.setdefault(name, []).append((1e3 * tflops / gbps, tflops, text))
    if not points:
        return None
    xs = [x for found in points.values() for x, _, _ in found]
    low, high = min(xs) / 2, max(xs) * 2
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter", "mode": "markers", "name": plain(name, 60), "series": series,
            "x": [x for x, _, _ in shown], "y": [y for _, y, _ in shown], "hoverinfo": "text",
            "hovertext": [text for _, _, text in shown],
        }
        for series, (name, found) in enumerate(points.items())
        if (shown := thinned(found))
    ]  # fmt: skip
    drawn = [y for found in points.values() for _, y, _ in found]
    for name, rate, is_bandwidth, dash in _ceilings(members):
        ys = [rate * low / 1e3, rate * high / 1e3] if is_bandwidth else [rate, rate]
        drawn += ys
        traces.append(
            {
                "type": "scatter", "mode": "lines", "name": plain(name, 80), "muted": True, "x": [low, high], "y": ys,
                "line": {"dash": dash, "width": 1.5}, "hoverinfo": "name",
            }
        )  # fmt: skip
    layout = {
        "xaxis": log_axis("FLOP for each byte", [low, high]),
        "yaxis": log_axis("TFLOP/s", drawn),
        "showlegend": True,
    }
    return Figure(traces, layout, 460)


def _ceilings(members: Sequence[Measurement]) -> Iterable[tuple[str, float, bool, str]]:
    """(name, rate in GB/s or TFLOP/s, whether it is a bandwidth, dash)."""
    moving = [m for m in members if _shows_bandwidth(m)]
    products: dict[str, list[Measurement]] = {}
    for m in members:
        if _shows_arithmetic(m):
            products.setdefault(str(m.extra.get("precision") or m.payload), []).append(m)
    if moving:
        yield _measured(moving, "gbps", "GB/s")
    for precision, found in products.items():
        yield _measured(found, "tflops", "TFLOP/s" if len(products) == 1 else f"TFLOP/s {visible(precision)}")
    peaks: dict[tuple[bool, float], dict[str, None]] = {}
    for m in members:
        for metric, fraction, is_bandwidth in (
            ("gbps", "bandwidth_fraction", True),
            ("tflops", "peak_fraction", False),
        ):
            value, share = m.metrics.get(metric), m.metrics.get(fraction)
            if value and share and value > 0 and share > 0:
                peaks.setdefault((is_bandwidth, float(f"{value / share:.4g}")), {})[m.payload] = None
    for (is_bandwidth, rate), payloads in peaks.items():
        what = "GB/s" if is_bandwidth else f"TFLOP/s ({', '.join(payloads)})"
        yield f"specification: {rate:g} {what}", rate, is_bandwidth, "dash"


def _measured(fit: Sequence[Measurement], metric: str, unit: str) -> tuple[str, float, bool, str]:
    """The highest of these rates, of a valid one if there is any, as in `_ceilings`."""
    best = max(fit, key=lambda m: (m.verdict is Verdict.VALID, m.metrics[metric] or 0))
    rate = best.metrics[metric] or 0
    doubt = "" if best.verdict is Verdict.VALID else ", suspect"
    name = f"measured: {number(rate, 3)} {unit} ({best.backend}, {best.label}{doubt})"
    return name, rate, metric == "gbps", "solid"


def _shows_bandwidth(m: Measurement) -> bool:
    """Whether it only moves data, and through memory: its rate is what the memory gives."""
    cold = m.timing is not None and m.timing.cache != "hot"
    return cold and (m.metrics.get("gbps") or 0) > 0 and not m.metrics.get("tflops")


def _shows_arithmetic(m: Measurement) -> bool:
    return is_large(m) and (m.metrics.get("tflops") or 0) > 0


def _backends(report: Report) -> list[str]:
    return list(
        dict.fromkeys(
            [
                *(b for table in report.tables for b in table.backends),
                *(m.backend for m in report.measurements),
            ]
        )
    )
