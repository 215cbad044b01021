"""Commands that only read the archive: report, query."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.console import warn
from orchestrator.cli.output import deliver


class Format(StrEnum):
    """How the answer to a query is written."""

    TABLE = "table"
    MARKDOWN = "markdown"
    CSV = "csv"
    JSON = "json"


class ReportFormat(StrEnum):
    """How a report is written."""

    TABLE = "table"
    MARKDOWN = "markdown"
    CSV = "csv"
    JSON = "json"
    HTML = "html"


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the application."""
    app.command()(report)
    app.command()(query)


def report(
    run: options.RunName = "latest",
    format: Annotated[ReportFormat, typer.Option("--format", help="How to write it.")] = ReportFormat.TABLE,
    output: options.Output = None,
    archive: options.ArchiveFolder = options.DEFAULT_ARCHIVE,
    as_json: options.Json = False,
) -> None:
    """Print what a run measured: a row a case, a column a backend, and the speed-up against the baseline.

    A number that cannot be trusted is marked, and a speed-up is printed only where it is one.

    `--format html` is one self-contained page: tables to sort and filter, charts, the timeline, logs, provenance.

    Example: `farbench report latest --format html -o report.html`
    """
    from orchestrator.archive import Archive
    from orchestrator.report import build, render

    kept = Archive(archive)
    folder = kept.find(run)
    deliver(render(build(kept, folder), "json" if as_json else format.value, folder), output)


def query(
    sql: Annotated[
        str,
        typer.Argument(metavar="SQL", help="A statement that reads, in DuckDB's SQL.", show_default=False),
    ],
    format: Annotated[Format, typer.Option("--format", help="How to write it.")] = Format.TABLE,
    output: options.Output = None,
    archive: options.ArchiveFolder = options.DEFAULT_ARCHIVE,
    as_json: options.Json = False,
) -> None:
    """Ask the archive in SQL: views `results` (a row a measurement), `samples`, `runs`, `environments`.

    Example: `farbench query "select label, backend, timing.median_us from results where status = 'ok'"`
    """
    from orchestrator.archive import Archive
    from orchestrator.archive.query import query as ask
    from orchestrator.cli.answers import answer

    table = ask(Archive(archive), sql)
    for warning in table.warnings:
        warn(warning)
    deliver(answer(table, "json" if as_json else format.value), output)
