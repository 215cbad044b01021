"""What a run's journal already says: batches taken in, cases given back, measurements that stand."""

from __future__ import annotations

import sys
from typing import Any, Dict, Iterable, List, Mapping, Optional, Set, Tuple

from .journal import read_events
from .script_results import identity

_NO_RESULT = ("lost", "cancelled")


class History:
    """Filled from the journal when an agent starts on a run's folder, and kept up as it goes on.

    `released` holds (case id, device model it was asked for, or None)."""

    def __init__(self) -> None:
        self.batches: Set[str] = set()
        self.released: Set[Tuple[str, Optional[str]]] = set()
        self.counts: Dict[str, int] = {}
        self._measured: Dict[str, List[Tuple[str, str, str]]] = {}
        self._reported: Dict[str, List[Tuple[str, str, str, str]]] = {}
        self._attempts: Dict[str, int] = {}
        self._on: Set[str] = set()
        self._cut_short: Dict[str, int] = {}

    @classmethod
    def replay(cls, path: str) -> "History":
        """Read a journal; a missing one is an empty history."""
        history = cls()
        for event in read_events(path):
            history.take(event)
        return history

    def take(self, event: Mapping[str, Any]) -> None:
        """Take in one event."""
        kind = event.get("type")
        if kind == "measurement":
            self.note_measurement(event.get("measurement") or {}, event.get("asked"))
        elif kind == "case_started":
            case_id = str(event.get("case_id"))
            self._attempts[case_id] = max(self._attempts.get(case_id, 0), int(event.get("attempt") or 1))
            self._on.add(case_id)
        elif kind == "case_finished":
            self._on.discard(str(event.get("case_id")))
        elif kind == "agent_started":
            for case_id in self._on:
                self._cut_short[case_id] = self._cut_short.get(case_id, 0) + 1
            self._on.clear()
        elif kind == "queued":
            self.batches.add(str(event.get("batch")))
            self.released.difference_update(_keys(event))
        elif kind == "released":
            self.released.update(_keys(event))

    def note_measurement(self, record: Mapping[str, Any], asked: Optional[str] = None) -> None:
        """A measurement stands from now on; `asked` is the backend it was for, where rows name their own."""
        status = str(record.get("status"))
        self.counts[status] = self.counts.get(status, 0) + 1
        if status in _NO_RESULT:
            return
        device = record.get("device") or {}
        names = (asked or record.get("backend"), device.get("uuid"), device.get("name"))
        backend, uuid, model = (sys.intern(str(name)) for name in names)
        case_id = str(record.get("case_id"))
        self._measured.setdefault(case_id, []).append((backend, uuid, model))
        if backend != record.get("backend"):
            self._reported.setdefault(case_id, []).append((identity(record), backend, uuid, model))

    def done(self, case_id: str, target: Optional[str]) -> Set[str]:
        """Backends of a case that are measured, on the device or device model `target` (None: anywhere)."""
        found: Iterable[Tuple[str, str, str]] = self._measured.get(case_id, ())
        return {backend for backend, uuid, model in found if target in (None, uuid, model)}

    def reported(self, case_id: str, target: Optional[str]) -> Dict[str, str]:
        """Which backend's execution printed a result under a name of its own, by `identity`; `target` as in `done`."""
        found: Iterable[Tuple[str, str, str, str]] = self._reported.get(case_id, ())
        return {name: backend for name, backend, uuid, model in found if target in (None, uuid, model)}

    def ended_agents(self, case_id: str) -> int:
        """How many agents have died while the case was on."""
        return self._cut_short.get(case_id, 0) + (case_id in self._on)

    def next_attempt(self, case_id: str) -> int:
        """The number of the next attempt at a case."""
        return self._attempts.get(case_id, 0) + 1


def _keys(event: Mapping[str, Any]) -> List[Tuple[str, Optional[str]]]:
    return [(case_id, event.get("device_model")) for case_id in event.get("case_ids") or ()]
