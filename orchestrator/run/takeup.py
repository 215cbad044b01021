"""Coming back to a run: follow it again, and on request start again what is gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.archive import Archive, OpenRun, RunDocument, RunFolder, expected, fold_run, read_document
from orchestrator.archive.faults import reading
from orchestrator.errors import ArchiveError, HostError
from orchestrator.inventory import HostSpec, resolve_environment
from orchestrator.launch.dialogue import Dialogue
from orchestrator.run import launchfile
from orchestrator.run.ending import Outcome, gaps, with_gaps
from orchestrator.run.follow import Way, follow_run
from orchestrator.run.hostrun import NO_SUCH_RUN, is_never_started, never_started
from orchestrator.run.observer import Observer, waiting_for
from orchestrator.transport.base import Transport

POLL_S = 0.5
T = TypeVar("T")


def take_up(
    run: OpenRun,
    *,
    open_transport: Callable[[HostSpec], Transport],
    observer: Observer,
    environ: Mapping[str, str],
    way: Way,
    detach: bool = False,
    clock: Callable[[], float] = time.time,
) -> Outcome:
    """Follow an open run whose lock we hold from where its journals end here, then commit it.

    To resume, a host whose agent is gone, or that never got its part, is given it (again): the agent takes up its own
    journal, so that only what has no result is measured. For a run that was cancelled, see `tell_hosts_to_cancel`.
    """
    launch = launchfile.read(run.folder.path)
    secrets = {}
    if way is Way.RESUME:
        secrets = {name: resolve_environment(spec, environ).secrets for name, spec in launch.hosts.items()}
    return follow_run(
        run, launch, tree=dict(script_files(run.folder.scripts)), secrets=secrets, way=way,
        open_transport=open_transport, observer=observer, detach=detach, clock=clock,
    )  # fmt: skip


def claim(archive: Archive, folder: RunFolder) -> OpenRun | None:
    """The open run, locked unless another coordinator has it (`holds_lock`); None if it is complete by now: its
    coordinator may have been faster than we were since we found it."""
    if folder.is_committed:
        return None
    try:
        opened = archive.open_run(folder.run_id)
        opened.lock()
    except ArchiveError:
        if archive.find(folder.run_id).is_committed:
            return None
        raise
    return opened


def watch(
    archive: Archive, folder: RunFolder, *, observer: Observer, patience_s: float = float("inf")
) -> Outcome:
    """Look on while another coordinator works, until the run has moved or that coordinator is gone, or for
    `patience_s`. Only reads."""
    deadline = time.monotonic() + patience_s
    document = read_document(folder.run_json)
    fold = fold_run(folder, document)
    observer.begin(folder.run_id, sum(1 for _ in expected(document, fold)))
    try:
        while True:
            try:
                now = archive.find(folder.run_id)
            except ArchiveError:
                now = folder  # between its two places
            if now.is_committed or archive.state(now) != "running" or time.monotonic() > deadline:
                break
            for host in folder.host_names(tuple(document.hosts)):
                for data in _new_bytes(folder.events(host), fold.offset(host)):
                    for measurement in fold.feed(host, data):
                        observer.measured(measurement)
            observer.tick(fold, sum(1 for _ in expected(document, fold)))
            time.sleep(POLL_S)
    finally:
        observer.end()
    return stored(archive, archive.find(folder.run_id))


def stored(archive: Archive, folder: RunFolder) -> Outcome:
    """A run as the archive has it, without asking any host."""
    document = read_document(folder.run_json)
    state = archive.state(folder, document)
    counts, verdicts = document.counts, document.verdicts
    if not folder.is_committed:
        fold = fold_run(folder, document)
        counts, verdicts = dict(fold.counts().statuses), dict(fold.counts().verdicts)
        if state == "lost":
            counts = with_gaps(fold, len(gaps(document, fold)))
    return Outcome(
        run_id=folder.run_id,
        state=state,
        archive=archive.told(str(folder.path)),
        counts=counts,
        verdicts=verdicts,
        hosts={name: (host.state or "ok", host.error) for name, host in document.hosts.items()},
        committed=folder.is_committed,
    )


@dataclass(frozen=True)
class HostAnswer:
    """What a host says of its part of a run right now: how its agent stands, what it measured, how many results of that
    are not here yet, whom it waits for."""

    state: str
    error: str | None = None
    agent: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    not_home: int = 0
    waiting: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The entry of `status --json`."""
        return asdict(self)


def ask_hosts(folder: RunFolder, open_transport: Callable[[HostSpec], Transport]) -> dict[str, HostAnswer]:
    """What every host of an open run says right now, side by side."""
    launch = launchfile.read(folder.path)
    fold = fold_run(folder, read_document(folder.run_json))

    def ask(spec: HostSpec) -> HostAnswer:
        try:
            answer = Dialogue(open_transport(spec), spec).status(launch.run_id)
        except HostError as error:
            begun = folder.events(spec.name).exists()
            told = never_started(spec.name, launch.run_id) if is_never_started(error, begun) else str(error)
            return HostAnswer(error.state, told)
        here = sum(fold.host(spec.name).statuses.values())
        more = sum(answer.counts.values()) - here if answer.offset > fold.offset(spec.name) else 0
        return HostAnswer(
            "ok",
            agent=answer.state,
            counts=answer.counts,
            not_home=max(0, more),
            waiting=answer.note or waiting_for(answer.waiting),
        )

    return each_host(launch.hosts, ask)


def may_go_on(document: RunDocument) -> list[str]:
    """Hosts of a complete run that did not end in order, and may have a part of it."""
    return [
        name
        for name, host in document.hosts.items()
        if host.state not in (None, "ok") and host.begun is not False
    ]


def tell_hosts_to_cancel(
    folder: RunFolder,
    open_transport: Callable[[HostSpec], Transport],
    hosts: Collection[str] | None = None,
) -> dict[str, str]:
    """Stop a run on its hosts (or on those named), and wait until its workers are gone; returns what failed, by host."""
    launch = launchfile.read(folder.path)
    chosen = {name: spec for name, spec in launch.hosts.items() if hosts is None or name in hosts}

    def tell(spec: HostSpec) -> str | None:
        try:
            Dialogue(open_transport(spec), spec).cancel(launch.run_id)
        except HostError as error:
            return None if error.step == NO_SUCH_RUN else str(error)
        return None

    return {name: failure for name, failure in each_host(chosen, tell).items() if failure}


def each_host(hosts: Mapping[str, HostSpec], do: Callable[[HostSpec], T]) -> dict[str, T]:
    """`do` for every host, at most 32 at once; results by name, in the order given."""
    with ThreadPoolExecutor(max_workers=min(32, max(1, len(hosts)))) as pool:
        return dict(zip(hosts, pool.map(do, hosts.values()), strict=True))


def _new_bytes(path: Path, offset: int) -> Iterator[bytes]:
    try:
        with reading(path, absent=False), path.open("rb") as journal:
            journal.seek(offset)
            while data := journal.read(1 << 20):
                yield data
    except FileNotFoundError:
        return  # the run has just moved


def script_files(scripts: Path) -> Iterator[tuple[str, bytes]]:
    """The files of a run as its hosts have them: (path in their run folder, content)."""
    for path in sorted(scripts.rglob("*")):
        if path.is_file():
            with reading(path):
                content = path.read_bytes()
            yield f"scripts/{path.relative_to(scripts).as_posix()}", content
