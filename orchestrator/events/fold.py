"""The state of a run, kept up to date from the journals of its hosts as their bytes come in.

Only what progress needs stays in memory: a measurement is remembered by where its line lies in its host's journal,
and read again when it is wanted (`Fold.read`).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from sys import intern
from typing import Any

from orchestrator import identity
from orchestrator.events import journal
from orchestrator.events.journal import BadLine, JournalLines, parse_line, parse_measurement
from orchestrator.events.state import AgentState, Entry, HostState, Key, WorkerView, count_busy
from orchestrator.model import Measurement, RunCounts


class Fold:
    """Feed it the journals; it knows the measurements, each exactly once, and what every worker does."""

    def __init__(
        self,
        *,
        placement: str = "shard",
        labels: Mapping[str, str] | None = None,
        run_id: str | None = None,
        listener: Callable[[str, journal.Event], None] | None = None,
    ) -> None:
        """`listener` hears every event with its host's name, after the fold has taken it in."""
        self.placement = placement
        self.hosts: dict[str, HostState] = {}
        self.environments: dict[str, dict[str, Any]] = {}
        self.entries: dict[Key, Entry] = {}
        self.answered: dict[tuple[str, str], set[str]] = {}
        """Scopes by case and the backend asked for, of results that name a backend of their own."""
        self.surplus = 0
        """Measurements beyond the first of each one asked for: a program may print several rows."""
        self._with_rows: set[tuple[str, str, str]] = set()
        self._answers: dict[str, dict[str, set[str]]] = {}
        self._labels = labels or {}
        self._run_id = run_id
        self._listener = listener
        self._feeding = threading.Lock()
        self._lines: dict[str, JournalLines] = {}
        self._statuses: Counter[str] = Counter()
        self._verdicts: Counter[str] = Counter()

    def feed(self, host: str, data: bytes) -> list[Measurement]:
        """Take the next bytes of a host's journal, in any chunking; the measurements that count because of them."""
        state = self.host(host)
        with self._feeding:
            return self._feed(state, host, data)

    def measured(self, host: str) -> dict[str, set[str]]:
        """Backends that have a result from a host, also one under a name of its own, by case. May be asked while another thread feeds."""
        found: dict[str, set[str]] = {}
        with self._feeding:
            for key, entry in self.entries.items():
                if entry.host == host and entry.status.is_result:
                    found.setdefault(key.case_id, set()).add(key.backend)
            for case_id, asked in self._answers.get(host, {}).items():
                found.setdefault(case_id, set()).update(asked)
        return found

    def _feed(self, state: HostState, host: str, data: bytes) -> list[Measurement]:
        accepted = []
        for offset, line in self._lines.setdefault(host, JournalLines()).feed(data):
            if line is None:
                self._problem(state, f"skipped a line of more than {journal.MAX_LINE_BYTES >> 20} MiB")
                state.damaged_lines += 1
            elif line.strip():
                measurement = self._take(state, offset, line)
                if measurement is not None:
                    accepted.append(measurement)
        return accepted

    def host(self, name: str) -> HostState:
        """The state of a host, made on first use."""
        name = intern(name)
        return self.hosts.setdefault(name, HostState(name))

    def offset(self, host: str) -> int:
        """How many bytes of a host's journal were fed."""
        lines = self._lines.get(host)
        return lines.size if lines else 0

    def agent_gone(self, host: str, state: AgentState | str) -> None:
        """Note how an agent ended, as told by who followed it (a dead one leaves no line)."""
        told = self.host(host)
        told.agent = AgentState(state)
        _end_workers(told)

    def counts(self) -> RunCounts:
        """Measurements so far, by status and verdict."""
        return RunCounts(dict(+self._statuses), dict(+self._verdicts))

    def workers(self) -> list[WorkerView]:
        """Every live worker, by host and name."""
        return [
            self.hosts[host].workers[worker]
            for host in sorted(self.hosts)
            for worker in sorted(self.hosts[host].workers)
        ]

    def read(
        self, source: Callable[[str, int, int], bytes], keys: Iterable[Key] | None = None
    ) -> Iterator[Measurement]:
        """The measurements themselves, in the order of `keys` (default: as they came), from the journals' bytes.

        `source(host, offset, length)` returns those bytes. Raises `BadLine` when they are not what was fed."""
        for key in self.entries if keys is None else keys:
            entry = self.entries[key]
            event = parse_line(source(entry.host, entry.offset, entry.length))
            if not isinstance(event, journal.Measured):
                raise BadLine(f"the journal of {entry.host} has changed at byte {entry.offset}")
            yield parse_measurement(event.measurement, host=entry.host)

    def key(self, measurement: Measurement) -> Key:
        """What identifies a measurement in this run."""
        device, host = measurement.device, measurement.host
        uuid, model = (device.uuid, device.model) if device else ("", self.host(host).only_model)
        return Key(
            intern(measurement.case_id),
            intern(measurement.backend),
            identity.canonical_row(measurement.row),
            intern(identity.scope(self.placement, host, uuid, model)),
        )

    def _take(self, state: HostState, offset: int, line: bytes) -> Measurement | None:
        try:
            event = parse_line(line)
        except BadLine as error:
            state.damaged_lines += 1
            if not str(error).startswith(
                "no JSON"
            ):  # torn lines are expected: an agent was killed while it wrote
                self._problem(state, str(error))
            return None
        if event is None:
            return None
        state.last_t = max(state.last_t, event.t)
        state.pass_time(event.mono, event.t, new_agent=isinstance(event, journal.AgentStarted))
        accepted = None
        if isinstance(event, journal.Measured):
            state.last_work_s = state.lived_s
            accepted = self._measured(state, event, offset, len(line))
        else:
            self._note(state, event)
            if isinstance(event, journal.AgentStarted) and event.offset is not None:
                state.base = offset - event.offset
        if self._listener is not None:
            self._listener(state.name, event)
        return accepted

    def _measured(
        self, state: HostState, event: journal.Measured, offset: int, length: int
    ) -> Measurement | None:
        try:
            measurement = parse_measurement(event.measurement, host=state.name)
        except BadLine as error:
            self._problem(state, str(error))
            return None
        if self._run_id is not None and measurement.run_id != self._run_id:
            self._problem(state, f"a measurement of another run ({measurement.run_id:.80})")
            return None
        key = self.key(measurement)
        if event.asked is not None and event.asked != measurement.backend:
            self._answer(state.name, intern(event.asked), key, measurement)
        before = self.entries.get(key)
        if before is None:
            self._count_surplus(key, event.asked or measurement.backend)
        else:
            # The first result stands; lost and cancelled are no results and give way to one.
            if before.status.is_result or not measurement.status.is_result:
                state.superseded += 1
                return None
            self._count(before, -1)
            self.host(before.host).superseded += 1
        entry = Entry(state.name, offset, length, measurement.status, measurement.verdict)
        self.entries[key] = entry
        self._count(entry, 1)
        return measurement

    def _answer(self, host: str, asked: str, key: Key, measurement: Measurement) -> None:
        self.answered.setdefault((key.case_id, asked), set()).add(key.scope)
        if measurement.status.is_result:
            self._answers.setdefault(host, {}).setdefault(key.case_id, set()).add(asked)

    def _count_surplus(self, key: Key, asked: str) -> None:
        if not key.row and asked == key.backend:
            return  # it is the only one of its kind, as nearly all are
        one = (key.case_id, asked, key.scope)
        self.surplus += one in self._with_rows
        self._with_rows.add(one)

    def _count(self, entry: Entry, change: int) -> None:
        self._statuses[entry.status] += change
        self.host(entry.host).statuses[entry.status] += change
        if entry.verdict is not None:
            self._verdicts[entry.verdict] += change

    def _problem(self, state: HostState, message: str) -> None:
        state.problem_count += 1
        state.problems.append(message[:2000])

    def _note(self, state: HostState, event: journal.Event) -> None:
        match event:
            case journal.AgentStarted():
                state.agent = AgentState.RUNNING
                state.identity = event.model_dump(exclude={"type", "mono"}, exclude_none=True)
                _end_workers(state)  # whatever an earlier agent had is gone with it
                state.waiting.clear()
            case journal.Devices():
                state.devices = tuple(event.devices)
            case journal.Queued():
                state.queued += len(event.case_ids)
                state.sealed = event.sealed
                state.released.difference_update(event.case_ids)
            case journal.Released():
                state.released.update(map(intern, event.case_ids))
            case journal.LeaseWait():
                state.waiting[event.device] = _known_of(event.holder)
            case journal.WorkerChanged():
                self._worker_changed(state, event)
            case journal.WorkerExited():
                view = state.workers.pop(event.worker, None)
                if view is not None:
                    count_busy(state, view)
            case journal.CaseChanged() | journal.Phase():
                self._case_changed(state, event)
            case journal.AgentFinished():
                state.agent = AgentState(event.state)
                _end_workers(state)
                state.waiting.clear()
            case journal.Problem():
                self._problem(state, event.message)

    def _worker_changed(self, state: HostState, event: journal.WorkerChanged) -> None:
        view = state.workers.setdefault(event.worker, WorkerView(state.name, event.worker))
        view.devices = tuple(event.devices) or view.devices
        view.payload = event.payload or view.payload
        view.phase = "starting" if event.type == "worker_starting" else "idle"
        view.since, view.since_lived_s = event.t, state.lived_s
        state.used_devices.update(view.devices)
        for device in view.devices:
            state.waiting.pop(device, None)
        if event.type == "worker_ready" and state.first_ready_s is None:
            state.first_ready_s = state.lived_s
        if event.environment_id and event.environment is not None:
            self.environments.setdefault(event.environment_id, event.environment)

    def _case_changed(self, state: HostState, event: journal.CaseChanged | journal.Phase) -> None:
        view = state.workers.setdefault(event.worker, WorkerView(state.name, event.worker))
        count_busy(state, view)
        view.since, view.since_lived_s = event.t, state.lived_s
        if event.type == "case_finished":
            view.case_id = view.label = view.backend = None
            view.phase = "idle"
            return
        view.case_id = intern(event.case_id)
        view.label = self._labels.get(event.case_id, event.case_id)
        if isinstance(event, journal.Phase):
            view.backend, view.phase = event.backend, event.phase
        else:
            view.devices = tuple(event.devices) or view.devices
            state.used_devices.update(view.devices)
            view.backend, view.phase = None, "preparing"


def _end_workers(state: HostState) -> None:
    for view in state.workers.values():
        count_busy(state, view)
    state.workers.clear()


def _known_of(holder: Any) -> dict[str, str]:
    """Run, user and time of a lease's holder, who may have written anything there."""
    facts = holder if isinstance(holder, dict) else {}
    return {key: str(facts[key])[:100] for key in ("run_id", "user", "since") if facts.get(key)}
