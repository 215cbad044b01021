"""The coordinator of one run: it takes in what the hosts say, keeps it, deals cases out, and ends the run.

Everything happens on the caller's thread; each host has a thread of its own (`hostrun`) that only talks.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Any

from orchestrator.archive import OpenRun, RunDocument, read_document
from orchestrator.events import AgentState, Expected, Fold, missing
from orchestrator.events import journal as events
from orchestrator.inventory import HostSpec
from orchestrator.model import Measurement, Status
from orchestrator.run import record
from orchestrator.run.dealer import Dealer, Enqueue, Release
from orchestrator.run.hostrun import Changed, Chunk, HostPhase, HostRun, HostTask, Message
from orchestrator.run.observer import HostView, Observer
from orchestrator.transport.base import Transport

TICK_S = 0.1
GATHER_S = 0.02
QUEUED_MESSAGES = 256
"""Messages from hosts that may wait: a bound on memory, since a link is not read while its thread waits here."""


class Ending(StrEnum):
    """How following a run ended: every host is done, or we left while hosts go on."""

    DONE = "done"
    DETACHED = "detached"


@dataclass(frozen=True)
class Outcome:
    """A run as it stands: what `run`, `attach` and `resume` print."""

    run_id: str
    state: str
    archive: str
    counts: Mapping[str, int]
    verdicts: Mapping[str, int]
    hosts: Mapping[str, tuple[str, str | None]]

    def to_json(self) -> dict[str, Any]:
        """The document of `--json`."""
        return {
            "run_id": self.run_id,
            "state": self.state,
            "archive": self.archive,
            "counts": dict(self.counts),
            "verdicts": dict(self.verdicts),
            "hosts": {name: {"state": state, "error": error} for name, (state, error) in self.hosts.items()},
        }


class Coordinator:
    """Follows the hosts of an open run whose lock the caller holds."""

    def __init__(
        self,
        run: OpenRun,
        fold: Fold,
        tasks: Sequence[HostTask],
        *,
        items: Mapping[str, Mapping[str, Any]],
        dealer: Dealer | None,
        open_transport: Callable[[HostSpec], Transport],
        observer: Observer,
        lost_after_s: float,
    ) -> None:
        self._run = run
        self._document = run.document()
        self._fold = fold
        self._items = items
        self._dealer = dealer
        self._observer = observer
        self._outbox: queue.Queue[Message] = queue.Queue(QUEUED_MESSAGES)
        self._hosts = {
            task.spec.name: HostRun(task, open_transport, self._outbox, lost_after_s=lost_after_s)
            for task in tasks
        }
        self.views = {name: HostView(name, HostPhase.CONNECTING) for name in self._hosts}
        self._expected: tuple[object, int] | None = None

    def follow(self, *, until_launched: bool = False) -> Ending:
        """Follow until every host is done; with `until_launched`, only until every host has what it needs to go
        on alone. On `KeyboardInterrupt` the hosts' links are closed and it is raised again: the hosts go on."""
        self._observer.begin(self._run.folder.run_id, self.expected())
        for host in self._hosts.values():
            host.start()
        threading.Thread(target=_warm_up, name="warm-up", daemon=True).start()
        try:
            while True:
                self._take_in()
                self._deal()
                self._observer.tick(self._fold, self.expected())
                if all(view.phase.final for view in self.views.values()):
                    return Ending.DONE
                if until_launched and self._everyone_can_go_on():
                    return Ending.DETACHED
        finally:
            for host in self._hosts.values():
                host.stop()
            self._drain_and_join()
            self._observer.end()

    def expected(self) -> int:
        """Number of measurements planned, as far as the hosts' devices are known."""
        known = tuple((name, len(state.devices)) for name, state in self._fold.hosts.items())
        if self._expected is None or self._expected[0] != known:
            self._expected = (known, sum(1 for _ in record.expected(self._document, self._fold)))
        return self._expected[1]

    def cancel(self) -> None:
        """Ask every host to stop."""
        for host in self._hosts.values():
            host.control({"type": "cancel"})

    def _take_in(self) -> None:
        """Wait for a word from a host, give others a moment to come in too, and handle all of them.

        Hosts tell of every step; taken one by one, the bookkeeping of 200 small cases costs more than the cases."""
        try:
            messages = [self._outbox.get(timeout=TICK_S)]
        except queue.Empty:
            return
        time.sleep(GATHER_S)
        while len(messages) < QUEUED_MESSAGES:
            try:
                messages.append(self._outbox.get_nowait())
            except queue.Empty:
                break
        for message in _joined(messages):
            self._handle(message)

    def _handle(self, message: Message) -> None:
        if isinstance(message, Chunk):
            # Kept first, then counted: what is on the screen is never lost by a crash of this process.
            fresh = self._run.append_events(message.host, message.offset, message.data)
            for measurement in self._fold.feed(message.host, fresh):
                self._observer.measured(measurement)
            return
        self._changed(message)

    def _changed(self, message: Changed) -> None:
        view = HostView(message.host, message.phase, message.detail, message.ended)
        if view == self.views[message.host]:
            return
        self.views[message.host] = view
        if message.ended is not None:
            self._fold.agent_gone(message.host, AgentState(message.ended))
        if view.phase.final and view.phase is not HostPhase.OK and self._dealer is not None:
            self._dealer.host_gone(message.host)
        self._observer.host_changed(view)

    def _everyone_can_go_on(self) -> bool:
        live = [name for name, view in self.views.items() if not view.phase.final]
        if self._dealer is None:
            return all(self._hosts[name].launched for name in live)
        # Dealt cases are safe only when the hosts have journalled them.
        return self._dealer.dealt and all(
            self._fold.host(name).queued >= self._dealer.given(name) for name in live
        )

    def _deal(self) -> None:
        if self._dealer is None:
            return
        for action in self._dealer.actions():
            host = self._hosts[action.host]
            if isinstance(action, Enqueue):
                items = [dict(self._items[case_id]) for case_id in action.case_ids]
                host.control({"type": "enqueue", "items": items, "sealed": False})
            elif isinstance(action, Release):
                host.control({"type": "release", "case_ids": list(action.case_ids)})
            else:
                host.control({"type": "enqueue", "items": [], "sealed": True})

    def _drain_and_join(self) -> None:
        """Threads may be waiting for room in the outbox: empty it while they end, keeping what they bring."""
        for host in self._hosts.values():
            deadline = time.monotonic() + 5.0
            while host.alive and time.monotonic() < deadline:
                try:
                    self._handle(self._outbox.get(timeout=0.02))
                except queue.Empty:
                    host.join(0.02)
        while True:
            try:
                self._handle(self._outbox.get_nowait())
            except queue.Empty:
                return


def _warm_up() -> None:
    """Load what the end of the run needs while the hosts are at work."""
    import duckdb  # noqa: F401


def _joined(messages: Sequence[Message]) -> Iterator[Message]:
    """The same messages, with pieces of a host's journal that follow each other made one."""
    held: dict[str, list[Chunk]] = {}

    def joined(chunks: list[Chunk]) -> Chunk:
        return Chunk(chunks[0].host, chunks[0].offset, b"".join(chunk.data for chunk in chunks))

    for message in messages:
        before = held.get(message.host, [])
        if isinstance(message, Chunk):
            if before and before[-1].offset + len(before[-1].data) != message.offset:
                yield joined(held.pop(message.host))
            held.setdefault(message.host, []).append(message)
        else:
            if before:
                yield joined(held.pop(message.host))
            yield message
    for chunks in held.values():
        yield joined(chunks)


def tell(dealer: Dealer, host: str, event: events.Event) -> None:
    """Tell the dealer what it needs to know of an event in a host's journal."""
    match event:
        case events.Devices() if event.devices:
            models = sorted({device.model for device in event.devices})
            dealer.host_ready(host, " + ".join(models), len(event.devices))
        case events.Queued():
            dealer.queued(host, event.case_ids)
        case events.CaseChanged(type="case_started"):
            dealer.started(host, event.case_id)
        case events.CaseChanged(type="case_finished"):
            dealer.finished(host, event.case_id)
        case events.Released():
            dealer.released(host, event.case_ids)


def outcome(run: OpenRun, fold: Fold, views: Mapping[str, HostView], *, state: str) -> Outcome:
    """The run as it stands now, still open."""
    counts = fold.counts()
    return Outcome(
        run_id=run.folder.run_id,
        state=state,
        archive=str(run.folder.path),
        counts=counts.statuses,
        verdicts=counts.verdicts,
        hosts=_words(views),
    )


def conclude(run: OpenRun, fold: Fold, views: Mapping[str, HostView], *, now_s: float) -> Outcome:
    """End a run whose hosts are all done: fill the gaps, commit it, and say how it stands.

    A run of which a host was lost after it had begun stays open, so that what that host measured meanwhile can
    still come home.
    """
    document = run.document()
    states = _words(views)
    cancelled = any(view.ended == "cancelled" for view in views.values())
    gaps = _gaps(document, fold, states, Status.CANCELLED if cancelled else Status.LOST)
    hosts = record.host_records(fold, states)
    if gaps and not cancelled and any(view.phase is HostPhase.LOST for view in views.values()):
        run.update_run_document({"hosts": hosts, "state": "lost"})
        return outcome(run, fold, views, state="lost")
    usable = any(state == "ok" for state, _ in states.values())
    state = "cancelled" if cancelled else "finished" if usable else "lost"
    folder = run.commit(
        chain(run.measurements(fold), gaps),
        state,
        ended_at=record.utc(now_s),
        changes={"hosts": hosts, "environments": fold.environments},
    )
    final = read_document(folder.run_json)
    return Outcome(folder.run_id, state, str(folder.path), final.counts, final.verdicts, states)


def _words(views: Mapping[str, HostView]) -> dict[str, tuple[str, str | None]]:
    """The states of `--json`: a host that is still at work is `ok`."""
    return {
        name: (str(view.phase), view.detail)
        if view.phase.final and view.phase is not HostPhase.OK
        else (str(HostPhase.OK), None)
        for name, view in views.items()
    }


def _gaps(
    document: RunDocument, fold: Fold, states: Mapping[str, tuple[str, str | None]], status: Status
) -> list[Measurement]:
    def reason(item: Expected) -> str:
        state, error = states.get(item.host, ("ok", None))
        if status is Status.CANCELLED:
            return "the run was cancelled before this was measured"
        return f"host {state}: {error}" if state != "ok" else "the host ended without this measurement"

    wanted = record.expected(document, fold)
    return list(missing(wanted, fold, run_id=document.run_id, status=status, reason=reason))
