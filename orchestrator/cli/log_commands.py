"""Commands about what a run left beside its results: logs, pull."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import options
from orchestrator.cli.console import print_json, say, warn
from orchestrator.cli.following import archive_may_fail
from orchestrator.errors import EXIT_INTERRUPTED, EXIT_NO_HOST, ArchiveError, HostError, UsageError
from orchestrator.wording import visible

if TYPE_CHECKING:
    from orchestrator.archive import Archive, RunFolder
    from orchestrator.run.logs import Printed

LONGEST_LINE = 64 * 1024
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|[ -/]*[0-~]?)"
)


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the application."""
    app.command()(logs)
    app.command()(pull)


HostNames = Annotated[
    list[str] | None, typer.Option("--host", metavar="NAME", help="Only this host's; may be repeated.")
]


def logs(
    run: options.RunName = "latest",
    host: HostNames = None,
    worker: Annotated[
        str | None,
        typer.Option(
            "--worker", metavar="NAME", help="Only this worker's, e.g. gpu0-001; `agent` is the agent's own."
        ),
    ] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", metavar="N", min=0, help="Only the last N lines of each log.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is printed, until the run is over.")
    ] = False,
    archive: options.ArchiveFolder = options.DEFAULT_ARCHIVE,
    as_json: options.Json = False,
) -> int:
    """Print what the workers of a run printed: from its hosts, or from the archive once it was pulled.

    Control characters and colours are left out, and of a progress bar only its last state is shown.

    Example: `farbench logs latest --tail 20 --follow`
    """
    from orchestrator.archive import Archive
    from orchestrator.run.logs import Wanted, logs_of
    from orchestrator.transport.open import Connections

    if follow and as_json:
        raise UsageError("--follow never ends a JSON document; leave out one of --follow and --json")
    kept = Archive(archive)
    folder = kept.find(run)
    kept.bring(folder, everything=True)
    wanted = Wanted(tuple(host or ()), worker, tail, follow)
    with Connections(environ=os.environ, warn=warn) as connections:
        printed = logs_of(folder, wanted, open_transport=connections.transport, tell=warn)
        try:
            if as_json:
                return _print_as_json(folder.run_id, printed)
            if not _print(printed):
                say(f"nothing was printed by a worker {worker!r}" if worker else "nothing was printed")
            return 0
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED


def _print(printed: Iterator[Printed]) -> bool:
    """A line at a time, each after where it comes from; whether there was any."""
    held: dict[tuple[str, str], bytes] = {}
    any_at_all = False
    for item in printed:
        any_at_all = True
        *lines, rest = (held.pop((item.host, item.worker), b"") + item.data).split(b"\n")
        while len(rest) > LONGEST_LINE:
            lines.append(rest[:LONGEST_LINE])
            rest = rest[LONGEST_LINE:]
        for line in lines:
            _print_line(item.host, item.worker, line)
        if rest:
            held[item.host, item.worker] = rest
        sys.stdout.flush()
    for (name, worker), line in held.items():
        _print_line(name, worker, line)
    return any_at_all


def _print_line(host: str, worker: str, line: bytes) -> None:
    sys.stdout.write(f"{host}/{visible(worker)}  {inert(line)}\n")


def inert(line: bytes) -> str:
    """A line of a log, fit for a terminal: no escape sequence acts, and an overwritten line is its last state."""
    text = _ESCAPES.sub("", line.decode("utf-8", "replace"))
    states = [state for state in text.split("\r") if state]
    return visible(states[-1].replace("\t", "    ")) if states else ""


def _print_as_json(run_id: str, printed: Iterator[Printed]) -> int:
    texts: dict[tuple[str, str], bytearray] = {}
    for item in printed:
        texts.setdefault((item.host, item.worker), bytearray()).extend(item.data)
    found = [
        {"host": host, "worker": worker, "text": text.decode("utf-8", "replace")}
        for (host, worker), text in texts.items()
    ]
    print_json({"run_id": run_id, "logs": found})
    return 0


def pull(
    run: options.RunName = "latest",
    host: HostNames = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="DIR", help="Put them there; for a complete run they must go somewhere."
        ),
    ] = None,
    archive: options.ArchiveFolder = options.DEFAULT_ARCHIVE,
    as_json: options.Json = False,
) -> int:
    """Bring the logs of a run home from its hosts, and the files that its payloads were asked to keep.

    Of a run that is still open they go into its folder in the archive; a complete run never changes, so name a folder.
    (Files to be kept come home by themselves before a run is complete.)

    Example: `farbench pull latest -o logs/`
    """
    from orchestrator.archive import Archive

    kept = Archive(archive)
    if output is None:
        kept.require_folder()
    folder = kept.find(run)
    if output is None and folder.is_committed:
        raise UsageError(
            f"run {folder.run_id} is complete and never changes; say where its files should go: -o DIR"
        )
    again = f"farbench pull {folder.run_id}{'' if output is None else f' -o {output}'}"
    with archive_may_fail("what is not here is still at its hosts", again):
        found = _pull(kept, folder, tuple(host or ()), output)
    if as_json:
        print_json({"run_id": folder.run_id, **found})
    else:
        for failure in filter(None, found["hosts"].values()):
            warn(failure)
        for file in found["files"]:
            sys.stdout.write(f"{visible(str(file['path']))}  {file['bytes']} bytes\n")
        say(f"{len(found['files'])} files")
    failed = [name for name, failure in found["hosts"].items() if failure]
    silent = set(failed) - {file["host"] for file in found["files"]}
    return 0 if not failed else EXIT_NO_HOST if len(silent) == len(found["hosts"]) else 1


def _pull(kept: Archive, folder: RunFolder, hosts: tuple[str, ...], output: Path | None) -> dict[str, Any]:
    """{"files": [{"host", "path", "bytes"}], "hosts": {name: what went wrong, or None}}."""
    from orchestrator.archive.faults import writing
    from orchestrator.archive.files import make_folder, write_foreign
    from orchestrator.archive.paths import safe_name
    from orchestrator.launch.dialogue import Dialogue
    from orchestrator.run import launchfile
    from orchestrator.run.homecoming import Shelf, bring, place_of
    from orchestrator.transport.open import Connections

    specs = launchfile.read(folder.path).hosts
    for name in hosts:
        if name not in specs:
            raise ArchiveError(f"run {folder.run_id} has no host {name!r}; it has: {', '.join(specs)}")
    opened = None if output is not None else kept.open_run(folder.run_id)
    if opened is not None and not opened.lock():
        raise ArchiveError(
            f"run {folder.run_id} is being followed by another farbench; name a folder: -o DIR"
        )
    files: list[dict[str, Any]] = []
    told: dict[str, str | None] = {}

    def target_of(name: str, path: str) -> Path:
        return place_of(folder, name, path) if output is None else output / safe_name(name) / path

    def places(name: str, path: str) -> list[Path]:
        return list(dict.fromkeys((target_of(name, path), place_of(folder, name, path))))

    def save(name: str, path: str, pieces: Iterator[bytes]) -> Path:
        if opened is not None:
            return opened.save_file(name, path, pieces)
        target = target_of(name, path)
        with writing(target):
            make_folder(target.parent)
            write_foreign(target, pieces)
        return target

    with Connections(environ=os.environ, warn=warn) as connections:
        for name, spec in specs.items():
            if hosts and name not in hosts:
                continue
            told[name] = None
            try:
                dialogue, problems = Dialogue(connections.transport(spec), spec), list[str]()
                shelf = Shelf(partial(save, name), partial(places, name))
                tell = partial(_say_of, name)
                for path, size in bring(dialogue, folder.run_id, shelf, problems, tell):
                    files.append({"host": name, "path": str(path), "bytes": size})
                told[name] = "\n".join(f"{name}: {problem}" for problem in problems) or None
            except HostError as error:
                told[name] = str(error)
    if opened is not None:
        opened.close()
    return {"files": files, "hosts": told}


def _say_of(host: str, text: str) -> None:
    say(f"{host}: {text}")
