"""A report in the format that was asked for."""

from __future__ import annotations

from rich.console import RenderableType

from orchestrator.archive import RunFolder
from orchestrator.errors import UsageError
from orchestrator.report import csv, json_, markdown
from orchestrator.report.build import Report
from orchestrator.report.table import ReportTable

FORMATS = ("table", "markdown", "csv", "json", "html")


def render(report: Report, format: str = "table", folder: RunFolder | None = None) -> str | RenderableType:
    """A rich renderable for `table` (see `table.to_text`), else the text. Raises `UsageError` for an unknown format.

    With the run's `folder`, `html` also has the timeline of the devices."""
    if format == "table":
        return ReportTable(report)
    if format == "markdown":
        return markdown.render(report)
    if format == "csv":
        return csv.render(report)
    if format == "json":
        return json_.render(report)
    if format == "html":
        from orchestrator.report import html  # brings plotly's script, which only a page needs

        return html.render(report, folder)
    raise UsageError(f"there is no format {format!r}; there are {', '.join(FORMATS)}")
