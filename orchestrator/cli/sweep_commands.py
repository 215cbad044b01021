"""Commands that need no connection: init, payloads, plan, render."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from orchestrator.cli import options
from orchestrator.cli.console import print_json, say, show, warn
from orchestrator.errors import FileError, NothingToDo
from orchestrator.wording import visible


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the application."""
    app.command()(init)
    app.command()(payloads)
    app.command()(plan)
    app.command()(render)


def init(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where to write them.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Replace files that are already there.")] = False,
) -> None:
    """Write a commented hosts.yaml and sweep.yaml to start from. A file that is already there is left alone.

    Example: `farbench init && farbench run sweep.yaml`
    """
    starter = resources.files("orchestrator.cli") / "starter"
    names = ("hosts.yaml", "sweep.yaml")
    kept = [name for name in names if (folder / name).exists() and not force]
    left = f"left alone: {' and '.join(str(folder / name) for name in kept)} (--force replaces)"
    if len(kept) == len(names):
        raise NothingToDo(f"nothing to write; {left}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            if name not in kept:
                (folder / name).write_text((starter / name).read_text(encoding="utf-8"), encoding="utf-8")
                say(f"wrote {folder / name}")
    except OSError as error:
        raise FileError(f"cannot write: {error.strerror}", path=error.filename or folder) from error
    if kept:
        say(left)
    hosts_file = "" if folder == Path() else f" --hosts-file {folder / 'hosts.yaml'}"
    say(f"next: farbench run {folder / 'sweep.yaml'}{hosts_file}")


def payloads(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Show these in full.", show_default=False),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """List the benchmarks there are; with a name, one with all its parameters and backends.

    Those in ./payloads come first and win over built-in ones of the same name.

    Example: `farbench payloads gemm_fp4`
    """
    from orchestrator.rendering import Catalogue

    catalogue = Catalogue.default(Path.cwd())
    templates = [catalogue.find(name) for name in dict.fromkeys(names or ())]
    for name in () if names else catalogue.names():
        try:
            templates.append(catalogue.find(name))
        except FileError as error:
            warn(f"left out: {error}")
    if as_json:
        print_json({"payloads": [t.describe() for t in templates]})
        return
    described = [template.describe() for template in templates]
    if not names:
        _list_payloads(described)
        return
    for number, about in enumerate(described):
        if number:
            show(Text(""))
        _show_payload(about)


def _list_payloads(described: list[dict[str, Any]]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for about in described:
        said = Text(about["summary"] or "")
        if about["backends"]:
            said.append(f"\nbackends: {', '.join(about['backends'])}", style="dim")
        table.add_row(Text(about["name"], style="bold"), said)
    show(table)
    say("parameters, and what each backend is: farbench payloads NAME")


def _show_payload(about: dict[str, Any]) -> None:
    show(Text.assemble((about["name"], "bold"), f"  {about['summary'] or ''}"))
    show(Text(f"  {about['path']}", style="dim"))
    parameters = {name: _parameter(spec) for name, spec in (about["parameters"] or {}).items()}
    backends = {name: str(text or "") for name, text in (about["backends"] or {}).items()}
    for heading, entries in (("parameters", parameters), ("backends", backends)):
        if entries:
            table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
            table.add_column(no_wrap=True)
            table.add_column(overflow="fold")
            for name, text in entries.items():
                table.add_row(Text(name, style="cyan"), Text(text))
            show(Text(f"  {heading}"))
            show(Padding(table, (0, 0, 0, 4)))


def _parameter(spec: dict[str, Any]) -> str:
    words = [str(spec.get("type") or "any")]
    if "default" in spec and spec["default"] is not None:
        words.append(f"= {json.dumps(spec['default'])}")
    if spec.get("choices"):
        words.append("one of " + ", ".join(json.dumps(c) for c in spec["choices"]))
    if spec.get("help"):
        words.append(f"({spec['help']})")
    return " ".join(words)


def plan(
    sweep: options.SweepFile,
    host: options.Hosts = None,
    tag: options.Tags = None,
    sets: options.Sets = None,
    only: options.Only = None,
    hosts_file: options.HostsFile = options.DEFAULT_HOSTS_FILE,
    as_json: options.Json = False,
) -> None:
    """Show every case with its typed values, the backends, and where it would run. Connects to nothing.

    Example: `farbench plan examples/demo.yaml --set 'm=[16]'`
    """
    from orchestrator.cli.loading import load_plan
    from orchestrator.report import Grid

    made = load_plan(sweep, hosts_file, host, tag, sets, only, warn=warn)
    if as_json:
        print_json(made.to_json())
        return
    where: dict[str, list[str]] = {}
    for placement in made.placements:
        where.setdefault(placement.case_id, []).append(placement.host)
    several = len({p.host for p in made.placements}) > 1
    for part in made.parts:
        rows = []
        for case in part.cases:
            values = "  ".join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in case.params.items())
            cells = (visible(case.label), case.case_id, visible(values), ", ".join(where[case.case_id]))
            rows.append([Text(cell) for cell in cells])
        show(Text(f"{made.sweep.name}: {part.payload}", style="bold"))
        show(Grid(("case", "id", "parameters", "hosts"), rows, below={2: "", 3: "on "}))
        note = f" (baseline {part.baseline})" if part.baseline else ""
        show(Text(f"backends: {', '.join(part.backends) or 'one'}{note}"))
    total = len(made.cases)
    show(Text(f"{total} case{'s' * (total != 1)}, placement {made.sweep.placement}"))
    if several and made.sweep.placement == "shard":
        show(
            Text(
                "the hosts shown are where the cases start; they move to hosts of the same device model that run dry"
            )
        )


def render(
    sweep: options.SweepFile,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Where to write the scripts.")
    ],
    sets: options.Sets = None,
    only: options.Only = None,
) -> None:
    """Write the scripts of a sweep, with their harness, to a folder. Each one stands alone: `python NAME.py` runs it.

    Example: `farbench render examples/demo.yaml -o scripts && python scripts/gemm_fp4.py`
    """
    from orchestrator.cli.loading import load_scripts

    files = load_scripts(sweep, sets, only, warn=warn)
    try:
        for name, content in files.items():
            target = output / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    except OSError as error:
        raise FileError(f"cannot write: {error.strerror}", path=error.filename or output) from error
    for name in files:
        if "/" not in name:
            show(Text(str(output / name)))
