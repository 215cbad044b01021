"""What pages are made of: tables, charts, facts, logs and commands, as plain data.

A page's text never becomes markup: it travels as JSON in a script block that no browser runs, and the page's own
script sets it as text. So a block may hold any text, whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Json = dict[str, Any]
Tone = Literal["good", "bad", "suspect", "invalid", "open", "muted"]
"""Beside its colour, `suspect` has the mark ? and `invalid` the mark !, as in the tables of a terminal; `open` is what has no
result."""
Kind = Literal["text", "prose", "number", "heat", "code", "log"]


class Block(Protocol):
    """A part of a section."""

    def as_json(self) -> Json:
        """The block for the page's script; `kind` says what it is."""


@dataclass(frozen=True)
class Cell:
    """A table's cell: what it shows, what it sorts by (its text, if left out), and its tone.

    In a column of kind `heat`, `sort` is a ratio and colours the cell: above 1 better, below 1 worse."""

    shown: str
    sort: float | None = None
    tone: Tone | None = None


@dataclass(frozen=True)
class Column:
    """A table's column: `text` is a word or two, `prose` may run over several lines. `choices` offers a menu of its values as a filter; `detail` shows it only in an opened row."""

    title: str
    kind: Kind = "text"
    choices: bool = False
    detail: bool = False


@dataclass(frozen=True)
class Table:
    """Rows that a reader sorts, filters and opens. A cell is text, None, or a `Cell`.

    `search` offers a filter by words; `first` is the number of rows shown at once."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell | str | None]]
    search: bool = True
    first: int = 50
    empty: str = "There is nothing to show."

    def as_json(self) -> Json:
        """Cells are text, null, or [text, sort, tone]."""
        return {
            "kind": "table",
            "caption": self.caption,
            "columns": [
                {"title": c.title, "kind": c.kind, "choices": c.choices, "detail": c.detail}
                for c in self.columns
            ],
            "rows": [[_cell(cell) for cell in row] for row in self.rows],
            "search": self.search,
            "first": self.first,
            "empty": self.empty,
        }


@dataclass(frozen=True)
class Figure:
    """One drawing: traces and layout in plotly's terms, without colours.

    A trace's `series` (a small number) chooses its colour, marker and dash in both themes, `muted` makes it grey; every
    text must have gone through `plain`."""

    traces: Sequence[Json]
    layout: Json = field(default_factory=dict)
    height: int = 420


@dataclass(frozen=True)
class Chart:
    """A chart of one or several figures, among which a menu named `choose` chooses; `summary` tells in words what it shows."""

    title: str
    summary: str
    figures: Mapping[str, Figure]
    choose: str = "Show"

    def as_json(self) -> Json:
        """Figures by name, in their order."""
        return {
            "kind": "chart",
            "title": self.title,
            "summary": self.summary,
            "choose": self.choose,
            "figures": [
                {"name": name, "traces": list(f.traces), "layout": f.layout, "height": f.height}
                for name, f in self.figures.items()
            ],
        }


@dataclass(frozen=True)
class Facts:
    """Names and values, e.g. of an environment."""

    items: Sequence[tuple[str, str]]
    title: str | None = None

    def as_json(self) -> Json:
        """Pairs."""
        return {"kind": "facts", "title": self.title, "items": [list(item) for item in self.items]}


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str

    def as_json(self) -> Json:
        """Text."""
        return {"kind": "text", "text": self.text}


@dataclass(frozen=True)
class Log:
    """Preformatted text that the reader opens: a log's tail, a sweep's source."""

    title: str
    text: str

    def as_json(self) -> Json:
        """Title and text."""
        return {"kind": "log", "title": self.title, "text": self.text}


@dataclass(frozen=True)
class Command:
    """A command line to copy."""

    text: str
    note: str = ""

    def as_json(self) -> Json:
        """Text and what it does."""
        return {"kind": "command", "text": self.text, "note": self.note}


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading, which its contents list leads to."""

    title: str
    blocks: Sequence[Block]
    lead: str = ""

    def as_json(self) -> Json:
        """Title, lead and blocks."""
        return {"title": self.title, "lead": self.lead, "blocks": [b.as_json() for b in self.blocks]}


@dataclass(frozen=True)
class Page:
    """A whole page; `summary` are the lines a reader must see before any number."""

    title: str
    summary: Sequence[str]
    sections: Sequence[Section]

    def as_json(self) -> Json:
        """All of it."""
        return {
            "title": self.title,
            "summary": list(self.summary),
            "sections": [s.as_json() for s in self.sections],
        }


def _cell(cell: Cell | str | None) -> Any:
    if not isinstance(cell, Cell):
        return cell
    if cell.sort is None and cell.tone is None:
        return cell.shown
    return [cell.shown, cell.sort, *([cell.tone] if cell.tone else [])]
