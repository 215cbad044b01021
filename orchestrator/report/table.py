"""The report in a terminal. Where the backends do not fit side by side, each gets a line of its own."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from orchestrator.report import phrases
from orchestrator.report.build import PayloadTable, Report
from orchestrator.report.lines import Line
from orchestrator.report.phrases import Phrases
from orchestrator.wording import visible

_NARROWEST_LABEL = 16
_WIDEST_WORD = 30
_BACKEND_LENGTH = 40
_LONG_BACKEND = 12
_GAP = 2
_STYLES = {
    "ok": "green", "incorrect": "bold red", "unsupported": "dim", "error": "red", "crashed": "red", "timeout": "red",
    "oom": "red", "lost": "yellow", "cancelled": "yellow",
}  # fmt: skip


class ReportTable:
    """A rich renderable of a report; it lays itself out for the width it is given."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(phrases.title(self.report), style="bold")
        for line in phrases.summary(self.report):
            yield Line(line)
        for table in self.report.tables:
            yield Text("")
            yield Text(phrases.heading(table), style="bold")
            yield Text(phrases.conditions(table), style="dim")
            yield _layout(table, options.max_width)
            for line in phrases.legend(table):
                yield Line(line, style="dim")


def to_text(renderable: RenderableType, width: int = 160) -> str:
    """What a renderable looks like without colours, `width` columns wide, no blanks at the ends of lines."""
    console = Console(
        width=width, color_system=None, force_terminal=False, legacy_windows=False, record=False
    )
    with console.capture() as capture:
        console.print(renderable)
    return "".join(line.rstrip() + "\n" for line in capture.get().split("\n")[:-1])


def _layout(table: PayloadTable, width: int) -> RenderableType:
    said = [[phrases.of_cell(cell) for cell in row.cells] for row in table.rows]
    labels = [phrases.row_label(table, number) for number in range(len(table.rows))]
    columns = [
        [_head(table, backend), *_column([row[number] for row in said])]
        for number, backend in enumerate(table.backends)
    ]
    needed = sum(
        max(cell_len(line) for text in column for line in text.plain.split("\n")) for column in columns
    )
    left = width - needed - _GAP * len(columns)
    words = max((cell_len(word) for label in labels for word in label.split()), default=0)
    if left < min(max(words, _NARROWEST_LABEL), _WIDEST_WORD):
        return _stacked(table, labels, said, width)
    wide = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    wide.add_column("case", overflow="fold")
    for column in columns:
        wide.add_column(column[0], justify="right", no_wrap=True)
    for number, label in enumerate(labels):
        wide.add_row(Text(label), *(column[number + 1] for column in columns))
    return wide


def _head(table: PayloadTable, backend: str) -> Text:
    name = visible(backend, _BACKEND_LENGTH)
    if len(name) > _LONG_BACKEND:
        name = name.replace(":", ":\n", 1)
    return Text(name).append("\nµs, baseline" if backend == table.baseline else "\nµs", style="dim")


def _column(said: list[Phrases]) -> list[Text]:
    """A backend's cells, set so that times, speed-ups and notes stand below one another."""
    time, speedup, note = _time_width(said), _speedup_width(said), _widest(p.note for p in said)
    cells = []
    for phrase in said:
        text = _time(phrase, time)
        if speedup != (0, 0):
            text.append(" ").append(_speedup(phrase, speedup))
        if note:
            text.append(" " + phrase.note.ljust(note), style="dim")
        detail = "  ".join(part for part in (phrase.rate, phrase.peak) if part)
        if detail:
            text.append("\n" + detail, style="dim")
        cells.append(text)
    return cells


def _stacked(table: PayloadTable, labels: list[str], said: list[list[Phrases]], width: int) -> Group:
    """Under each case a line for each backend; what does not fit is left out, the share of peak first."""
    everything = [phrase for row in said for phrase in row]
    names = [visible(backend, _BACKEND_LENGTH) for backend in table.backends]
    time, speedup, note = (
        _time_width(everything),
        _speedup_width(everything),
        _widest(p.note for p in everything),
    )
    rate, peak = _widest(p.rate for p in everything), _widest(p.peak for p in everything)
    name = _widest(names)
    spare = width - sum(
        part + _GAP
        for part in (name, max(sum(time), _widest(p.word for p in everything)), sum(speedup), note)
    )
    rate = rate if rate + _GAP <= spare else 0
    peak = peak if rate and rate + peak + 2 * _GAP <= spare else 0
    lines = []
    for label, row in zip(labels, said, strict=True):
        lines.append(Text(label))
        for backend, shown, phrase in zip(table.backends, names, row, strict=True):
            line = Text("  " + shown + " " * (name - cell_len(shown) + _GAP))
            line.append(_time(phrase, time))
            for part, text in (
                (sum(speedup), _speedup(phrase, speedup)),
                (rate, phrase.rate.rjust(rate)),
                (peak, phrase.peak.rjust(peak)),
                (note, phrase.note),
            ):
                if part:
                    line.append("  ").append(text)
            if backend == table.baseline:
                line.stylize("italic", 2, 2 + len(shown))
            lines.append(line)
    return Group(*lines)


def _time(phrase: Phrases, width: tuple[int, int]) -> Text:
    if phrase.word:
        return Text(phrase.word.rjust(sum(width)), style=_STYLES.get(phrase.word.rstrip("?!"), "dim"))
    text = phrase.median.rjust(width[0]) + phrase.flag.ljust(width[1])
    return Text(text, style="yellow" if phrase.flag else "bold")


def _speedup(phrase: Phrases, width: tuple[int, int]) -> Text:
    return Text(phrase.speedup.rjust(width[0]) + phrase.marks.ljust(width[1]), style="cyan")


def _time_width(said: list[Phrases]) -> tuple[int, int]:
    flag = _widest(p.flag for p in said)
    return max(_widest(p.median for p in said), _widest(p.word for p in said) - flag), flag


def _speedup_width(said: list[Phrases]) -> tuple[int, int]:
    return _widest(p.speedup for p in said), _widest(p.marks for p in said)


def _widest(texts: Iterable[str]) -> int:
    return max(map(cell_len, texts), default=0)
