"""A report in the format that was asked for."""

from __future__ import annotations

from rich.console import RenderableType

from orchestrator.errors import UsageError
from orchestrator.report import csv, json_, markdown
from orchestrator.report.build import Report
from orchestrator.report.table import ReportTable

FORMATS = ("table", "markdown", "csv", "json")


def render(report: Report, format: str = "table") -> str | RenderableType:
    """A rich renderable for `table` (see `table.to_text`), else the text. Raises `UsageError` for an unknown format."""
    if format == "table":
        return ReportTable(report)
    if format == "markdown":
        return markdown.render(report)
    if format == "csv":
        return csv.render(report)
    if format == "json":
        return json_.render(report)
    raise UsageError(f"there is no format {format!r}; there are {', '.join(FORMATS)}")
