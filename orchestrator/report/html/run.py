"""The page of a run."""

from __future__ import annotations

from orchestrator.archive import RunFolder
from orchestrator.report import phrases
from orchestrator.report.build import Report
from orchestrator.report.html import comparison, curves, provenance, short, spread, telemetry, timeline
from orchestrator.report.html.blocks import Page
from orchestrator.report.html.page import to_html


def render(report: Report, folder: RunFolder | None = None) -> str:
    """The report as one HTML file; with the run's folder it also has the timeline of its devices."""
    return to_html(page(report, folder))


def page(report: Report, folder: RunFolder | None = None) -> Page:
    """What is on the page."""
    sections = [
        *short.sections(report),
        *comparison.sections(report),
        *curves.sections(report),
        *spread.sections(report),
        *(timeline.sections(folder, report.run) if folder is not None else ()),
        *telemetry.sections(report),
        *provenance.sections(report),
    ]
    summary = [*phrases.summary(report), *(phrases.conditions(table) for table in report.tables[:1])]
    return Page(phrases.title(report), summary, sections)
