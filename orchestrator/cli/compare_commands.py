"""Commands that hold runs against one another: compare, history."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.console import say, warn
from orchestrator.cli.output import deliver
from orchestrator.errors import EXIT_NOTHING, EXIT_OK, EXIT_REGRESSION


class Format(StrEnum):
    """How a comparison is written."""

    TABLE = "table"
    MARKDOWN = "markdown"
    JSON = "json"
    JUNIT = "junit"
    HTML = "html"


class HistoryFormat(StrEnum):
    """How a history is written."""

    TABLE = "table"
    JSON = "json"
    HTML = "html"


class FailOn(StrEnum):
    """What makes `compare` exit with 5."""

    SLOWER = "slower"
    NONE = "none"


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the application."""
    app.command()(compare)
    app.command()(history)


_RUN_A = "What to compare with: a run id or the beginning of one, `latest`, `baseline` (the newest run with that tag) or `history` (all earlier runs)."


def compare(
    run_a: Annotated[str, typer.Argument(metavar="RUN_A", help=_RUN_A, show_default=False)],
    run_b: Annotated[
        str, typer.Argument(metavar="RUN_B", help="The run to judge, named likewise.", show_default=False)
    ] = "latest",
    threshold: Annotated[
        float | None,
        typer.Option(
            "--threshold", metavar="PCT", min=0, max=999, help="The least change of interest, in per cent."
        ),
    ] = None,
    fail_on: Annotated[FailOn, typer.Option("--fail-on", help="What to exit with 5 for.")] = FailOn.SLOWER,
    format: Annotated[Format, typer.Option("--format", help="How to write it.")] = Format.TABLE,
    output: options.Output = None,
    archive: options.ArchiveFolder = options.DEFAULT_ARCHIVE,
    as_json: options.Json = False,
) -> int:
    """Say what became faster or slower from one run to another, and what cannot be told from noise.

    Times are compared where case, row, backend, device model, cache and timer are the same. Noise is learnt from the
    earlier runs in the archive; the floor of a row is the least change that can be told from it. Exits with 5 when
    anything is slower, with 4 when nothing could be compared.

    Example: `farbench compare baseline latest --threshold 2 --format markdown -o summary.md`
    """
    from orchestrator.archive import Archive
    from orchestrator.compare import compare as compared
    from orchestrator.compare import render

    found = compared(Archive(archive), run_a, run_b, threshold=None if threshold is None else threshold / 100)
    for warning in found.warnings:
        warn(warning)
    deliver(render(found, Format.JSON if as_json else format), output)
    if not found.pairs:
        say("nothing could be compared")
        return EXIT_NOTHING
    return EXIT_REGRESSION if found.is_regression and fail_on is FailOn.SLOWER else EXIT_OK


def history(
    case: Annotated[
        str,
        typer.Argument(
            metavar="CASE", help="A case's id or label, or a glob that matches it.", show_default=False
        ),
    ],
    backend: Annotated[
        str | None, typer.Option("--backend", metavar="BACKEND", help="Of this backend only.")
    ] = None,
    format: Annotated[HistoryFormat, typer.Option("--format", help="How to write it.")] = HistoryFormat.TABLE,
    output: options.Output = None,
    archive: options.ArchiveFolder = options.DEFAULT_ARCHIVE,
    as_json: options.Json = False,
) -> None:
    """Show how the time of a case went from run to run, and where it changed for good.

    Example: `farbench history 'm=16*' --backend flashinfer:cutlass --format html -o trend.html`
    """
    from orchestrator.archive import Archive
    from orchestrator.compare import history as trend
    from orchestrator.compare import history_document, history_table
    from orchestrator.compare.json_ import document_text

    found = trend(Archive(archive), case, backend=backend)
    for warning in found.warnings:
        warn(warning)
    if as_json or format is HistoryFormat.JSON:
        deliver(document_text(history_document(found)), output)
    elif format is HistoryFormat.HTML:
        from orchestrator.report.html import trends

        deliver(trends.render(found, f"History of {case}"), output)
    else:
        deliver(history_table(found), output)
