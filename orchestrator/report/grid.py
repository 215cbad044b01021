"""Any table of values (the answer of a query) in the formats of a report."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.errors import UsageError
from orchestrator.report import csv, markdown
from orchestrator.report.wording import visible

FORMATS = ("table", "markdown", "csv", "json")


def render_grid(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], format: str = "table"
) -> str | RenderableType:
    """A rich table, or text: Markdown, CSV, or strict JSON `{"columns": […], "rows": [[…]]}`.

    Nothing in the values acts as markup, formula or control character. Raises `UsageError` for an unknown format."""
    plain = [[plain_value(value) for value in row] for row in rows]
    if format == "table":
        return _table(columns, plain)
    if format == "markdown":
        texts = ([_text(value) for value in row] for row in plain)
        return "\n".join(markdown.grid(columns, texts, _numeric(len(columns), plain))) + "\n"
    if format == "csv":
        return csv.grid(columns, plain)
    if format == "json":
        return json.dumps({"columns": list(columns), "rows": plain}, allow_nan=False) + "\n"
    raise UsageError(f"there is no format {format!r}; there are {', '.join(FORMATS)}")


def plain_value(value: Any) -> Any:
    """A JSON value that says the same: times as ISO 8601, durations in seconds, NaN and infinities as null."""
    match value:
        case None | bool() | int() | str():
            return value
        case float() | Decimal():
            return float(value) if math.isfinite(value) else None
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes():
            return value.hex()
        case Mapping():
            return {str(key): plain_value(item) for key, item in value.items()}
        case list() | tuple() | set():
            return [plain_value(item) for item in value]
        case _:
            return str(value)


def _table(columns: Sequence[str], rows: list[list[Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    right = set(_numeric(len(columns), rows))
    for number, name in enumerate(columns):
        table.add_column(Text(visible(name)), justify="right" if number in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(visible(_text(value))) for value in row))
    return table


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _numeric(width: int, rows: list[list[Any]]) -> Iterable[int]:
    """The columns that hold numbers and nothing else."""
    for number in range(width):
        values = [row[number] for row in rows if row[number] is not None]
        if values and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            yield number
