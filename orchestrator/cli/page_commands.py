"""Commands that make something of one run: plot, repro."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.console import print_json, print_text, say, warn
from orchestrator.cli.output import deliver
from orchestrator.errors import EXIT_INCOMPLETE, EXIT_OK, UsageError

if TYPE_CHECKING:
    from orchestrator.archive import Archive
    from orchestrator.repro import Recipe


class Metric(StrEnum):
    """What is plotted."""

    TIME = "time"
    TFLOPS = "tflops"
    GBPS = "gbps"


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the application."""
    app.command()(plot)
    app.command()(repro)


def plot(
    run: options.RunName = "latest",
    output: options.Output = None,
    metric: Annotated[Metric, typer.Option("--metric", help="What is plotted against M.")] = Metric.TIME,
    only: Annotated[
        str | None,
        typer.Option(
            "--only", metavar="TEXT", help="Only the families of shapes whose name holds this, e.g. `n=2048`."
        ),
    ] = None,
    archive: options.ArchiveFolder = options.DEFAULT_ARCHIVE,
) -> None:
    """Draw a run's curves as one SVG for a document: time against M by backend, with the spread.

    Cases that differ in M only share a panel. The figure follows the reader's light or dark scheme, and the same run
    always gives the same bytes.

    Example: `farbench plot latest -o docs/fp4.svg --metric tflops`
    """
    from orchestrator.archive import Archive
    from orchestrator.report import build
    from orchestrator.report.plot import to_svg

    kept = Archive(archive)
    deliver(to_svg(build(kept, kept.find(run)), metric.value, only=only), output)


def repro(
    run: options.RunName,
    case: Annotated[
        str,
        typer.Argument(
            metavar="CASE", help="A case's id, the beginning of one, or its label.", show_default=False
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="DIR", help="The folder to make [default: repro-CASE-BACKEND]."
        ),
    ] = None,
    backend: Annotated[
        str | None, typer.Option("--backend", metavar="NAME", help="Needed where the case has several.")
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", metavar="NAME", help="As it was measured on this host.")
    ] = None,
    run_it: Annotated[
        bool,
        typer.Option(
            "--run", help="Measure it again over SSH, on its device, and say whether the number came back."
        ),
    ] = False,
    archive: options.ArchiveFolder = options.DEFAULT_ARCHIVE,
    as_json: options.Json = False,
) -> int:
    """Make a folder that repeats one measurement by hand, without farbench, and print the command to run in it.

    In it: the script as it ran, its parameters, the software and the device it was measured with. With --run farbench does
    it (and makes the folder only if -o asks for it); exit code 0 when the number came back, else 1.

    Example: `farbench repro latest 4f1c --backend sgl_kernel --run`
    """
    from orchestrator.archive import Archive
    from orchestrator.repro import command_line, find, write

    recipe = find(Archive(archive), run, case, backend=backend, host=host)
    if output is not None or not run_it:
        folder = write(recipe, output or Path(_folder_name(recipe)))
        say(f"wrote {folder}; copy it to {recipe.spec.name}, and in it run:")
        if not run_it and not as_json:
            print_text(command_line(recipe))
            return EXIT_OK
    if not run_it:
        print_json(_described(recipe, str(output or _folder_name(recipe))))
        return EXIT_OK
    return _run(recipe, Archive(archive), as_json)


def _run(recipe: Recipe, archive: Archive, as_json: bool) -> int:
    from orchestrator.compare.reading import read_past
    from orchestrator.inventory import resolve_environment
    from orchestrator.repro import judge, run_again
    from orchestrator.transport.open import Connections

    if recipe.spec.launcher.kind != "ssh":
        raise UsageError(
            f"{recipe.spec.name} is reached through {recipe.spec.launcher.kind}; without --run the folder can be made, "
            "and its command run inside an allocation"
        )
    secrets = resolve_environment(recipe.spec, os.environ).secrets
    with Connections(environ=os.environ, warn=warn) as connections:
        again = run_again(recipe, connections.transport(recipe.spec), secrets=secrets, tell=say)
    for problem in again.problems:
        warn(problem)
    past = read_past(archive, case_ids=[recipe.measurement.case_id])
    for warning in past.warnings:
        warn(warning)
    judged = judge(recipe.measurement, again.measurement, past.times)
    word = {True: "came back", False: "did not come back", None: "cannot be told"}[judged.came_back]
    if as_json:
        print_json(
            {
                **_described(recipe, None),
                "came_back": judged.came_back,
                "text": judged.text,
                "change": judged.change,
                "floor": judged.floor,
                "before": recipe.measurement.model_dump(mode="json", exclude={"samples_us"}),
                "now": again.measurement.model_dump(mode="json", exclude={"samples_us"}),
            }
        )
    else:
        m = recipe.measurement
        print_text(f"{word}: {m.label}, {m.backend} on {m.host}: {judged.text}")
    return EXIT_OK if judged.came_back else EXIT_INCOMPLETE


def _described(recipe: Recipe, folder: str | None) -> dict[str, object]:
    from orchestrator.repro import command_line

    m = recipe.measurement
    return {
        "run_id": m.run_id, "case_id": m.case_id, "label": m.label, "backend": m.backend, "host": m.host,
        "folder": folder, "command": command_line(recipe),
    }  # fmt: skip


def _folder_name(recipe: Recipe) -> str:
    backend = "".join(c if c.isalnum() or c in "-_." else "-" for c in recipe.measurement.backend)
    return f"repro-{recipe.measurement.case_id}-{backend}"[:120]
