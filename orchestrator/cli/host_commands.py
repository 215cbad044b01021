"""Commands about hosts: hosts, gc."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from orchestrator.cli import options
from orchestrator.cli.console import out, print_json, say, show, warn
from orchestrator.errors import EXIT_NO_HOST
from orchestrator.wording import visible

if TYPE_CHECKING:
    from orchestrator.run.inspect import HostReport

MODULES = ("torch", "flashinfer", "sgl_kernel", "numpy")


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the application."""
    app.command()(hosts)
    app.command()(gc)


def hosts(
    host: Annotated[
        list[str] | None, typer.Option("--host", metavar="NAME", help="Only this host; may be repeated.")
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="TAG", help="Only the hosts with this tag; may be repeated."),
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Only list what the file says; connect to nothing.")
    ] = False,
    hosts_file: options.HostsFile = options.DEFAULT_HOSTS_FILE,
    as_json: options.Json = False,
) -> int:
    """List the hosts, and ask each one what it has: devices, Python, and the libraries of the payloads.

    Example: `farbench hosts --tag gpu`
    """
    from orchestrator.cli.loading import load_hosts
    from orchestrator.inventory import select
    from orchestrator.run.inspect import HostReport, inspect
    from orchestrator.transport.open import Connections

    chosen = select(load_hosts(hosts_file), names=tuple(host or ()), tags=tuple(tag or ()))
    if offline:
        reports = {spec.name: HostReport(spec) for spec in chosen}
    else:
        with Connections(environ=os.environ, warn=warn) as connections:
            reports = inspect(chosen, connections.transport, MODULES)
    if as_json:
        print_json({"hosts": {name: found.to_json() for name, found in reports.items()}})
    else:
        _print_hosts(reports)
    return 0 if offline or any(found.error is None for found in reports.values()) else EXIT_NO_HOST


def _print_hosts(reports: Mapping[str, HostReport]) -> None:
    from orchestrator.report import Grid

    heads = ("host", "address", "state", "devices", "agent python", "libraries", "tags")
    rows = []
    for name, found in reports.items():
        spec = found.spec
        devices = ", ".join(f"{count} × {model}" for model, count in found.device_models().items())
        if spec.launcher.slurm is not None:  # what was asked is the login node
            nodes = spec.launcher.slurm.nodes
            devices = f"those of {nodes} jobs of Slurm" if nodes > 1 else "those of a job of Slurm"
        libraries = ", ".join(f"{module} {version}" for module, version in found.modules.items() if version)
        row = (
            Text(name, style="bold"),
            Text("embedded" if spec.embedded else spec.address or ""),
            Text(found.state or "", style="green" if found.state == "ok" else "red"),
            Text(devices),
            Text(found.agent_python or ""),
            Text(libraries),
            Text(", ".join(spec.tags)),
        )
        rows.append(row)
    show(Grid(heads, rows, below={place: f"{heads[place]}: " for place in (3, 4, 5, 6)}))
    for found in reports.values():
        if found.error:
            say(found.error)


def gc(
    host: Annotated[str, typer.Argument(metavar="HOST", help="The host to clean up.", show_default=False)],
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove it. Without this, only say what would go.")
    ] = False,
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="RUN", help="Keep this run on the host; may be repeated."),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Also runs whose results are not in this archive: the host may have the only copy."
        ),
    ] = False,
    hosts_file: options.HostsFile = options.DEFAULT_HOSTS_FILE,
    archive: options.ArchiveFolder = options.DEFAULT_ARCHIVE,
    as_json: options.Json = False,
) -> None:
    """Remove old runs, cached files and stray processes of farbench from a host. Says first what would go.

    A run whose agent is at work is never touched, nor one that is open in the archive. Runs of which the archive has no
    results (somebody else's, perhaps) stay for a week, unless --all is given.

    Example: `farbench gc blackwell`, then `farbench gc blackwell --yes`
    """
    from orchestrator.archive import Archive
    from orchestrator.cli.loading import load_hosts
    from orchestrator.inventory import select
    from orchestrator.launch.dialogue import Dialogue
    from orchestrator.transport.open import Connections

    (spec,) = select(load_hosts(hosts_file), names=(host,))
    with Connections(environ=os.environ, warn=warn) as connections:
        runs = Archive(archive).runs()
        unfinished = [run.run_id for run in runs if not run.is_committed]
        answer = Dialogue(connections.transport(spec), spec).gc(
            dry_run=not yes,
            keep=[*(keep or ()), *unfinished],
            home=None if everything else [run.run_id for run in runs if run.is_committed],
        )
    if as_json:
        print_json({"host": spec.name, "dry_run": not yes, **asdict(answer)})
        return
    for thing in answer.removed:
        what = f"{thing.get('kind', 'thing')} {thing.get('name', '')}: {thing.get('reason', '')}"
        out().print(Text(visible(what)), soft_wrap=True)
    for run in answer.kept:
        name, reason = str(run.get("run_id", "")), str(run.get("reason", ""))
        if name.partition(".")[0] in unfinished:
            reason = "it is open in this archive; `farbench attach` or `farbench resume` brings it home"
        say(visible(f"run {name} stays: {reason}"))
    for problem in answer.problems:
        warn(visible(problem))
    mib = answer.bytes / 2**20
    if not answer.removed:
        say(f"{spec.name}: nothing to remove")
    elif yes:
        say(f"{spec.name}: removed, {mib:.1f} MiB")
    else:
        say(f"{spec.name}: {mib:.1f} MiB would go; --yes removes it")
