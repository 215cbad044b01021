"""Commands that work on a run: run, attach, resume, cancel, status."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import options
from orchestrator.cli.console import err, out, print_json, say, warn
from orchestrator.errors import EXIT_INTERRUPTED, EXIT_NO_HOST, ArchiveError, NothingToDo
from orchestrator.wording import visible

if TYPE_CHECKING:
    from orchestrator.archive import Archive, RunFolder
    from orchestrator.run.ending import Outcome
    from orchestrator.run.observer import Observer
    from orchestrator.transport.open import Connections


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the application."""
    app.command()(run)
    app.command()(attach)
    app.command()(resume)
    app.command()(cancel)
    app.command()(status)


Detach = Annotated[bool, typer.Option("--detach", help="Return as soon as every host can go on alone.")]


def run(
    sweep: options.SweepFile,
    host: options.Hosts = None,
    tag: options.Tags = None,
    sets: options.Sets = None,
    only: options.Only = None,
    detach: Detach = False,
    no_wait: Annotated[
        bool,
        typer.Option("--no-wait", help="Refuse a device that somebody else measures on, instead of waiting."),
    ] = False,
    hosts_file: options.HostsFile = options.DEFAULT_HOSTS_FILE,
    archive: options.ArchiveFolder = options.DEFAULT_ARCHIVE,
    as_json: options.Json = False,
) -> int:
    """Measure a sweep on its hosts, bring the results into the archive, and print the table.

    The run id comes first. Ctrl-C detaches: the run goes on, and `farbench attach` follows it again.

    Example: `farbench run examples/fp4-gemm-glm5.yaml --host blackwell --only '*batch=16*'`
    """
    from orchestrator.archive import Archive
    from orchestrator.cli.loading import load_plan
    from orchestrator.run.start import carry_out, prepare

    plan = load_plan(sweep, hosts_file, host, tag, sets, only, warn=warn)
    prepared = prepare(
        plan, Archive(archive), environ=os.environ, argv=sys.argv, wait_for_devices=not no_wait
    )
    _announce(prepared.run.run_id, as_json)
    with _connections() as connections, _detaching(prepared.run.run_id) as detached:
        outcome = carry_out(
            prepared, open_transport=connections.transport, observer=_progress(), detach=detach
        )
    if detached():
        return EXIT_INTERRUPTED
    return _finish(outcome, archive, as_json)


def attach(
    run: options.RunName = "latest",
    archive: options.ArchiveFolder = options.DEFAULT_ARCHIVE,
    as_json: options.Json = False,
) -> int:
    """Follow a run again, from any terminal. Several may look on; one takes the results in.

    Example: `farbench attach latest`
    """
    from orchestrator.archive import Archive
    from orchestrator.run.follow import Way
    from orchestrator.run.takeup import stored, take_up, watch

    kept = Archive(archive)
    folder = kept.find(run)
    _announce(folder.run_id, as_json)
    if folder.is_committed:
        return _finish(stored(kept, folder), archive, as_json)
    opened = kept.open_run(folder.run_id)
    with _detaching(folder.run_id) as detached:
        if opened.lock():
            with _connections() as connections:
                outcome = take_up(
                    opened,
                    open_transport=connections.transport,
                    observer=_progress(),
                    environ=os.environ,
                    way=Way.FOLLOW,
                )
        else:
            outcome = watch(kept, folder, observer=_progress())
    return EXIT_INTERRUPTED if detached() else _finish(outcome, archive, as_json)


def resume(
    run: options.RunName = "latest",
    retry: Annotated[
        list[str] | None,
        typer.Option(
            "--retry",
            metavar="STATUS",
            help="Also measure again what ended so, e.g. crashed; may be repeated.",
        ),
    ] = None,
    detach: Detach = False,
    archive: options.ArchiveFolder = options.DEFAULT_ARCHIVE,
    as_json: options.Json = False,
) -> int:
    """Measure what has no result yet. The hosts are asked first, so nothing is measured twice.

    An open run goes on under its id; a complete one gets a new run of only what is `lost` or `cancelled`
    (and of what --retry names).

    Example: `farbench resume latest --retry crashed`
    """
    from orchestrator.archive import Archive
    from orchestrator.run.again import prepare_again
    from orchestrator.run.follow import Way
    from orchestrator.run.start import carry_out
    from orchestrator.run.takeup import take_up

    kept = Archive(archive)
    folder = kept.find(run)
    if folder.is_committed:
        prepared = prepare_again(kept, folder, retry=tuple(retry or ()), environ=os.environ, argv=sys.argv)
        _announce(prepared.run.run_id, as_json)
        with _connections() as connections, _detaching(prepared.run.run_id) as detached:
            outcome = carry_out(
                prepared, open_transport=connections.transport, observer=_progress(), detach=detach
            )
        return EXIT_INTERRUPTED if detached() else _finish(outcome, archive, as_json)
    opened = kept.open_run(folder.run_id)
    if not opened.lock():
        raise ArchiveError(
            f"run {folder.run_id} is being followed by another farbench; `farbench attach` looks on"
        )
    _announce(folder.run_id, as_json)
    with _connections() as connections, _detaching(folder.run_id) as detached:
        outcome = take_up(
            opened, open_transport=connections.transport, observer=_progress(), environ=os.environ,
            way=Way.RESUME, detach=detach,
        )  # fmt: skip
    return EXIT_INTERRUPTED if detached() else _finish(outcome, archive, as_json)


def cancel(
    run: options.RunName = "latest",
    archive: options.ArchiveFolder = options.DEFAULT_ARCHIVE,
    as_json: options.Json = False,
) -> int:
    """Stop a run on all its hosts and free their devices. What was measured is kept.

    Example: `farbench cancel latest`
    """
    from orchestrator.archive import Archive
    from orchestrator.run.follow import Way
    from orchestrator.run.takeup import stored, take_up, tell_hosts_to_cancel, watch

    kept = Archive(archive)
    folder = kept.find(run)
    outcome = stored(kept, folder)
    unheard = [name for name, (state, _) in outcome.hosts.items() if state != "ok"]
    if folder.is_committed and not unheard:
        raise NothingToDo(f"run {folder.run_id} has ended; there is nothing to cancel")
    with _connections() as connections:
        # Asked by a command of its own: it also ends what an agent left that is gone.
        failures = tell_hosts_to_cancel(
            folder, connections.transport, unheard if folder.is_committed else None
        )
        if not folder.is_committed:
            opened = kept.open_run(folder.run_id)
            if opened.lock():
                outcome = take_up(
                    opened, open_transport=connections.transport, observer=_progress(), environ=os.environ,
                    way=Way.CANCEL,
                )  # fmt: skip
            else:
                outcome = watch(kept, folder, observer=_progress())
    for failure in failures:
        warn(
            f"not told to stop, and may go on: {failure}\n  tell it again with: farbench cancel {folder.run_id}"
        )
    if as_json:
        print_json(outcome.to_json())
    else:
        done = sum(n for status, n in outcome.counts.items() if status not in ("cancelled", "lost"))
        say(f"{outcome.run_id}: {outcome.state}; {done} measurements kept")
    return 0 if outcome.state in ("cancelled", "finished") and not failures else 1


def status(
    run: options.RunName = "latest",
    archive: options.ArchiveFolder = options.DEFAULT_ARCHIVE,
    as_json: options.Json = False,
) -> None:
    """Say how a run stands: from the archive, and for an open run from its hosts.

    Example: `farbench status latest --json`
    """
    from orchestrator.archive import Archive
    from orchestrator.run.takeup import ask_hosts, stored

    kept = Archive(archive)
    folder = kept.find(run)
    outcome = stored(kept, folder)
    answers = {}
    if not folder.is_committed:
        with _connections() as connections:
            answers = ask_hosts(folder, connections.transport)
    document = outcome.to_json()
    for name, answer in answers.items():
        document["hosts"][name] = answer.to_json()
    if as_json:
        print_json(document)
        return
    out().print(f"{outcome.run_id}  {outcome.state}  {outcome.archive}")
    out().print("  ".join(f"{status}: {n}" for status, n in outcome.counts.items()) or "nothing measured yet")
    for name, host in document["hosts"].items():
        out().print(f"{name}: {host['state']}  {_standing(host)}".rstrip(), soft_wrap=True)


def _standing(host: dict[str, Any]) -> str:
    """A host's line of `status`, after its state."""
    if host["error"]:
        return visible(host["error"])
    told = [f"agent {host['agent']}"] if host.get("agent") else []
    measured = sum(host.get("counts", {}).values())
    told += [f"{measured} measured there"] if measured else []
    told += [visible(host["waiting"])] if host.get("waiting") else []
    return ", ".join(told)


def _announce(run_id: str, as_json: bool) -> None:
    stream = sys.stderr if as_json else sys.stdout
    stream.write(run_id + "\n")
    stream.flush()


def _progress() -> Observer:
    if sys.stderr.isatty():
        from orchestrator.cli.progress import LiveProgress

        if not err().is_dumb_terminal:
            return LiveProgress(err())
    from orchestrator.cli.plain import PlainProgress

    return PlainProgress(say)


@contextmanager
def _connections() -> Iterator[Connections]:
    from orchestrator.transport.open import Connections

    with Connections(environ=os.environ, ask_passphrase=_ask_passphrase(), warn=warn) as connections:
        yield connections


def _ask_passphrase() -> Callable[[Path], str | None] | None:
    """Ask on the terminal, if there is one; nothing else ever reads standard input."""
    if not sys.stdin or not sys.stdin.isatty() or os.environ.get("SSH_ASKPASS_REQUIRE") == "force":
        return None

    def ask(path: Path) -> str | None:
        import getpass

        try:
            return getpass.getpass(f"passphrase of {path}: ")
        except EOFError:
            return None

    return ask


@contextmanager
def _detaching(run_id: str) -> Iterator[Callable[[], bool]]:
    """Ctrl-C leaves the run to its hosts and says how to come back."""
    interrupted = False
    try:
        yield lambda: interrupted
    except KeyboardInterrupt:
        interrupted = True
        say(f"detached; the run goes on. Follow it again with: farbench attach {run_id}")
        say(f"stop it with: farbench cancel {run_id}")


def _finish(outcome: Outcome, archive: Path, as_json: bool) -> int:
    """Print what the run came to, and its exit code."""
    from orchestrator.archive import Archive

    if as_json:
        print_json(outcome.to_json())
    elif outcome.state == "detached":
        say(f"every host can go on alone. Follow the run with: farbench attach {outcome.run_id}")
    else:
        _print_report(Archive(archive), Archive(archive).find(outcome.run_id))
        for name, (state, error) in outcome.hosts.items():
            if state != "ok":
                say(f"{error or f'{name}: {state}'}")
        if outcome.state == "lost" and f"{os.sep}open{os.sep}" in outcome.archive:
            say(
                f"the run stays open: what is missing may still come. Go on with: farbench resume {outcome.run_id}"
            )
    return exit_code(outcome)


def exit_code(outcome: Outcome) -> int:
    """The exit code of a run as it stands."""
    from orchestrator.model import RunCounts

    if outcome.state == "detached":
        return 0
    if (
        outcome.hosts
        and all(state != "ok" for state, _ in outcome.hosts.values())
        and not outcome.counts.get("ok")
    ):
        return EXIT_NO_HOST
    if outcome.state == "lost":
        return 1
    return RunCounts(outcome.counts, outcome.verdicts).exit_code


def _print_report(archive: Archive, folder: RunFolder) -> None:
    from orchestrator.report import build, render

    out().print(render(build(archive, folder)))
