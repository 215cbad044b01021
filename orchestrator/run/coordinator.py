"""The coordinator of one run: it takes in what the hosts say, keeps it, deals cases out, and ends the run.

Everything happens on the caller's thread; each host has a thread of its own (`hostrun`) that only talks.
"""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

from orchestrator.archive import OpenRun, columns, expected, fold_run
from orchestrator.errors import ArchiveFault
from orchestrator.events import AgentState
from orchestrator.events import journal as events
from orchestrator.inventory import HostSpec
from orchestrator.run.arenas import limit_arenas
from orchestrator.run.hostrun import HostRun
from orchestrator.run.hosttask import HostTask
from orchestrator.run.interrupts import Interrupts
from orchestrator.run.news import Changed, Chunk, HostPhase, News, Unkept, joined
from orchestrator.run.observer import HostView, Observer, skew, waiting_for
from orchestrator.transport.base import Transport

if TYPE_CHECKING:
    from orchestrator.run.dealing import Dealing

TICK_S = 0.1
GATHER_S = 0.01
QUEUED_NEWS = 24
"""How much from hosts may wait: a bound on memory, since a link is not read while its thread waits here."""
FIRST_HAND_S = 10.0
"""So long the hosts of a sharded run wait for one that has not answered yet, before the first cases are dealt."""
ENDING_S = 5.0
SLOW_TO_ANSWER_S = 3.0
"""A host that has not answered by then is told of: until then it would be noise."""
LEAVING_S = 30.0
"""Who leaves waits at most so long until every host can go on alone."""
MANY_HOSTS = 8
WARM_UP_FOR = 1000
"""Larger runs are made ready for queries by a process of their own (see `archive.columns`)."""


class Ending(StrEnum):
    """How following a run ended: every host is done, or we left while hosts go on."""

    DONE = "done"
    DETACHED = "detached"


class Interrupted(KeyboardInterrupt):
    """The user left; `unlaunched` names hosts that have no part of the run."""

    def __init__(self, unlaunched: Sequence[str]) -> None:
        super().__init__()
        self.unlaunched = tuple(unlaunched)


class Coordinator:
    """Follows the hosts of an open run whose lock the caller holds."""

    def __init__(self, run: OpenRun, *, dealing: Dealing | None, observer: Observer) -> None:
        """Takes in what is here of the hosts' journals; `dealing` hears of it too."""
        self._run = run
        self._document = run.document()
        self._dealing = dealing
        self._observer = observer
        self._outbox: queue.Queue[News] = queue.Queue(QUEUED_NEWS)
        self._hosts: dict[str, HostRun] = {}
        self._told: dict[str, HostView] = {}
        self._expected: tuple[object, int] | None = None
        self._patience_s = FIRST_HAND_S
        self._warm = False
        self._left: set[str] = set()
        self._interrupts = Interrupts()
        self.views: dict[str, HostView] = {}
        self.unkept: ArchiveFault | None = None
        """Why files of a host that has ended could not be kept here: as long as they are not, the run is not complete."""
        self.fold = fold_run(run.folder, self._document, listener=self._hear)

    def employ(
        self,
        tasks: Sequence[HostTask],
        *,
        open_transport: Callable[[HostSpec], Transport],
        lost_after_s: float,
        unused: Sequence[HostView] = (),
    ) -> None:
        """The hosts to follow; `unused` take no part, and stand as they were found before."""
        if len(tasks) > MANY_HOSTS:
            limit_arenas()
        session = uuid.uuid4().hex
        self._patience_s = min(FIRST_HAND_S, lost_after_s)
        for task in tasks:
            name = task.spec.name
            self._hosts[name] = HostRun(
                task, open_transport, self._outbox, session, lost_after_s=lost_after_s
            )
            self.views[name] = HostView(name, HostPhase.CONNECTING)
        for view in unused:
            self.views[view.name] = view
            if self._dealing is not None:
                self._dealing.dealer.gone(view.name)
        self._told = dict(self.views)

    def follow(self, *, until_launched: bool = False) -> Ending:
        """Follow until every host is done or overdue; with `until_launched`, only until every host has what it needs
        to go on alone. On `KeyboardInterrupt` the rest of the hosts is launched, the links are closed, and `Interrupted` is raised."""
        with self._interrupts:
            try:
                return self._follow_to_the_end(until_launched)
            except Interrupted:
                raise
            except KeyboardInterrupt:  # once more, while we were leaving
                raise Interrupted(self.unlaunched()) from None

    def _follow_to_the_end(self, until_launched: bool) -> Ending:
        self._observer.begin(self._run.folder.run_id, self.expected())
        self._warm = until_launched  # who leaves needs nothing at the end
        keeping = True
        try:
            for host in self._hosts.values():
                host.start()
            return self._follow(until_launched)
        except KeyboardInterrupt:
            self._launch_the_rest()
            if all(view.phase.final for view in self.views.values()):
                return Ending.DONE  # nothing goes on that one could come back to
            raise Interrupted(self.unlaunched()) from None
        except BaseException:
            keeping = False  # what follows on news that could not be kept would be refused, and hide why
            raise
        finally:
            for host in self._hosts.values():
                host.stop()
            self._drain_and_join(keeping)
            self._observer.end()

    def _follow(self, until_launched: bool) -> Ending:
        first_hand_at = time.monotonic() + self._patience_s
        slow_at = time.monotonic() + SLOW_TO_ANSWER_S
        while True:
            self._interrupts.check()
            self._take_in()
            if time.monotonic() >= slow_at:
                slow_at = float("inf")
                for name in [name for name, view in self._told.items() if view.phase is HostPhase.CONNECTING]:
                    del self._told[name]
            if self._dealing is not None and time.monotonic() >= first_hand_at:
                first_hand_at = float("inf")
                for name in (name for name, host in self._hosts.items() if not host.task.begun):
                    self._dealing.dealer.late(name)
            pending = [name for name, host in self._hosts.items() if host.pending]
            if self._dealing is not None:
                for name in pending:
                    self._dealing.dealer.late(name)
                    # What an agent before the one that is waited for had taken goes to others meanwhile.
                    if self._run.journal_size(name):
                        self._dealing.dealer.gone(name)
            self._deal()
            if pending or first_hand_at == float("inf"):
                self._leave_who_never_came()
            self._tell()
            self._observer.tick(self.fold, self.expected())
            if all(view.phase.final or view.overdue for view in self.views.values()):
                return Ending.DONE
            if until_launched and self._everyone_can_go_on():
                return Ending.DETACHED

    def _leave_who_never_came(self) -> None:
        """Once all is measured, a host that is late and has not said a word yet, or whose agent has not begun, is not
        waited for."""
        if self._dealing is None or not self._dealing.dealer.complete:
            return
        for name, host in self._hosts.items():
            if host.pending:
                host.withdraw()
            known = host.launched or host.task.begun or self._run.journal_size(name)
            if not (known or self.views[name].phase.final):
                self._left.add(name)
                detail = (
                    f"{name}: it had not answered yet when everything was measured; nothing was given to it"
                )
                self.views[name] = HostView(name, HostPhase.UNREACHABLE, detail)

    def _launch_the_rest(self) -> None:
        """Who leaves before every host has its part waits a little for that; a second `KeyboardInterrupt` ends it."""
        deadline = time.monotonic() + LEAVING_S
        try:
            if self.unlaunched():
                self._observer.interrupted(self.unlaunched())
            for host in self._hosts.values():
                host.start()
            while self.unlaunched() and time.monotonic() < deadline:
                self._interrupts.check()
                self._take_in()
                self._deal()
                self._tell()
        except KeyboardInterrupt:
            pass

    def unlaunched(self) -> list[str]:
        """Hosts that have, as far as is known, no part of the run yet and would not go on alone."""
        live = [name for name, view in self.views.items() if not view.phase.final and name in self._hosts]
        return [name for name in live if not self._hosts[name].launched]

    def expected(self) -> int:
        """Number of measurements planned, as far as the hosts' devices are known."""
        known = tuple((name, len(state.devices)) for name, state in self.fold.hosts.items())
        if self._expected is None or self._expected[0] != known:
            self._expected = (known, sum(1 for _ in expected(self._document, self.fold)))
        return self._expected[1]

    def clock_offsets(self) -> dict[str, float]:
        """Seconds by which hosts' clocks are ahead of ours, as far as that is known."""
        known = {name: host.clock_offset_s for name, host in self._hosts.items()}
        return {name: round(offset_s, 3) for name, offset_s in known.items() if offset_s is not None}

    def _take_in(self) -> None:
        """Wait for a word from a host, give others a moment to come in too, and handle all of them.

        Hosts tell of every step; taken one by one, the bookkeeping of 200 small cases costs more than the cases."""
        news: list[News] = []
        until = time.monotonic() + TICK_S
        while len(news) < QUEUED_NEWS:
            try:
                news.append(self._outbox.get(timeout=max(0.0, until - time.monotonic())))
            except queue.Empty:
                break
            if len(news) == 1:
                until = time.monotonic() + GATHER_S
            if isinstance(news[-1], Changed) and news[-1].phase.final:
                break
        for item in joined(news):
            self._handle(item)

    def _handle(self, news: News) -> None:
        if news.host in self._left:
            return
        if isinstance(news, Chunk):
            # Kept first, then counted: what is on the screen is never lost by a crash of this process.
            fresh = self._run.append_events(news.host, news.offset, news.data)
            for measurement in self.fold.feed(news.host, fresh):
                self._observer.measured(measurement)
        elif isinstance(news, Changed):
            self._changed(news)
        elif isinstance(news, Unkept):
            self.unkept = self.unkept or news.error
        elif self._dealing is not None:
            self._dealing.dealer.current(news.host)

    def _hear(self, host: str, event: events.Event) -> None:
        """An event that the fold has taken in."""
        if self._dealing is not None:
            self._dealing.hear(host, event)
        if isinstance(event, events.Queued) and event.id is not None and (run := self._hosts.get(host)):
            run.confirm(event.id)

    def _changed(self, news: Changed) -> None:
        before = self.views[news.host]
        view = HostView(news.host, news.phase, news.detail, news.ended, news.begun, news.overdue)
        self.views[news.host] = view
        if view.phase is HostPhase.RUNNING:
            self._warm_up()
        if view.ended is not None:
            self.fold.agent_gone(news.host, AgentState(view.ended))
        if self._dealing is None:
            return
        dealer = self._dealing.dealer
        if view.phase in (HostPhase.RUNNING, HostPhase.RECONNECTING):
            dealer.linked(news.host, view.phase is HostPhase.RUNNING)
        if (view.phase.final and view.phase is not HostPhase.OK) or (view.overdue and not before.overdue):
            dealer.gone(news.host)

    def _tell(self) -> None:
        """Tell the observer of hosts that have changed, or have begun to wait for somebody else's run."""
        for name, view in self.views.items():
            if view.phase is HostPhase.RUNNING and (state := self.fold.hosts.get(name)) is not None:
                host = self._hosts[name]
                concerns = "; ".join(filter(None, (skew(host.clock_offset_s), host.concern)))
                view = replace(view, detail=view.detail or waiting_for(state.waiting) or concerns or None)
            if view != self._told.get(name):
                self._told[name] = view
                self._observer.host_changed(view)

    def _everyone_can_go_on(self) -> bool:
        live = [name for name, view in self.views.items() if not view.phase.final]
        if self._dealing is None:
            return all(self._hosts[name].launched for name in live)
        # Dealt cases are safe only when the hosts have journalled them.
        dealer = self._dealing.dealer
        if not dealer.complete and any(host.pending for host in self._hosts.values()):
            return False  # nothing can be given to it before it begins
        return dealer.dealt and not any(self._hosts[name].has_unconfirmed for name in live)

    def _warm_up(self) -> None:
        """Once a host is at work, load what the end of the run needs; not before: that would be later at work for it."""
        if not self._warm and self.expected() <= WARM_UP_FOR:
            # No daemon: Python's end would abort the whole process in the middle of a library's C++.
            threading.Thread(target=columns.warm_up, name="warm-up").start()
        self._warm = True

    def _deal(self) -> None:
        if self._dealing is not None:
            for action in self._dealing.dealer.actions():
                self._hosts[action.host].control(self._dealing.control(action))

    def _drain_and_join(self, keeping: bool) -> None:
        """Threads may be waiting for room in the outbox: empty it while they end, and keep what they bring if that is
        still possible."""
        handle = self._handle if keeping else _pass_over
        deadline = time.monotonic() + ENDING_S
        while (
            alive := [host for host in self._hosts.values() if host.alive]
        ) and time.monotonic() < deadline:
            try:
                handle(self._outbox.get_nowait())
            except queue.Empty:
                alive[0].join(0.02)
        while True:
            try:
                handle(self._outbox.get_nowait())
            except queue.Empty:
                break
        self._tell()


def _pass_over(news: News) -> None:
    """It is still at its host."""
