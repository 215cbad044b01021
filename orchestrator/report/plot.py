"""A run's curves as one SVG file for documents: no browser, no library, the same bytes for the same run.

It follows the reader's colour scheme where the document shows SVG as an image (GitHub does), and tells backends apart by
marks and dashes as well as by colour.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from orchestrator.errors import NothingToDo
from orchestrator.report import phrases
from orchestrator.report.build import Report
from orchestrator.report.families import Family, Point, families
from orchestrator.report.ticks import log_ticks
from orchestrator.wording import visible

METRICS = {"time": "time of one call, µs", "tflops": "TFLOP/s", "gbps": "GB/s"}
PANELS = 24
"""More do not fit a page; a sweep of more families is plotted in parts (`only`)."""
_WIDTH, _HEIGHT, _GAP = 520, 330, 24
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 34, 46
_LINE = 20
_LIGHT = ("#0060a8", "#c04a00", "#007a5a", "#a8437f", "#7a6000", "#1f8fbf", "#5b4bb0", "#555555")
_DARK = ("#62b5f0", "#ff9a55", "#3fcf9f", "#eb92c4", "#e6cf4a", "#9bdcff", "#b3a6ff", "#c0c0c0")
_DASHES = ("", "7 4", "2 3", "7 3 2 3", "11 4", "11 3 2 3")
_MARKS = ("circle", "square", "diamond", "triangle", "cross")


def to_svg(report: Report, metric: str = "time", *, only: str | None = None) -> str:
    """A panel for each family of shapes: `metric` against M by backend, with the spread, both axes logarithmic.

    `only` keeps the families whose name holds it. Raises `NothingToDo` when there is nothing to draw, or too much."""
    drawable = [
        f for f in families(report, metric) if all(p.x > 0 for curve in f.curves.values() for p in curve)
    ]
    if not drawable:
        what = METRICS[metric].split(",")[0]
        raise NothingToDo(
            f"nothing to plot: no case has a {what} that is not `invalid`, and a positive number among its parameters"
        )
    found = [f for f in drawable if only is None or only in f.name]
    if not found:
        names = "\n".join(f"  {visible(f.name, 100)}" for f in drawable[:5])
        raise NothingToDo(
            f"nothing to plot: no family of shapes has {only!r} in its name; there are {len(drawable)}:\n{names}"
        )
    if len(found) > PANELS:
        names = "\n".join(f"  {visible(f.name, 100)}" for f in found[:5])
        raise NothingToDo(
            f"{len(found)} families of shapes do not fit one figure; choose with --only, e.g. of\n{names}"
        )
    return "\n".join(_svg(report, found, metric)) + "\n"


@dataclass(frozen=True)
class _Scale:
    """A logarithmic axis from `low` to `high` on the pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float

    @classmethod
    def around(cls, values: Sequence[float], start: float, end: float) -> _Scale:
        low, high = min(values), max(values)
        room = max(0.04 * math.log10(high / low), 0.02) if high > low else 0.3
        return cls(low / 10**room, high * 10**room, start, end)

    def at(self, value: float) -> float:
        share = math.log10(value / self.low) / math.log10(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        return log_ticks(self.low, self.high)


def _svg(report: Report, found: Sequence[Family], metric: str) -> Iterator[str]:
    backends = list(dict.fromkeys(name for family in found for name in family.curves))
    columns = 1 if len(found) == 1 else 2
    width = columns * _WIDTH + (columns + 1) * _GAP
    legend = list(_legend(backends, width))
    top = 40 + _LINE * (1 + max(row for row, _, _ in legend)) + 8
    rows = math.ceil(len(found) / columns)
    height = top + rows * (_HEIGHT + _GAP)
    title = phrases.title(report)
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-labelledby="t d">'  # fmt: skip
    yield f'<title id="t">{_text(title)}</title>'
    yield f'<desc id="d">{_text(_described(found, metric))}</desc>'
    yield f"<style>{_style(len(backends))}</style>"
    yield f'<rect class="page" width="{width}" height="{height}"/>'
    yield f'<text class="title" x="{_GAP}" y="26">{_text(title)}</text>'
    for number, (row, x, name) in enumerate(legend):
        y = 40 + _LINE * row + 8
        yield f'<g class="s{number % len(_LIGHT)}"><path class="line" {_dash(number)} d="M{_n(x)} {y}h30"/>{_mark(number, x + 15, y, False)}</g>'  # fmt: skip
        yield f'<text x="{_n(x + 38)}" y="{y + 4}">{_text(name)}</text>'
    for index, family in enumerate(found):
        x = _GAP + (index % columns) * (_WIDTH + _GAP)
        y = top + (index // columns) * (_HEIGHT + _GAP)
        yield f'<g transform="translate({x} {y})">'
        yield from _panel(family, backends, METRICS[metric])
        yield "</g>"
    yield "</svg>"


def _panel(family: Family, backends: Sequence[str], unit: str) -> Iterator[str]:
    points = [p for curve in family.curves.values() for p in curve]
    x = _Scale.around([p.x for p in points], _LEFT, _WIDTH - _RIGHT)
    y = _Scale.around([edge for p in points for edge in (p.low, p.high)], _HEIGHT - _BOTTOM, _TOP)
    sizes = sorted({p.x for p in points})
    yield f'<text class="head" x="{_LEFT}" y="18">{_text(visible(family.name, 62))}</text>'
    for tick in sizes if len(sizes) <= 9 else x.ticks():
        yield f'<path class="grid" d="M{_n(x.at(tick))} {_TOP}V{_HEIGHT - _BOTTOM}"/>'
        yield f'<text class="tick" text-anchor="middle" x="{_n(x.at(tick))}" y="{_HEIGHT - _BOTTOM + 17}">{tick:.9g}</text>'
    for tick in y.ticks():
        yield f'<path class="grid" d="M{_LEFT} {_n(y.at(tick))}H{_WIDTH - _RIGHT}"/>'
        yield f'<text class="tick" text-anchor="end" x="{_LEFT - 7}" y="{_n(y.at(tick) + 4)}">{tick:.6g}</text>'
    yield f'<path class="axis" d="M{_LEFT} {_TOP}V{_HEIGHT - _BOTTOM}H{_WIDTH - _RIGHT}"/>'
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    yield f'<text class="tick" text-anchor="middle" x="{_n(middle)}" y="{_HEIGHT - 10}">{_text(visible(family.axis, 40))}</text>'
    yield f'<text class="tick" text-anchor="middle" transform="translate(13 {_n((_TOP + _HEIGHT - _BOTTOM) / 2)}) rotate(-90)">{_text(unit)}</text>'  # fmt: skip
    for backend, curve in family.curves.items():
        yield from _curve(curve, backends.index(backend), x, y)


def _curve(curve: Sequence[Point], number: int, x: _Scale, y: _Scale) -> Iterator[str]:
    yield f'<g class="s{number % len(_LIGHT)}">'
    corners = " ".join(f"{_n(x.at(p.x))},{_n(y.at(p.value))}" for p in curve)
    yield f'<polyline class="line" {_dash(number)} points="{corners}"/>'
    for p in curve:
        at = x.at(p.x)
        if p.high > p.low:
            low, high = y.at(p.low), y.at(p.high)
            yield f'<path class="bar" d="M{_n(at)} {_n(low)}V{_n(high)}M{_n(at - 3)} {_n(low)}h6M{_n(at - 3)} {_n(high)}h6"/>'
        yield _mark(number, at, y.at(p.value), p.doubtful)
    yield "</g>"


def _legend(backends: Sequence[str], width: int) -> Iterator[tuple[int, float, str]]:
    """(row, x, name) of each entry; rows are broken where the width ends."""
    row, x = 0, float(_GAP)
    for backend in backends:
        name = visible(backend, 40)
        wide = 38 + 7.2 * len(name) + 24
        if x + wide > width - _GAP and x > _GAP:
            row, x = row + 1, float(_GAP)
        yield row, x, name
        x += wide


def _mark(number: int, x: float, y: float, hollow: bool) -> str:
    kind = "hollow" if hollow else "mark"
    match _MARKS[number % len(_MARKS)]:
        case "circle":
            return f'<circle class="{kind}" cx="{_n(x)}" cy="{_n(y)}" r="3.6"/>'
        case "square":
            return f'<rect class="{kind}" x="{_n(x - 3.4)}" y="{_n(y - 3.4)}" width="6.8" height="6.8"/>'
        case "diamond":
            return f'<path class="{kind}" d="M{_n(x)} {_n(y - 4.6)}l4.6 4.6l-4.6 4.6l-4.6 -4.6z"/>'
        case "triangle":
            return f'<path class="{kind}" d="M{_n(x)} {_n(y - 4.4)}l4.4 7.6h-8.8z"/>'
    return f'<path class="bar" d="M{_n(x - 4)} {_n(y - 4)}l8 8m0 -8l-8 8"/>'


def _style(count: int) -> str:
    def themed(text: str, soft: str, line: str, page: str, colors: Sequence[str]) -> str:
        series = "".join(f".s{i}{{color:{color}}}" for i, color in enumerate(colors[:count]))
        return f".page{{fill:{page}}}.hollow{{fill:{page}}}text{{fill:{text}}}.tick{{fill:{soft}}}.grid{{stroke:{line}}}.axis{{stroke:{soft}}}{series}"

    return (
        "text{font:13px system-ui,sans-serif}.title{font-size:15px;font-weight:600}.head{font-weight:600}.tick{font-size:12px}"
        ".grid,.axis,.line,.bar{fill:none;stroke-width:1}.line{stroke:currentColor;stroke-width:2}.bar{stroke:currentColor;stroke-width:1.3}"
        ".mark{fill:currentColor}.hollow{stroke:currentColor;stroke-width:1.5}"
        + themed("#1b1f24", "#4a535d", "#d8dee4", "#ffffff", _LIGHT)
        + f"@media (prefers-color-scheme:dark){{{themed('#e8ebee', '#b6bec7', '#353d45', '#14181c', _DARK)}}}"
    )


def _described(found: Sequence[Family], metric: str) -> str:
    shapes = "; ".join(visible(f.name, 100) for f in found)
    return (
        f"{METRICS[metric]} against {visible(found[0].axis, 40)} by backend, both axes logarithmic, for {shapes}. Bars span the "
        "20th to the 80th percentile over all devices; hollow marks are suspect measurements."
    )


def _dash(number: int) -> str:
    dash = _DASHES[number % len(_DASHES)]
    return f'stroke-dasharray="{dash}"' if dash else ""


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _text(text: str) -> str:
    return escape(text, {'"': "&quot;"})
