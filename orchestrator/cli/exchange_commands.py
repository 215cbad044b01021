"""Commands that take runs out and in: export, import."""

from __future__ import annotations

import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import options
from orchestrator.cli.console import print_json, print_text, say, warn
from orchestrator.errors import FileError, UsageError

if TYPE_CHECKING:
    from orchestrator.archive import Archive


class ForeignFormat(StrEnum):
    """What a file to be imported is."""

    AUTO = "auto"
    NVBENCH = "nvbench"
    GOOGLE_BENCHMARK = "google-benchmark"
    PYPERF = "pyperf"
    VLLM = "vllm"
    FLASHINFER_TRACE = "flashinfer-trace"
    FLASHINFER_CSV = "flashinfer-csv"
    NCCL_TESTS = "nccl-tests"
    TRITON_CSV = "triton-csv"


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the application."""
    app.command()(export)
    app.command(name="import")(import_)


def export(
    run: options.RunName,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Where to; `RUN.tar.zst` here if left out."),
    ] = None,
    archive: options.ArchiveFolder = options.DEFAULT_ARCHIVE,
    as_json: options.Json = False,
) -> None:
    """Write a finished run, with its note and tags, to one file that `farbench import` takes back anywhere.

    The same run gives the same bytes. A run that is still open is refused.

    Example: `farbench export latest -o fp4-h200.tar.zst`
    """
    from orchestrator.archive import Archive
    from orchestrator.archive.bundle import SUFFIX, export_run

    kept = Archive(archive)
    folder = kept.find(run)
    target = output or Path(folder.run_id + SUFFIX)
    size = export_run(kept, folder, target)
    if as_json:
        print_json({"run_id": folder.run_id, "file": str(target), "bytes": size})
    else:
        say(f"wrote {target}: run {folder.run_id}, {size / 2**20:.2f} MiB")


def import_(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="What `export` or another tool wrote; its content says which.",
            show_default=False,
        ),
    ],
    format: Annotated[
        ForeignFormat, typer.Option("--format", help="What it is, where its content does not say.")
    ] = ForeignFormat.AUTO,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="NAME", help="The device it was measured on, e.g. 'NVIDIA H200'."),
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", metavar="NAME", help="The host it was measured on.")
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend", metavar="NAME", help="The implementation measured, where the file names none."
        ),
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            "--label", metavar="TEXT", help="The run's name in `runs`; the file's name if left out."
        ),
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param", metavar="NAME=VALUE", help="A parameter of every case, in YAML; may be repeated."
        ),
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(
            "--unit", metavar="UNIT", help="The unit of a Triton table whose columns do not say it."
        ),
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option("--keys", metavar="A,B", help="The columns of a Triton table that are parameters."),
    ] = None,
    max_gib: Annotated[
        float, typer.Option("--max-gib", metavar="N", min=0.001, help="Refuse a bundle that unpacks to more.")
    ] = 16.0,
    archive: options.ArchiveFolder = options.DEFAULT_ARCHIVE,
    as_json: options.Json = False,
) -> None:
    """Take in a run that `farbench export` wrote, or the results of another tool as a run.

    The run queries, reports and compares like any other. Importing the same file again changes nothing. Prints the run id.

    Examples: `farbench import fp4-h200.tar.zst`, `farbench import bench.json --device 'NVIDIA H200' --host gpu1`
    """
    from orchestrator.archive import Archive
    from orchestrator.archive.unbundle import import_run, is_bundle

    kept = Archive(archive)
    about = {"device": device, "host": host, "backend": backend, "label": label}
    try:
        bundle = is_bundle(file)
    except OSError as error:
        raise FileError(f"cannot be read: {error.strerror}", path=file) from None
    if bundle:
        given = [f"--{name}" for name, value in about.items() if value is not None]
        given += ["--param"] * bool(param) + ["--format"] * (format is not ForeignFormat.AUTO)
        if given:
            raise UsageError(f"{file} is a run of farbench, which says that itself: {', '.join(given)}")
        taken = import_run(kept, file, most_bytes=int(max_gib * 1024**3))
        _told(taken.folder.run_id, "farbench", taken.already_here, None, as_json=as_json)
        return
    _foreign(kept, file, format.value, about, param or [], unit, keys, as_json=as_json)


def _foreign(
    kept: Archive,
    file: Path,
    format: str,
    about: dict[str, str | None],
    param: list[str],
    unit: str | None,
    keys: str | None,
    *,
    as_json: bool,
) -> None:
    from orchestrator.importers.land import import_file
    from orchestrator.importers.measurements import Said
    from orchestrator.importers.reading import Wishes
    from orchestrator.importers.source import Source

    columns = tuple(key.strip() for key in (keys or "").split(",") if key.strip())
    said = Said(**about, params=_parameters(param), wishes=Wishes(unit, columns, names_case=bool(param)))
    landed = import_file(kept, Source.read(file), format, said, clock=time.time, argv=sys.argv)
    for remark in landed.remarks:
        warn(remark)
    _told(landed.folder.run_id, landed.format, landed.already_here, landed.measurements, as_json=as_json)


def _parameters(given: list[str]) -> dict[str, Any]:
    from orchestrator.yamlfile import Document

    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--param {text}: is not NAME=VALUE, such as tp=8")
        try:
            found[name.strip()] = Document("--param", value).data
        except FileError as error:
            raise UsageError(f"--param {text}: {error.bare_message}") from None
    return found


def _told(run_id: str, format: str, already_here: bool, measurements: int | None, *, as_json: bool) -> None:
    if as_json:
        document = {"run_id": run_id, "format": format, "already_here": already_here}
        print_json(document | ({} if measurements is None else {"measurements": measurements}))
        return
    if already_here:
        say("it is in the archive already; nothing was changed")
    elif measurements is not None:
        say(f"{measurements} measurement{'' if measurements == 1 else 's'} of {format}")
    print_text(run_id)
