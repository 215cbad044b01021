"""The workers that serve cases of one payload on leased devices: one on one device, or a gang with a rank on each.

A crew measures one case at a time. It outlives its processes: when a worker dies, hangs or reports itself unhealthy,
all are ended and new ones are started under the same lease, until there is no case for the crew any more.
"""

from __future__ import annotations

import time
from typing import Any, Dict, List, Literal, Mapping, Optional, Protocol, Set

from . import ranks
from .attempt import DEFAULT_COMPILE_TIMEOUT_S, seconds
from .conditions import Conditions
from .exits import MemoryKills, describe, last_words, raised
from .leases import Lease
from .queueing import Entry, Group
from .recorder import Recorder
from .runsetup import RunSetup, StartError
from .spawning import activation_failure
from .turn import Turn
from .worker import Worker

State = Literal["starting", "busy", "idle", "ending", "over"]

MOST_FRUITLESS = 2
GANG_END_S = 30.0


class Foreman(Protocol):
    """What a crew asks of the supervisor."""

    def next_entry(self, crew: "Crew") -> Optional[Entry]:
        """The next case for the crew, or None when it has to end (or to wait: see `may_wait`)."""

    def again(self, entry: Entry) -> None:
        """The case has doubtful measurements, to be made again after all that waits."""

    def may_wait(self, crew: "Crew") -> bool:
        """Whether the crew may stay idle for a moment."""

    def started(self, crew: "Crew", ready: bool) -> None:
        """All workers of the crew got ready, or they never did."""


class Crew:
    """See the module. States: `starting`, `busy`, `idle`, `ending` (processes are being ended), `over`."""

    def __init__(
        self,
        setup: RunSetup,
        recorder: Recorder,
        foreman: Foreman,
        group: Group,
        devices: List[Dict[str, Any]],
        lease: Lease,
        entry: Entry,
    ) -> None:
        self.group = group
        self.devices = devices
        self.state: State = "ending"  # of nothing: the first `tick` starts the workers
        self._setup = setup
        self._recorder = recorder
        self._foreman = foreman
        self._lease = lease
        self._entry: Optional[Entry] = entry
        self._turn: Optional[Turn] = None
        self._workers: List[Worker] = []
        self._ready: Dict[str, float] = {}
        self._done: Set[str] = set()
        self._healthy = True
        self._abandoned = False
        self._deadline = float("inf")
        self._end_reasons: Dict[str, str] = {}
        self._kills = MemoryKills()
        self._garbage_told = False
        self._garbage = ""
        self._conditions = Conditions(devices, setup, recorder.problem)
        self._broke_compiling = False
        self._served = 0

    def tick(self, now: float) -> None:
        """Do what is due; call after every turn of the event loop."""
        for worker in self._workers:
            worker.tick(now)
        if self.state in ("starting", "busy", "idle"):
            dead = next((worker for worker in self._workers if worker.returncode is not None), None)
            if dead is not None:
                self._died(dead)
            elif now >= self._due():
                self._overdue(now)
            elif self.state == "idle":
                self._look_for_work(now)
        if self.state == "ending" and all(worker.gone for worker in self._workers):
            self._ended(now)

    def next_tick(self, now: float) -> float:
        """Seconds until `tick` has something to do."""
        if self.state == "ending":
            return min([worker.next_tick(now) for worker in self._workers] or [0.0])
        return max(0.0, self._due() - now)

    def abandon(self) -> Optional[Entry]:
        """Stop at once; the case that was on, whose remaining backends have no result."""
        self._abandoned = True
        entry, self._entry = self._entry, None
        if self._turn is not None:
            self._finish_turn()
        self._end(politely=False)
        return entry

    # --- processes -------------------------------------------------------------------------------------------

    def _start(self, now: float) -> None:
        assert self._entry is not None
        item = self._entry.item()
        self._ready, self._done, self._healthy = {}, set(), True
        self._served = 0
        self._kills = MemoryKills()
        self._conditions.before_start()
        self.state = "starting"
        self._deadline = now + seconds(item.get("compile_timeout_s"), DEFAULT_COMPILE_TIMEOUT_S)
        try:
            for worker in self._setup.start_workers(self.group, self.devices, self._on_message):
                self._workers.append(worker)
                self._recorder.worker_starting(worker.name, self.devices, self.group.payload)
        except StartError as error:
            self._start_failed(str(error), "")

    def _start_failed(self, reason: str, log_tail: str) -> None:
        assert self._entry is not None
        entry, self._entry = self._entry, None
        self._recorder.give_up(entry, "error", reason, self.devices, log_tail)
        self._end(politely=False)
        self._foreman.started(self, ready=False)

    def _end(self, politely: bool) -> None:
        self.state = "ending"
        for worker in self._workers:
            worker.stop(politely)

    def _ended(self, now: float) -> None:
        for worker in self._workers:
            code = worker.returncode
            assert code is not None
            self._recorder.journal.append(
                "worker_exited",
                worker=worker.name,
                exit_code=code if code >= 0 else None,
                signal=-code if code < 0 else None,
                reason=self._end_reasons.get(worker.name),
            )
            self._setup.clean_up(worker.name, compiling=self._broke_compiling)
        self._broke_compiling = False
        self._workers = []
        if self._entry is None and not self._abandoned:
            self._entry = self._foreman.next_entry(self)
        if self._entry is None:
            self.state = "over"
            self._conditions.over()
            self._lease.release()
        else:
            self._start(now)

    # --- one case --------------------------------------------------------------------------------------------

    def _begin_case(self, now: float) -> None:
        assert self._entry is not None
        slack_s = self._setup.slack_s(self.group.payload)
        self._done = set()
        self._garbage = ""
        self.state = "busy"
        self._deadline = float("inf")
        # A program that is run once a case is a process of its own each time.
        used = self._served > 0 and not self._setup.is_script(self.group.payload)
        self._turn = Turn(
            self._entry, self._workers, self.devices, self._recorder, self._conditions, slack_s, now, used
        )
        self._served += 1
        port = ranks.port_of_case(len(self._workers))
        message = self._turn.request(**self._setup.script_of(self.group.payload), **port)
        for worker in self._workers:
            worker.send(message)

    def _on_message(self, worker: Worker, message: Mapping[str, Any]) -> None:
        now = time.monotonic()
        kind = message.get("type")
        lead = bool(self._workers) and worker is self._workers[0]
        if kind == "ready" and worker.name not in self._ready:
            self._ready[worker.name] = now
            self._recorder.worker_ready(worker.name, self.devices, self.group.payload, message, lead)
            if self.state == "starting" and len(self._ready) == len(self._workers):
                self._foreman.started(self, ready=True)
                self._begin_case(now)
        elif kind in ("phase", "measurement") and lead and self._turn is not None:
            self._turn.hear(message, now)
        elif kind == "case_done" and self.state == "busy":
            self._done.add(worker.name)
            self._healthy = self._healthy and message.get("healthy") is not False
            if len(self._done) == len(self._workers):
                self._case_over(now)
            elif lead:
                self._deadline = now + GANG_END_S
        elif kind == "problem":
            self._recorder.problem(str(message.get("message")))
        elif kind == "garbage":
            what = f"what is no message: {message.get('reason')}"
            self._garbage = self._garbage or (what if lead else "")
            if not self._garbage_told:
                self._garbage_told = True
                self._recorder.problem(f"worker {worker.name} sent {what}")

    def _case_over(self, now: float) -> None:
        assert self._turn is not None
        entry = self._turn.entry
        if not self._healthy:
            # Who broke it has said so; the others have not been measured, and start again in a new process.
            self._end_reasons[self._workers[0].name] = reason = "reported itself unhealthy"
            self._start_over("crashed", reason, now, politely=True)
            return
        why = "the payload ended the case without a result for this backend"
        self._turn.fail_all("error", f"{why}; it sent {self._garbage}" if self._garbage else why, now)
        self._finish_turn()
        self._part_with(entry)
        if self._entry is not None:
            reason = "replaced after an error, which an earlier case may have caused"
            self._end_reasons[self._workers[0].name] = reason
            self._end(politely=True)
            return
        self.state = "idle"
        self._deadline = now + 10.0
        self._look_for_work(now)

    def _part_with(self, entry: Entry) -> None:
        """All of the case has been measured; what is doubtful is measured again later, on the same device.

        After an error that may be another case's fault we keep it, for new workers."""
        self._entry = None
        if not self._recorder.opinions.again(entry):
            self._recorder.settle(entry)
            return
        entry.attempt += 1
        if entry.excused:
            self._entry = entry
        else:
            entry.target = self.devices[0]["uuid"] if len(self.devices) == 1 else entry.target
            self._foreman.again(entry)

    def _finish_turn(self) -> None:
        assert self._turn is not None
        self._turn.over()
        self._turn = None

    def _look_for_work(self, now: float) -> None:
        self._entry = self._foreman.next_entry(self)
        if self._entry is not None:
            self._begin_case(now)
        elif not self._foreman.may_wait(self):
            self._end(politely=True)

    # --- what goes wrong -------------------------------------------------------------------------------------

    def _died(self, worker: Worker) -> None:
        assert worker.returncode is not None
        now = time.monotonic()
        out_of_memory = self._kills.verdict(worker.returncode)
        reason = out_of_memory or describe(worker.returncode)
        if worker.returncode > 0 and self.state != "starting":
            worker.drain()
            words = raised(worker.log.tail()) or last_words(worker.log.tail())
            reason += f"; it last printed: {words}" if words else ""
        if len(self._workers) > 1:
            reason = f"rank {self._workers.index(worker)}: {reason}"
        self._end_reasons[worker.name] = reason
        if self.state == "starting":
            worker.drain()
            tail = worker.log.tail()
            why = activation_failure(tail) or ": ".join(filter(None, (reason, raised(tail))))
            self._start_failed(f"the worker ended before it was ready: {why}", tail)
        elif self.state == "idle":
            self._end(politely=False)
        else:
            self._broke("oom" if out_of_memory else "crashed", reason, now)

    def _due(self) -> float:
        return min(self._deadline, self._turn.attempt.deadline() if self._turn is not None else float("inf"))

    def _overdue(self, now: float) -> None:
        lead = self._workers[0]
        if self.state == "starting":
            met = self._setup.explain_compiling(self._workers)
            reason = f"the worker was not ready within compile_timeout_s: {met}"
            self._broke_compiling = True
            self._end_reasons[lead.name] = reason
            lead.drain()
            self._start_failed(reason, lead.log.tail())
        elif self.state == "idle":
            self._end(politely=True)
        else:
            assert self._turn is not None
            reason = self._turn.attempt.overdue(now) or "another rank of the gang did not end the case"
            if self._turn.attempt.compiling:
                reason += ": " + self._setup.explain_compiling(self._workers)
            self._end_reasons[lead.name] = reason
            lead.drain()
            self._broke("timeout", reason, now)

    def _broke(self, status: str, reason: str, now: float) -> None:
        """The workers cannot go on with this case: note it, end them, and go on with the rest of the case."""
        assert self._turn is not None
        entry, attempt = self._turn.entry, self._turn.attempt
        self._broke_compiling = attempt.compiling
        if attempt.preparing:
            reason = f"while it made the case's inputs: {reason}"
        if attempt.to_blame is not None:
            self._turn.fail(status, reason, now)
        elif status == "timeout":
            # As much time is not given twice for the same, so the backend whose clock ran is used up all the same.
            entry.fruitless += attempt.fruitless
            self._turn.fail(status, reason, now)
        self._start_over(status, reason, now, politely=False)

    def _start_over(self, status: str, reason: str, now: float, politely: bool) -> None:
        """End the workers. What is left of the case starts again in new ones, as its next attempt: each uses up a backend,
        or is one of the few that may end with none to blame."""
        assert self._turn is not None
        entry, attempt = self._turn.entry, self._turn.attempt
        entry.fruitless += attempt.fruitless
        if entry.fruitless >= MOST_FRUITLESS:
            why = f"not tried: this case has ended {MOST_FRUITLESS} workers with no backend to blame; last: {reason}"
            self._turn.fail_all(status, why, now)
        self._finish_turn()
        if attempt.remaining:
            entry.attempt += 1
        else:
            self._part_with(entry)
        self._end(politely)
