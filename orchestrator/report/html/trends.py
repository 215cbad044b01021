"""The page of a history: the time of a case from run to run, and where it changed for good."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.compare.trend import History, Series
from orchestrator.compare.values import PastTime
from orchestrator.report.html.blocks import Cell, Chart, Column, Figure, Page, Section, Table, Text
from orchestrator.report.html.page import plain, to_html
from orchestrator.wording import number, visible

CHARTS = 60


def render(history: History, title: str) -> str:
    """The history as one HTML file."""
    return to_html(page(history, title))


def page(history: History, title: str) -> Page:
    """What is on it."""
    runs = len({point.run_id for series in history.series for point in series.points})
    changes = sum(len(series.changes) for series in history.series)
    summary = [
        f"{len(history.series)} series (a case, a backend, a device each) over {runs} {'run' if runs == 1 else 'runs'}",
        f"{changes} lasting {'change' if changes == 1 else 'changes'} of level",
        *(visible(warning, 1000) for warning in history.warnings),
    ]
    sections = [_trend(history.series), _changes(history.series), _every_time(history.series)]
    return Page(visible(title, 200), summary, sections)


def _trend(found: Sequence[Series]) -> Section:
    # Those that changed first: they are what somebody looks for.
    ordered = sorted(found, key=lambda s: -max((abs(c.change) for c in s.changes), default=0.0))[:CHARTS]
    figures = {f"{i}. {_name(series)}": _figure(series) for i, series in enumerate(ordered, 1)}
    more = f" The {CHARTS} with the largest changes are drawn." if len(found) > CHARTS else ""
    chart = Chart(
        "Time from run to run",
        "Each mark is a run, hollow where its time was suspect; the line is the level, and its steps are lasting changes." + more,
        figures,
        "Series",
    )  # fmt: skip
    return Section("Trend", [chart])


def _figure(series: Series) -> Figure:
    points = series.points
    places = list(range(len(points)))
    levels = _levels(series)
    traces = [
        {
            "type": "scatter", "mode": "markers", "name": "runs", "series": 0, "x": places,
            "y": [p.median_us for p in points], "hollow": [not p.is_valid for p in points], "hoverinfo": "text",
            "hovertext": [_hover(p) for p in points],
        },
        {
            "type": "scatter", "mode": "lines", "name": "level", "series": 1, "x": places, "y": levels,
            "line": {"shape": "hv", "width": 2}, "hoverinfo": "skip",
        },
    ]  # fmt: skip
    step = max(1, len(points) // 8)
    layout = {
        "xaxis": {
            "tickmode": "array", "tickvals": places[::step],
            "ticktext": [plain((p.started_at or p.run_id)[:10], 12) for p in points[::step]],
            "range": [-0.5, len(points) - 0.5],
        },
        "yaxis": {"title": {"text": "µs"}, "range": _range([p.median_us for p in points] + levels), "exponentformat": "none"},
        "showlegend": True,
    }  # fmt: skip
    return Figure(traces, layout, 380)


def _range(values: Sequence[float]) -> list[float]:
    """Of an axis: no less than 1% to both sides, so that what stays the same looks so."""
    low, high = min(values), max(values)
    room = max(0.06 * (high - low), 0.01 * high)
    return [low - room, high + room]


def _levels(series: Series) -> list[float]:
    """The level at each point: before the first change it is what that change began from."""
    level = series.changes[0].before_us if series.changes else series.level_us
    after = {change.run_id: change.after_us for change in series.changes}
    levels = []
    for point in series.points:
        level = after.get(point.run_id, level)
        levels.append(level)
    return levels


def _hover(p: PastTime) -> str:
    doubt = "" if p.is_valid else ", suspect"
    return plain(f"{number(p.median_us)} µs, run {p.run_id}, {p.started_at or ''}{doubt}", 200)


def _changes(found: Sequence[Series]) -> Section:
    rows: list[list[Cell | str | None]] = [
        [
            visible(s.label, 200),
            visible(s.subject.backend),
            visible(s.host),
            Cell(f"{100 * c.change:+.2f}%", c.change, "bad" if c.change > 0 else "good"),
            Cell(number(c.before_us), c.before_us),
            Cell(number(c.after_us), c.after_us),
            visible(c.run_id),
            visible(c.started_at or ""),
            visible(s.device_uuid),
        ]
        for s in found
        for c in s.changes
    ]
    if not rows:
        return Section("Changes", [Text("No series changed its level for good.")])
    columns = [
        Column("Case"), Column("Backend", choices=True), Column("Host", choices=True), Column("Change", "number"),
        Column("Before, µs", "number"), Column("After, µs", "number"), Column("From run"), Column("Started"), Column("Device", detail=True),
    ]  # fmt: skip
    return Section("Changes", [Table("Lasting changes of level; above zero is slower", columns, rows)])


def _every_time(found: Sequence[Series]) -> Section:
    rows: list[list[Cell | str | None]] = [
        [
            visible(s.label, 200),
            visible(s.subject.backend),
            visible(s.host),
            visible(p.run_id),
            visible(p.started_at or ""),
            Cell(number(p.median_us), p.median_us),
            Cell("valid", None, "good") if p.is_valid else Cell("suspect", None, "suspect"),
            visible(s.device_uuid),
            visible(s.subject.device_model),
            visible(s.subject.timer),
            visible(s.subject.cache or ""),
        ]
        for s in found
        for p in reversed(s.points)
    ]
    columns = [
        Column("Case"), Column("Backend", choices=True), Column("Host", choices=True), Column("Run"), Column("Started"),
        Column("Median, µs", "number"), Column("Verdict", choices=True), Column("Device", detail=True),
        Column("Device model", detail=True), Column("Timer", detail=True), Column("Cache", detail=True),
    ]  # fmt: skip
    return Section("Times", [Table("Every time, the newest first", columns, rows, first=20)])


def _name(series: Series) -> str:
    return visible(
        f"{series.label} · {series.subject.backend} · {series.host} {series.device_uuid[:12]}", 120
    )
