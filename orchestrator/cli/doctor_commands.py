"""Commands that look at hosts and make them ready: doctor, setup."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import options
from orchestrator.cli.console import out, print_json, print_text, say, show, warn
from orchestrator.errors import EXIT_INCOMPLETE, EXIT_NO_HOST, EXIT_OK, UsageError
from orchestrator.wording import visible

if TYPE_CHECKING:
    from orchestrator.doctor import HostHealth

_SIDE_BY_SIDE = 4
_COLUMN_CHARS = 30
_MARKS = {"ok": "✓", "warning": "!", "failed": "✗", "skipped": "·"}
_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red", "skipped": "dim"}


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the application."""
    app.command()(doctor)
    app.command()(setup)


def doctor(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[HOST]…",
            help="The hosts to look at; all of them when none is named.",
            show_default=False,
        ),
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="TAG", help="Look at the hosts with this tag; may be repeated."),
    ] = None,
    hosts_file: options.HostsFile = options.DEFAULT_HOSTS_FILE,
    as_json: options.Json = False,
) -> int:
    """Check hosts from the network to the kernel libraries, and say how to fix what is wrong. At most 10 s.

    Exit codes: 0 nothing failed, 1 something failed, 3 no host can be used.

    Example: `farbench doctor blackwell`
    """
    from orchestrator.cli.loading import load_hosts
    from orchestrator.doctor import LIMIT_S, examine
    from orchestrator.inventory import select
    from orchestrator.transport.open import Connections

    chosen = select(load_hosts(hosts_file), names=tuple(names or ()), tags=tuple(tag or ()))
    # Not so long that the time is over before the reason is known.
    with Connections(environ=os.environ, warn=warn, retry_for_s=LIMIT_S / 3) as connections:
        found = examine(chosen, connections.transport, environ=os.environ)
    if as_json:
        print_json({"hosts": {health.host: health.to_json() for health in found}})
    else:
        _print(found)
    if not any(health.usable for health in found):
        return EXIT_NO_HOST
    return EXIT_INCOMPLETE if any(health.failed for health in found) else EXIT_OK


def setup(
    host: Annotated[str, typer.Argument(metavar="HOST", help="The host to set up.", show_default=False)],
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile", metavar="NAME", help="gpu-cu130, gpu-cu129, fp4-sgl or cpu.", show_default=False
        ),
    ] = None,
    requirements: Annotated[
        Path | None,
        typer.Option(
            "--requirements",
            metavar="FILE",
            help="A requirements file instead of a profile.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", help="The environment's name; the profile's when left out.", show_default=False
        ),
    ] = None,
    wheelhouse: Annotated[
        Path | None,
        typer.Option(
            "--wheelhouse",
            metavar="DIR",
            help="Install from these wheels alone, without any index.",
            show_default=False,
        ),
    ] = None,
    extra_index: Annotated[
        list[str] | None,
        typer.Option(
            "--extra-index",
            metavar="URL",
            help="A further index for the host to install from; may be repeated.",
        ),
    ] = None,
    base_python: Annotated[
        str | None,
        typer.Option(
            "--base-python",
            metavar="PATH",
            help="The interpreter on the host to make it from.",
            show_default=False,
        ),
    ] = None,
    installer: Annotated[
        str | None,
        typer.Option(
            "--installer",
            metavar="uv|pip",
            help="The one to use; uv where the host has it.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Make it anew even if nothing changed.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Install a profile for GPUs also on a host that has none.")
    ] = False,
    hosts_file: options.HostsFile = options.DEFAULT_HOSTS_FILE,
    as_json: options.Json = False,
) -> None:
    """Make or update a Python environment for payloads on a host, and print the `python:` line for hosts.yaml.

    It lies in the host's work folder, under `envs/`; nothing else on the host is touched. Running it again changes
    nothing. An update is built beside the environment in use, which stays usable until the new one is whole.

    Example: `farbench setup blackwell --profile fp4-sgl`
    """
    from orchestrator import environments
    from orchestrator.cli.loading import load_hosts
    from orchestrator.environments.profiles import NAME
    from orchestrator.inventory import select
    from orchestrator.launch.dialogue import Dialogue
    from orchestrator.transport.open import Connections

    if (profile is None) == (requirements is None):
        known = "".join(f"\n  {entry.name:<10} {entry.summary}" for entry in environments.PROFILES.values())
        raise UsageError(f"name either --profile or --requirements; profiles are:{known}")
    if installer not in (None, "uv", "pip"):
        raise UsageError(f"--installer is uv or pip, not {installer!r}")
    wanted = (
        environments.find_profile(profile)
        if profile
        else environments.read_requirements(requirements or Path())
    )
    chosen = name or wanted.name
    if not NAME.fullmatch(chosen):
        raise UsageError(f"{chosen!r} is no name for an environment (letters, digits, `.`, `_`, `-`)")
    if wheelhouse is not None and extra_index:
        raise UsageError("--wheelhouse installs without any index; leave --extra-index out")
    (spec,) = select(load_hosts(hosts_file), names=(host,))
    wheels = environments.read_wheelhouse(wheelhouse) if wheelhouse is not None else None
    with Connections(environ=os.environ, warn=warn) as connections:
        outcome = environments.set_up(
            Dialogue(connections.transport(spec), spec), spec.name, wanted, name=chosen, wheelhouse=wheels,
            extra_indexes=tuple(extra_index or ()), base_python=base_python, installer=installer, force=force,
            even_without_gpu=yes, on_progress=say,
        )  # fmt: skip
    if as_json:
        print_json(outcome.to_json(spec.name))
        return
    count = len(outcome.freeze.get("packages") or {})
    told = "was made" if outcome.changed else "is as it should be; nothing was changed"
    say(f"{spec.name}: environment {chosen} {told} ({count} packages). For hosts.yaml:")
    print_text(f"python: {outcome.python}")


def _print(found: Sequence[HostHealth]) -> None:
    """Hosts beside each other where that fits, else one after another; then what is to be fixed."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    width = shutil.get_terminal_size().columns
    beside = max(1, min(_SIDE_BY_SIDE, width // _COLUMN_CHARS))
    for start in range(0, len(found), beside):
        group = found[start : start + beside]
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("check", no_wrap=True)
        for health in group:
            table.add_column(f"{health.host} ({health.elapsed_s:.1f} s)", overflow="fold", ratio=1)
        names = list(dict.fromkeys(check.name for health in group for check in health.checks))
        for name in names:
            cells = []
            for health in group:
                check = next((check for check in health.checks if check.name == name), None)
                text = (
                    ""
                    if check is None
                    else f"{_MARKS[check.state]} {visible(check.found.splitlines()[0] if check.found else '', 200)}"
                )
                cells.append(Text(text, style=_COLOURS[check.state] if check is not None else ""))
            table.add_row(Text(name), *cells)
        show(table)
    for health in found:
        for check in health.checks:
            if check.state in ("warning", "failed"):
                text = f"{health.host}: {check.name} {check.state}: {check.found}"
                out().print(Text(text, style=_COLOURS[check.state]), soft_wrap=True)
                if check.fix:
                    out().print(Text(f"    to fix: {check.fix}"), soft_wrap=True)
        if not health.usable:
            out().print(Text(f"{health.host} cannot be used", style="red"), soft_wrap=True)
