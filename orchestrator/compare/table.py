"""A comparison, or a history, in a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.table import Table
from rich.text import Text

from orchestrator.compare import phrases
from orchestrator.compare.trend import History, Series
from orchestrator.compare.values import Comparison, Outcome, Pair, Subject
from orchestrator.report.grid import Grid
from orchestrator.report.lines import Line
from orchestrator.wording import number, visible

_STYLES = {Outcome.SLOWER: "bold red", Outcome.FASTER: "green", Outcome.UNCLEAR: "yellow", Outcome.SAME: ""}
_WIDE = 110
_NARROW = 72
_LEFT_OUT_WHEN_NARROW = (1, 5)
_LEFT_OUT_WHEN_TINY = (1, 2, 3, 5)
_LINES_SHOWN = 12
_BARS = "▁▂▃▄▅▆▇█"
_BARS_SHOWN = 30


class ComparisonTable:
    """A rich renderable of a comparison."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        comparison = self.comparison
        yield Text(phrases.title(comparison), style="bold")
        for line in phrases.summary(comparison):
            yield Line(line)
        for heading, pairs in phrases.groups(comparison):
            yield Text("")
            yield Text(heading, style="bold")
            notes: list[str] = []
            yield _pairs(pairs, notes, phrases.crowded(comparison), options.max_width)
            for line in phrases.legend(pairs):
                yield Line(line, style="dim")
            for position, note in enumerate(notes, 1):
                yield Line(f"[{position}] {note}", style="dim")
        yield from _listed("left out", [phrases.left_out(missing) for missing in comparison.left_out])
        yield from _listed("not the same on both sides", phrases.changed(comparison))


def _pairs(pairs: list[Pair], notes: list[str], crowd: frozenset[Subject], width: int) -> Table:
    """The rows; in a narrow terminal the backend stands under the case, and the interval is left out, then the times."""
    is_narrow = width < _WIDE
    left_out = () if not is_narrow else _LEFT_OUT_WHEN_NARROW if width >= _NARROW else _LEFT_OUT_WHEN_TINY
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for position, column in enumerate(phrases.COLUMNS):
        if position not in left_out:
            justify: JustifyMethod = "right" if position in phrases.NUMERIC else "left"
            table.add_column(column, justify=justify, overflow="fold", no_wrap=position > 1)
    for pair in pairs:
        cells = phrases.cells(pair, notes, crowd)
        if is_narrow:
            cells[0] += f"\n  {cells[1]}"
            cells = [cell for position, cell in enumerate(cells) if position not in left_out]
        table.add_row(*map(Text, cells[:-1]), Text(cells[-1], style=_STYLES[pair.outcome]))
    return table


def _listed(title: str, lines: list[str]) -> Iterator[Text | Line]:
    if not lines:
        return
    yield Text("")
    yield Text(f"{title} ({len(lines)})", style="bold")
    for line in lines[:_LINES_SHOWN]:
        yield Line(f"  {line}")
    if len(lines) > _LINES_SHOWN:
        yield Text(f"  … and {len(lines) - _LINES_SHOWN} more (--format json has all)", style="dim")


def history_table(history: History) -> Grid:
    """A row a series: its level now, its spread, its last runs as bars, and every lasting change."""
    rows = [[Text(cell) for cell in _series(series)] for series in history.series]
    heads = ("case", "backend", "where", "runs", "level, µs", "spread", "trend", "changes")
    below = {2: "", 6: "", 7: "changes: "}
    return Grid(heads, rows, right=frozenset((3, 4, 5)), below=below)


def _series(series: Series) -> Iterator[str]:
    subject = series.subject
    yield visible(" ".join(part for part in (series.label, subject.row) if part), phrases.LABEL_LENGTH)
    yield visible(subject.backend)
    yield visible(
        ", ".join(p for p in (series.host, subject.device_model, subject.timer, subject.cache) if p)
    )
    yield str(len(series.points))
    yield number(series.level_us)
    yield phrases.percent(series.spread, signed=False)
    yield bars([point.median_us for point in series.points[-_BARS_SHOWN:]])
    yield "\n".join(visible(f"{phrases.percent(c.change)} at {c.run_id}") for c in series.changes) or "none"


def bars(values: list[float]) -> str:
    """Positive values as a line of bars between the least and the largest of them."""
    low, high = min(values), max(values)
    if high <= low:
        return _BARS[0] * len(values)
    return "".join(_BARS[round((value - low) / (high - low) * (len(_BARS) - 1))] for value in values)
