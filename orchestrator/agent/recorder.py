"""What happens to cases, told to the journal; measurements as whole records, with the device's telemetry."""

from __future__ import annotations

import hashlib
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .attempt import Attempt
from .history import History
from .journal import Journal
from .logs import Redactor
from .offsets import CaseClocks
from .queueing import Entry
from .records import complete, failure, utc
from .second_opinions import SecondOpinions
from .wire import dump, finite

Telemetry = Tuple[Optional[Mapping[str, Any]], Sequence[str]]
"""What the devices did meanwhile, and the reasons against the number that follow from it."""


class Recorder:
    """Writes the events of cases and workers. `worker` is always the one of rank 0, `devices` those of the crew."""

    def __init__(
        self, journal: Journal, history: History, job: Mapping[str, Any], redactor: Redactor, folder: str
    ) -> None:
        """`folder` is where doubtful measurements wait."""
        self.journal = journal
        self.opinions = SecondOpinions(folder)
        self.history = history
        self._run_id = str(job["run_id"])
        self._host = str(job["host"])
        self._redactor = redactor
        self._environments: Dict[str, str] = {}

    def problem(self, message: str) -> None:
        """Something a person should know."""
        self.journal.append("problem", message=self._redactor.text(finite(message)[0]))

    def worker_starting(self, worker: str, devices: List[Dict[str, Any]], payload: str) -> None:
        """A worker process exists."""
        uuids = [device["uuid"] for device in devices]
        self.journal.append("worker_starting", worker=worker, devices=uuids, payload=payload)

    def worker_ready(
        self, worker: str, devices: List[Dict[str, Any]], payload: str, message: Mapping[str, Any], lead: bool
    ) -> None:
        """A worker is ready; the environment it describes is named by the digest of what it says."""
        environment = self._redactor.clean(finite(message.get("environment") or {})[0])
        environment_id = hashlib.sha256(dump(environment)).hexdigest()[:16]
        if lead:
            self._environments[devices[0]["uuid"]] = environment_id
        self.journal.append(
            "worker_ready",
            worker=worker,
            devices=[device["uuid"] for device in devices],
            payload=payload,
            import_s=finite(message.get("import_s"))[0],
            environment_id=environment_id,
            environment=environment,
        )

    def case_started(self, attempt: Attempt, worker: str, devices: List[Dict[str, Any]]) -> None:
        """A case goes to a worker."""
        self._case("case_started", attempt, worker, devices)

    def case_finished(self, attempt: Attempt, worker: str, devices: List[Dict[str, Any]]) -> None:
        """An attempt at a case is over, however it ended."""
        self._case("case_finished", attempt, worker, devices)

    def phase(self, attempt: Attempt, worker: str, backend: str, phase: str) -> None:
        """A backend's next step."""
        self.journal.append("phase", case_id=attempt.case_id, worker=worker, backend=backend, phase=phase)

    def measurement(
        self,
        sent: Mapping[str, Any],
        asked: str,
        entry: Entry,
        attempt: Attempt,
        devices: List[Dict[str, Any]],
        now: float,
        telemetry: Telemetry,
        log_tail: str,
        clock_mhz: Optional[float] = None,
        used: bool = False,
    ) -> None:
        """One measurement of the case that is on; `asked` is the backend it was measured for. A doubtful one may wait,
        and so does one whose clock must be held against the other backends' until `attempt_over`. `used`: its worker
        had served other cases."""
        facts = self._facts(attempt.item, devices[0], attempt.number)
        facts["started_at"] = utc(attempt.began_at(asked))
        facts["duration_s"] = round(attempt.spent_s(asked, now), 6)
        facts["environment_id"] = self._environments.get(devices[0]["uuid"])
        record = complete(sent, facts, self._redactor, *telemetry, log_tail)
        if clock_mhz is not None and record["status"] == "ok" and len(attempt.item["backends"]) > 1:
            entry.clocks = entry.clocks or CaseClocks()
            entry.clocks.hold(asked, record, clock_mhz)
        else:
            self._weigh(entry, asked, record, used)

    def attempt_over(self, entry: Entry) -> None:
        """No more measurements come of this attempt: the clocks of all its backends are known."""
        if entry.clocks is not None and not self.journal.full:
            for asked, record in entry.clocks.judge():
                self._weigh(entry, asked, record)

    def _weigh(self, entry: Entry, asked: str, record: Dict[str, Any], used: bool = False) -> None:
        stands = self.opinions.weigh(entry, asked, record, used)
        if stands is not None:
            self._write(stands, asked)

    def settle(self, entry: Entry, asked: Optional[str] = None) -> bool:
        """Let what was put aside of a case (or of one backend) stand; whether there was anything."""
        settled = list(self.opinions.settle(entry, asked))
        for backend, record in settled:
            self._write(record, backend)
        return bool(settled)

    def give_up(
        self,
        entry: Entry,
        status: str,
        reason: str,
        devices: Sequence[Dict[str, Any]],
        log_tail: str = "",
    ) -> None:
        """Every backend left of a case gets the same result without having been measured (again: then the first stands)."""
        item = entry.item()
        facts = self._facts(item, devices[0] if devices else None, entry.attempt)
        facts.update(started_at=utc(time.time()), duration_s=0.0, environment_id=None)
        for backend in entry.remaining():
            if self.settle(entry, backend):
                continue
            record = complete(failure(backend, status, reason), facts, self._redactor, log_tail=log_tail)
            self._write(record, backend)

    def _facts(
        self, item: Mapping[str, Any], device: Optional[Mapping[str, Any]], attempt: int
    ) -> Dict[str, Any]:
        return {
            "run_id": self._run_id,
            "host": self._host,
            "device": dict(device) if device else None,
            "case_id": item["case_id"],
            "label": item.get("label", ""),
            "payload": item["payload"],
            "params": item.get("params", {}),
            "attempt": attempt,
        }

    def _write(self, record: Dict[str, Any], asked: str) -> None:
        self.journal.append("measurement", measurement=record, asked=asked)
        self.history.note_measurement(record, asked)

    def _case(self, kind: str, attempt: Attempt, worker: str, devices: List[Dict[str, Any]]) -> None:
        uuids = [device["uuid"] for device in devices]
        self.journal.append(
            kind, case_id=attempt.case_id, worker=worker, devices=uuids, attempt=attempt.number
        )
