"""What a run measured, for people and for programs: tables, Markdown, CSV, JSON, and the list of runs."""

from orchestrator.report.build import Report, build, lay_out
from orchestrator.report.formats import FORMATS, render
from orchestrator.report.grid import Grid
from orchestrator.report.listing import Listing, RunLine, list_runs, runs_table
from orchestrator.report.table import to_text

__all__ = [
    "FORMATS",
    "Grid",
    "Listing",
    "Report",
    "RunLine",
    "build",
    "lay_out",
    "list_runs",
    "render",
    "runs_table",
    "to_text",
]
