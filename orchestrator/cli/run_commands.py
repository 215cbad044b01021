"""Commands that work on a run: run, attach, resume, cancel, status."""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import options
from orchestrator.cli.console import out, print_json, say, warn
from orchestrator.cli.following import (
    announce,
    archive_may_fail,
    detaching,
    finish,
    open_connections,
    progress,
)
from orchestrator.errors import EXIT_INTERRUPTED, ArchiveError, NothingToDo
from orchestrator.wording import visible, without_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.archive import Archive, RunFolder
    from orchestrator.run.ending import Outcome
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
    from orchestrator.cli.loading import load_plan
    from orchestrator.run.ahead import Ahead

    with Ahead() as ahead, open_connections(quiet=True) as connections:
        plan = load_plan(
            sweep, hosts_file, host, tag, sets, only, warn=warn, tell_hosts=partial(ahead.call, connections)
        )
        from orchestrator.archive import Archive
        from orchestrator.run.start import carry_out, prepare

        prepared = prepare(
            plan, Archive(archive), environ=os.environ, argv=sys.argv, wait_for_devices=not no_wait
        )
        with detaching(prepared.run.run_id, launches=True) as detached:
            announce(prepared.run.run_id, as_json)
            connections.speak()
            outcome = carry_out(
                prepared,
                open_transport=partial(ahead.transport, connections),
                observer=progress(),
                detach=detach,
            )
    if detached():
        return EXIT_INTERRUPTED
    return finish(outcome, archive, as_json)


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
    from orchestrator.run.takeup import claim, stored, take_up, watch

    kept = Archive(archive)
    folder = kept.find(run)
    announce(folder.run_id, as_json)
    opened = claim(kept, folder)
    if opened is None:
        return finish(stored(kept, kept.find(folder.run_id)), archive, as_json, told=False)
    with detaching(folder.run_id, launches=False) as detached:
        if opened.holds_lock:
            with open_connections() as connections:
                outcome = take_up(
                    opened,
                    open_transport=connections.transport,
                    observer=progress(),
                    environ=os.environ,
                    way=Way.FOLLOW,
                )
        else:
            outcome = watch(kept, folder, observer=progress())
    return EXIT_INTERRUPTED if detached() else finish(outcome, archive, as_json, told=opened.holds_lock)


AS_STORED = "with the sweep, scripts and host entries stored in the run; `farbench run` takes changed ones"


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
    (and of what --retry names; an open run is completed first). Sweep, scripts and host entries are those stored with
    the run: after changing one of them, use `farbench run`.

    Example: `farbench resume latest --retry crashed`
    """
    from orchestrator.archive import Archive
    from orchestrator.run.follow import Way
    from orchestrator.run.takeup import claim, take_up

    kept = Archive(archive)
    kept.require_folder()
    folder = kept.find(run)
    opened = claim(kept, folder)
    if opened is None:
        return _resume_complete(kept, kept.find(folder.run_id), retry, detach, as_json)
    if not opened.holds_lock:
        raise ArchiveError(
            f"run {folder.run_id} is being followed by another farbench; `farbench attach` looks on"
        )
    with detaching(folder.run_id, launches=True) as detached, open_connections() as connections:
        announce(folder.run_id, as_json)
        say(AS_STORED)
        outcome = take_up(
            opened, open_transport=connections.transport, observer=progress(), environ=os.environ,
            way=Way.RESUME, detach=detach,
        )  # fmt: skip
    if detached():
        return EXIT_INTERRUPTED
    if retry and opened.folder.is_committed:
        return _resume_complete(kept, opened.folder, retry, detach, as_json)
    return finish(outcome, archive, as_json)


def _resume_complete(
    kept: Archive, folder: RunFolder, retry: list[str] | None, detach: bool, as_json: bool
) -> int:
    """A new run of what a complete one lacks, and of what is to be tried again."""
    from orchestrator.run.again import prepare_again
    from orchestrator.run.start import carry_out

    prepared = prepare_again(kept, folder, retry=tuple(retry or ()), environ=os.environ, argv=sys.argv)
    with detaching(prepared.run.run_id, launches=True) as detached, open_connections() as connections:
        announce(prepared.run.run_id, as_json)
        say(AS_STORED)
        outcome = carry_out(
            prepared, open_transport=connections.transport, observer=progress(), detach=detach
        )
    return EXIT_INTERRUPTED if detached() else finish(outcome, kept.path, as_json)


CANCEL_AGAIN_S = 60.0
"""A host that cannot be told to stop is told again for so long, while another farbench follows the run."""
FOLLOWER_S = 10.0
"""So long that other one, which may be stopped itself, is given to take in that the hosts have ended."""


def cancel(
    run: options.RunName = "latest",
    forget: Annotated[
        bool,
        typer.Option("--forget", help="End the run here even if a host with results of it does not answer."),
    ] = False,
    archive: options.ArchiveFolder = options.DEFAULT_ARCHIVE,
    as_json: options.Json = False,
) -> int:
    """Stop a run on all its hosts and free their devices. What was measured is kept.

    The run stays open while a host that may have results does not answer: cancel again when it does.

    Example: `farbench cancel latest`
    """
    from orchestrator.archive import Archive, read_document
    from orchestrator.run.takeup import may_go_on, stored, tell_hosts_to_cancel

    kept = Archive(archive)
    kept.require_folder()
    folder = kept.find(run)
    ended = folder.is_committed
    unheard = may_go_on(read_document(folder.run_json)) if ended else []
    if ended and not unheard:
        raise NothingToDo(f"run {folder.run_id} has ended; there is nothing to cancel")
    with open_connections() as connections:
        # Asked by a command of its own: it also ends what an agent left that is gone. What is here of an open run is
        # looked at afterwards: hosts must stop even if that cannot be read.
        failures = tell_hosts_to_cancel(folder, connections.transport, unheard if ended else None)
        for failure in failures.values():
            warn(
                f"not told to stop, and may go on: {failure}\n"
                f"  tell it again with: farbench cancel {folder.run_id}"
            )
        if ended:
            outcome = stored(kept, folder)
        else:
            outcome, failures = _bring_home_cancelled(kept, folder, connections, failures, forget)
    if as_json:
        print_json(outcome.to_json())
    else:
        done = sum(n for status, n in outcome.counts.items() if status not in ("cancelled", "lost"))
        say(f"{outcome.run_id}: {outcome.state}; {done} measurements kept")
        if outcome.state == "running" and not failures:
            say(
                "its hosts have stopped; another farbench follows it and has not taken that in yet. "
                f"Let that one go on, or end it and then: farbench cancel {outcome.run_id}"
            )
        if outcome.state == "lost":
            say(
                f"it stays open for what a host may have; cancel it again, or: farbench cancel {outcome.run_id} --forget"
            )
    return 0 if outcome.state in ("cancelled", "finished") and not failures else 1


def _bring_home_cancelled(
    kept: Archive, folder: RunFolder, connections: Connections, failures: dict[str, str], forget: bool
) -> tuple[Outcome, dict[str, str]]:
    """Take in what the hosts had measured; or look on while the run's coordinator does, and tell hosts that could not
    be told again meanwhile. Returns how the run stands, and the hosts that were still not told."""
    from orchestrator.run.follow import Way
    from orchestrator.run.takeup import claim, stored, take_up, tell_hosts_to_cancel, watch

    opened = claim(kept, folder)
    if opened is None:  # its coordinator has been faster
        return stored(kept, kept.find(folder.run_id)), failures
    if opened.holds_lock:
        way = Way.FORGET if forget else Way.CANCEL
        told = "the hosts that answered have stopped, and keep what they measured"
        with archive_may_fail(told, f"farbench cancel {folder.run_id}"):
            outcome = take_up(
                opened, open_transport=connections.transport, observer=progress(), environ=os.environ, way=way
            )
        return outcome, failures
    deadline = time.monotonic() + CANCEL_AGAIN_S
    while failures and time.monotonic() < deadline:
        time.sleep(2.0)
        failures = tell_hosts_to_cancel(folder, connections.transport, failures)
    if failures:
        return stored(kept, kept.find(folder.run_id)), failures
    return watch(kept, folder, observer=progress(), patience_s=FOLLOWER_S), failures


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
        with open_connections() as connections:
            answers = ask_hosts(folder, connections.transport)
    document = outcome.to_json()
    for name, answer in answers.items():
        document["hosts"][name] = answer.to_json()
    not_home = sum(answer.not_home for answer in answers.values())
    document["counts"] = _without_what_hosts_have(outcome.counts, not_home)
    if as_json:
        print_json(document)
        return
    out().print(f"{outcome.run_id}  {outcome.state}  {outcome.archive}")
    told = [f"{status}: {n}" for status, n in document["counts"].items()]
    told += [f"not brought home yet: {not_home}"] if not_home else []
    out().print("  ".join(told) or "nothing measured yet")
    for name, host in document["hosts"].items():
        out().print(f"{name}: {host['state']}  {_standing(name, host)}".rstrip(), soft_wrap=True)
    gone = [name for name, answer in answers.items() if answer.agent == "dead"]
    if gone and outcome.state != "running":
        told_of = (
            f"the agent of {', '.join(gone)} is gone" if len(gone) < 4 else f"{len(gone)} agents are gone"
        )
        out().print(f"{told_of}; go on with: farbench resume {outcome.run_id}", soft_wrap=True)
    elif not_home and outcome.state != "running":
        out().print(f"bring them home with: farbench attach {outcome.run_id}", soft_wrap=True)


def _without_what_hosts_have(counts: Mapping[str, int], not_home: int) -> dict[str, int]:
    """What a host has measured is not lost."""
    lost = counts.get("lost", 0) - not_home
    return {status: n for status, n in counts.items() if status != "lost"} | (
        {"lost": lost} if lost > 0 else {}
    )


def _standing(name: str, host: dict[str, Any]) -> str:
    """A host's line of `status`, after its state; what it is told to do about an error stands below."""
    if host["error"]:
        return "\n".join(map(visible, without_name(name, host["error"]).split("\n")))
    told = [f"agent {host['agent']}"] if host.get("agent") else []
    measured = sum(host.get("counts", {}).values())
    told += [f"{measured} measured there"] if measured else []
    told += [visible(host["waiting"])] if host.get("waiting") else []
    return ", ".join(told)
