"""Reports as one self-contained HTML page, and the blocks that other pages are made of."""

from orchestrator.report.html.blocks import (
    Block,
    Cell,
    Chart,
    Column,
    Command,
    Facts,
    Figure,
    Log,
    Page,
    Section,
    Table,
    Text,
)
from orchestrator.report.html.page import plain, to_html
from orchestrator.report.html.run import render

__all__ = [
    "Block",
    "Cell",
    "Chart",
    "Column",
    "Command",
    "Facts",
    "Figure",
    "Log",
    "Page",
    "Section",
    "Table",
    "Text",
    "plain",
    "render",
    "to_html",
]
