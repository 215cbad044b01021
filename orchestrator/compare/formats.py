"""A comparison in the format that was asked for."""

from __future__ import annotations

from rich.console import RenderableType

from orchestrator.compare import json_, junit, markdown
from orchestrator.compare.table import ComparisonTable
from orchestrator.compare.values import Comparison
from orchestrator.errors import UsageError

FORMATS = ("table", "markdown", "json", "junit", "html")


def render(comparison: Comparison, format: str = "table") -> str | RenderableType:
    """A rich renderable for `table` (see `report.to_text`), else the text. Raises `UsageError`."""
    if format == "table":
        return ComparisonTable(comparison)
    if format == "markdown":
        return markdown.render(comparison)
    if format == "json":
        return json_.document_text(json_.comparison_document(comparison))
    if format == "junit":
        return junit.render(comparison)
    if format == "html":
        from orchestrator.report.html import changes  # brings plotly's script, which only a page needs

        return changes.render(comparison)
    raise UsageError(f"there is no format {format!r}; there are {', '.join(FORMATS)}")
