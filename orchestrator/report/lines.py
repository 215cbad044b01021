"""Lines of text that do not fit: what goes on stands below what began, not below its number."""

from __future__ import annotations

import re

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

_HEAD = re.compile(r"\[\d+\] |[?!*] | +|")
_MORE = 2
_LEAST = 20
"""Columns that the text keeps, however narrow the terminal."""


class Line:
    """A rich renderable of one line. Where it wraps, the rest is indented by its footnote's number or its mark, and else by `_MORE`
    than its beginning."""

    def __init__(self, text: str, style: str = "") -> None:
        self.text = text
        self.style = style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        found = _HEAD.match(self.text)
        head = found[0] if found else ""
        indent = " " * (len(head) if head.strip() else len(head) + _MORE)
        room = options.max_width - len(indent)
        whole = Text(self.text, style=self.style)
        if whole.cell_len <= options.max_width or room < _LEAST:
            yield whole
            return
        for number, line in enumerate(Text(self.text[len(head) :]).wrap(console, room)):
            yield Text((indent if number else head) + line.plain, style=self.style)
