"""What the commands that follow a run share: connections, progress, how Ctrl-C leaves, and how a run is printed at its end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.console import err, print_json, say, show, warn
from orchestrator.cli.streams import drop, emit, mention
from orchestrator.cli.terminal import TERMINAL
from orchestrator.errors import EXIT_NO_HOST, ArchiveFault, ArchiveFull, RunIncomplete

if TYPE_CHECKING:
    from orchestrator.archive import Archive, RunFolder
    from orchestrator.run.ending import Outcome
    from orchestrator.run.observer import Observer
    from orchestrator.transport.open import Connections


LARGEST_TABLE = 2000
"""Nobody reads more measurements than that on a terminal; they are only a command away."""


def announce(run_id: str, as_json: bool) -> None:
    """The run's id, before anything else; on standard error when standard output is for the document."""
    if as_json:
        mention(run_id + "\n")
        return
    try:
        emit(run_id + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # `| true`: whoever read has left, and the run goes on
        drop(sys.stdout)
    except OSError as error:
        # The output will fail again at the end, as the command's error; the run is worth its while all the same.
        warn(f"standard output cannot be written ({error.strerror}); the run is {run_id}")


def progress() -> Observer:
    """A live view in a terminal, plain lines elsewhere."""
    if sys.stderr.isatty():
        from orchestrator.cli.progress import LiveProgress

        if not err().is_dumb_terminal:
            return LiveProgress(err())
    from orchestrator.cli.plain import PlainProgress

    return PlainProgress(say)


@contextmanager
def open_connections(*, quiet: bool = False) -> Iterator[Connections]:
    """Connections with the user's own keys, closed at the end; `quiet` ones wait for `speak` before they say anything."""
    from orchestrator.transport.open import Connections

    TERMINAL.reopen()
    with Connections(
        environ=os.environ, ask_passphrase=_ask_passphrase(), warn=warn, quiet=quiet
    ) as connections:
        try:
            yield connections
        finally:
            TERMINAL.give_up()


def _ask_passphrase() -> Callable[[Path], str | None] | None:
    """Ask on the terminal, if there is one; nothing else ever reads standard input."""
    if not sys.stdin or not sys.stdin.isatty() or os.environ.get("SSH_ASKPASS_REQUIRE") == "force":
        return None

    return lambda path: TERMINAL.ask(f"passphrase of {path}: ")


@contextmanager
def detaching(run_id: str, *, launches: bool) -> Iterator[Callable[[], bool]]:
    """Ctrl-C leaves the run to its hosts and says how to come back; an archive that takes no more does so too, as an error.

    `launches`: the hosts are given their part of the run inside."""
    interrupted = False
    with archive_may_fail(
        "what was launched goes on at its hosts, and nothing measured there is lost",
        f"farbench attach {run_id}",
    ):
        try:
            yield lambda: interrupted
        except KeyboardInterrupt as error:
            interrupted = True
            _say_how_to_come_back(run_id, getattr(error, "unlaunched", None if launches else ()))


@contextmanager
def archive_may_fail(meanwhile: str, again: str) -> Iterator[None]:
    """What cannot be written or read here is no wrong usage: say how the run stands, and what to do then."""
    try:
        yield
    except ArchiveFault as error:
        first = "Make room here" if isinstance(error, ArchiveFull) else "Fix that here"
        raise RunIncomplete(f"{error}\n  {meanwhile}. {first}, then: {again}") from error


def _say_how_to_come_back(run_id: str, unlaunched: tuple[str, ...] | None) -> None:
    """`unlaunched`: the hosts that have no part of the run; None where that is not known."""
    if unlaunched is None:
        say(
            f"interrupted; what was started goes on. Start the rest and follow it with: farbench resume {run_id}"
        )
    elif unlaunched:
        say(
            f"interrupted before the run was started on {', '.join(unlaunched)}. "
            f"Start it there and follow it with: farbench resume {run_id}"
        )
    else:
        say(f"detached; the run goes on. Follow it again with: farbench attach {run_id}")
    say(f"stop it with: farbench cancel {run_id}")


def finish(outcome: Outcome, archive: Path, as_json: bool, *, told: bool = True) -> int:
    """Print what the run came to, and its exit code. `told`: what became of each host has been said already."""
    from orchestrator.archive import Archive

    if as_json:
        print_json(outcome.to_json())
    elif outcome.state == "detached":
        say(f"every host can go on alone. Follow the run with: farbench attach {outcome.run_id}")
    elif exit_code(outcome) == EXIT_NO_HOST and set(outcome.counts) <= {"lost"} and outcome.committed:
        # A table in which every number is `lost` says nothing.
        if not told:
            _say_what_became_of_hosts(outcome)
        say("no host could be used, and nothing was measured. Fix that, then run the sweep again.")
        say(f"the run is kept, without a result; to remove it: farbench runs --prune {outcome.run_id} --yes")
    else:
        if sum(outcome.counts.values()) <= LARGEST_TABLE:
            _print_report(Archive(archive), Archive(archive).find(outcome.run_id))
        else:
            counts = ", ".join(f"{n} {status}" for status, n in outcome.counts.items())
            say(f"{outcome.run_id}: {counts}. The whole table: farbench report {outcome.run_id}")
        _say_what_became_of_hosts(outcome)
        if outcome.state == "lost" and not outcome.committed:
            say(
                f"the run stays open: what is missing may still come. Go on with: farbench resume {outcome.run_id}"
            )
    return exit_code(outcome)


def _say_what_became_of_hosts(outcome: Outcome) -> None:
    for name, (state, error) in outcome.hosts.items():
        if state != "ok":
            say(f"{error or f'{name}: {state}'}")


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

    show(render(build(archive, folder)))
