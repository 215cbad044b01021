"""A table that breaks no word and drops no column: what does not fit beside each other goes below one another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_GAP = 2
_MOST_LINES = 2
"""Cells that would need more lines than this are easier to read in another shape."""
_INDENT = 4


@dataclass(frozen=True)
class Grid:
    """A rich renderable for the width that it is given: a table, if need be with cells of two lines; else a line for each
    row with the columns of `below` under it; else a line for each field.

    `below` maps such a column to what stands before its value. Columns of `right` hold numbers."""

    heads: Sequence[str]
    rows: Sequence[Sequence[Text]]
    right: frozenset[int] = frozenset()
    below: Mapping[int, str] = field(default_factory=dict)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        everything = range(len(self.heads))
        above = [number for number in everything if number not in self.below]
        if (widths := self._widths(everything, width)) is not None:
            yield self._table(everything, self.rows, widths)
        elif self.below and self.rows and (widths := self._widths(above, width)) is not None:
            yield from self._with_lines_below(above, widths, width - _INDENT)
        else:
            yield from self._records(width)

    def _widths(self, columns: Iterable[int], width: int) -> list[int] | None:
        """How wide each column may be, or None where words would have to be broken."""
        wanted, least = [], []
        for number in columns:
            texts = [self.heads[number], *(row[number].plain for row in self.rows)]
            wanted.append(max(cell_len(line) for text in texts for line in text.split("\n")))
            least.append(max((cell_len(word) for text in texts for word in text.split()), default=0))
        spare = width - _GAP * (len(wanted) - 1) - sum(least)
        if spare < 0:
            return None
        # The least greedy first, so that a long text does not take what would spare a short one its second line.
        for place in sorted(range(len(wanted)), key=lambda place: wanted[place] - least[place]):
            more = min(spare, wanted[place] - least[place])
            least[place] += more
            spare -= more
        if any(full > _MOST_LINES * given for full, given in zip(wanted, least, strict=True)):
            return None
        return least

    def _table(self, columns: Sequence[int], rows: Iterable[Sequence[Text]], widths: Sequence[int]) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
        for number, width in zip(columns, widths, strict=True):
            justify = "right" if number in self.right else "left"
            table.add_column(Text(self.heads[number]), width=width, justify=justify, overflow="fold")  # type: ignore[arg-type]
        for row in rows:
            table.add_row(*(row[number] for number in columns))
        return table

    def _with_lines_below(
        self, above: Sequence[int], widths: Sequence[int], room: int
    ) -> Iterator[RenderableType]:
        for position, row in enumerate(self.rows):
            table = self._table(above, [row], widths)
            table.show_header = not position
            yield table
            parts = [
                Text(before).append_text(row[number])
                for number, before in self.below.items()
                if row[number].plain
            ]
            together = Text("  ").join(parts)
            if "\n" in together.plain or cell_len(together.plain) > room:
                together = Text("\n").join(parts)
            if parts:
                yield Padding(together, (0, 0, 0, _INDENT))

    def _records(self, width: int) -> Iterator[RenderableType]:
        if not self.rows:
            yield Text(f"no rows; the columns are {', '.join(self.heads)}")
        indent = max(map(cell_len, self.heads), default=0) + _GAP
        for position, row in enumerate(self.rows):
            if position:
                yield Text("")
            fields = Table(box=None, show_header=False, pad_edge=False, padding=0)
            fields.add_column(width=min(indent, width // 2), overflow="fold")
            fields.add_column(overflow="fold")
            for head, value in zip(self.heads, row, strict=True):
                fields.add_row(Text(head, style="dim"), value)
            yield fields
