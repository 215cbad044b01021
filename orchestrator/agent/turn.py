"""A case's turn on a crew's workers: what they say of it becomes events and records."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

from .attempt import Attempt
from .conditions import Conditions
from .queueing import Entry
from .recorder import Recorder
from .records import failure
from .script_results import identity
from .spawning import activation_failure
from .wire import finite
from .worker import Worker


class Turn:
    """One attempt at a case, from its making to `over`. Of a gang, the worker of rank 0 speaks."""

    def __init__(
        self,
        entry: Entry,
        workers: Sequence[Worker],
        devices: List[Dict[str, Any]],
        recorder: Recorder,
        conditions: Conditions,
        slack_s: float,
        now: float,
        used: bool,
    ) -> None:
        """`used`: the workers have served other cases."""
        self.entry = entry
        self.attempt = Attempt(entry.item(), entry.remaining(), entry.attempt, now, slack_s)
        self._workers = workers
        self._lead = workers[0]
        self._devices = devices
        self._recorder = recorder
        self._conditions = conditions
        self._used = used
        self._printing = ""  # the backend whose output the log's tail holds
        self._lead.drain()
        self._lead.mark()
        conditions.begin_case(self.attempt.item)
        recorder.case_started(self.attempt, self._lead.name, devices)

    def request(self, **more: Any) -> Dict[str, Any]:
        """What the workers are told: the case, only with the backends that are to be measured."""
        case = {name: value for name, value in self.attempt.item.items() if name != "done"}
        case["backends"] = list(self.attempt.remaining)
        if self.entry.reported:
            case["reported"] = dict(self.entry.reported)
        return {"type": "case", "case": case, "attempt": self.entry.attempt, **more}

    def hear(self, message: Mapping[str, Any], now: float) -> None:
        """A `phase` or a `measurement` of the worker of rank 0."""
        if message.get("type") == "phase":
            self._phase(str(message.get("backend")), str(message.get("phase")), now)
            return
        sent = message.get("measurement")
        if isinstance(sent, dict):
            self._lead.drain()
            self._record(sent, str(message.get("asked") or sent.get("backend")), now)

    def fail(self, status: str, reason: str, now: float) -> None:
        """The backend that is on, if one is, gets this result instead of one of its own."""
        backend = self.attempt.in_flight
        if backend is not None:
            self._record(failure(backend, status, reason), backend, now)

    def fail_all(self, status: str, reason: str, now: float) -> None:
        """Every backend that is left gets this result."""
        while self.attempt.in_flight is not None:
            self.fail(status, reason, now)

    def over(self) -> None:
        """The attempt has ended, however it did."""
        self._conditions.end_case()
        self._recorder.attempt_over(self.entry)
        self._recorder.case_finished(self.attempt, self._lead.name, self._devices)

    def _phase(self, backend: str, phase: str, now: float) -> None:
        if backend != self._printing:
            self._printing = backend
            self._lead.mark()
        self.attempt.phase(backend, phase, now)
        if phase == "measure" and backend in self.attempt.remaining:
            self._conditions.measuring(backend)
        self._recorder.phase(self.attempt, self._lead.name, backend, phase)

    def _record(self, sent: Mapping[str, Any], asked: str, now: float) -> None:
        lead = self._lead
        if asked not in self.attempt.item["backends"]:
            self._recorder.problem(f"worker {lead.name} reported a backend nobody asked for: {asked!r:.100}")
            return
        failed = activation_failure(lead.log.tail()) if sent.get("status") == "error" else None
        if failed:
            sent = {**sent, "reason": failed}
        if sent.get("backend") != asked:
            self.entry.reported.setdefault(identity({"backend": None, **finite(dict(sent))[0]}), asked)
        sent, telemetry = self._conditions.reported(sent, asked, self._workers)
        self._recorder.measurement(
            sent,
            asked,
            self.entry,
            self.attempt,
            self._devices,
            now,
            telemetry,
            lead.log.tail(),
            self._conditions.clock_of(asked),
            self._used,
        )
        self.attempt.reported(asked, now)
        self.entry.done.add(asked)
