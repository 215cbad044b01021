"""The answer to a query as a table, Markdown, CSV or JSON."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from rich.console import RenderableType
from rich.text import Text

from orchestrator.archive.query import Table
from orchestrator.cli.console import json_text
from orchestrator.report import Grid, csv, markdown
from orchestrator.wording import visible


def answer(table: Table, format: str) -> str | RenderableType:
    """What to print. JSON is `{"columns": […], "rows": [{…}, …]}`."""
    if format == "json":
        rows = [dict(zip(table.columns, map(plain, row), strict=True)) for row in table.rows]
        return json_text({"columns": table.columns, "rows": rows})
    if format == "csv":
        return csv.grid(table.columns, [[plain(value) for value in row] for row in table.rows])
    texts = [[_text(value) for value in row] for row in table.rows]
    numeric = {
        i for i in range(len(table.columns)) if table.rows and all(_is_number(row[i]) for row in table.rows)
    }
    if format == "markdown":
        return "\n".join(markdown.grid(table.columns, texts, numeric))
    laid_out = [[Text(value) for value in row] for row in texts]
    return Grid([visible(column) for column in table.columns], laid_out, right=frozenset(numeric))


def plain(value: Any) -> Any:
    """A value of DuckDB as strict JSON knows it: times as ISO 8601, bytes as base64, non-finite numbers as null."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [plain(item) for item in value]
    return str(value)


def _text(value: Any) -> str:
    value = plain(value)
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float | Decimal) and not isinstance(value, bool | UUID))
