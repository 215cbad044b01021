"""The report as Markdown (GitHub's), in which nothing that was measured can act as markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from orchestrator.report import phrases
from orchestrator.report.build import PayloadTable, Report
from orchestrator.wording import visible

_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_ALWAYS = re.compile(r"([\\`*|~$])")
_EDGE_UNDERSCORE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")
_LINK = re.compile(r"\](?=[(\[:])|!(?=\[)|\[(?=\^)")
_BLOCK = re.compile(r"(?=(#{1,6}|[-+]|\[[ xX]\])(\s|$)|[-=]+$)|(?<=^)(\d{1,9})(?=[.)](\s|$))")
"""At the beginning of a line: headings, lists, check boxes, rules."""
_MENTION = re.compile(r"(?<![^\W_])@(?=\w)|#(?=\d)|\bGH-(?=\d)")
_NOTHING = "&#8203;"
"""A space without width: GitHub tells people whose name follows an @, and links #7, whatever escapes them."""


def escaped(text: str) -> str:
    """Text that Markdown shows as it is. What cannot be taken for markup stays as it is in the source, too."""
    text = _ALWAYS.sub(r"\\\1", visible(text).translate(_ENTITIES))
    text = _EDGE_UNDERSCORE.sub(r"\\_", text)
    text = _LINK.sub(r"\\\g<0>", text)
    if match := _BLOCK.match(text):
        text = f"{match[0]}\\{text[match.end() :]}"
    return _MENTION.sub(rf"\g<0>{_NOTHING}", text)


def render(report: Report) -> str:
    """The whole report."""
    return "\n".join(_lines(report)) + "\n"


def grid(columns: Sequence[str], rows: Iterable[Sequence[str]], numeric: Iterable[int] = ()) -> Iterator[str]:
    """The lines of a table of plain texts; columns whose numbers are in `numeric` are set to the right."""
    right = set(numeric)
    yield "| " + " | ".join(escaped(column) for column in columns) + " |"
    yield "|" + "|".join(" ---: " if i in right else " --- " for i in range(len(columns))) + "|"
    for row in rows:
        yield "| " + " | ".join(escaped(value) for value in row) + " |"


def _lines(report: Report) -> Iterator[str]:
    yield f"# {escaped(phrases.title(report))}"
    yield ""
    for line in phrases.summary(report):
        yield f"- {escaped(line)}"
    for table in report.tables:
        yield ""
        yield f"## {escaped(phrases.heading(table))}"
        yield ""
        yield escaped(phrases.conditions(table))
        yield ""
        yield from _table(table)
        notes = phrases.legend(table)
        if notes:
            yield ""
            for note in notes:
                yield f"- {escaped(note)}"


def _table(table: PayloadTable) -> Iterator[str]:
    heads = [f"{b} (baseline), µs" if b == table.baseline else f"{b}, µs" for b in table.backends]
    rows = []
    for number, row in enumerate(table.rows):
        cells = []
        for cell in row.cells:
            said = phrases.of_cell(cell)
            time = said.word or said.median + said.flag
            first = " ".join(p for p in (time, said.speedup + said.marks, said.note) if p)
            cells.append(", ".join(p for p in (first, said.rate, said.peak) if p))
        rows.append([phrases.row_label(table, number), *cells])
    yield from grid(["case", *heads], rows, range(1, len(heads) + 1))
