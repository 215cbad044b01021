"""The cases that wait on this host: grouped by payload in the order in which they came, each kept small."""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from typing import (
    Any,
    Callable,
    Deque,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from .offsets import CaseClocks
from .wire import dump

Released = Dict[Optional[str], List[str]]
"""Ids of cases that were taken out, each once, by the device model they were asked for."""


class Group(NamedTuple):
    """What one set of workers can serve: a payload, on so many devices at once."""

    payload: str
    gang: int


class Entry:
    """One case to be measured once: anywhere, or on the device or device model that `target` names.

    `model` is the device model that its batch asked for, None where it asked for none."""

    __slots__ = (
        "_blob",
        "aside",
        "attempt",
        "case_id",
        "clocks",
        "done",
        "excused",
        "fruitless",
        "group",
        "model",
        "reported",
        "target",
        "tries",
    )

    def __init__(
        self,
        item: Mapping[str, Any],
        target: Optional[str],
        done: Iterable[str],
        attempt: int,
        model: Optional[str] = None,
        reported: Optional[Mapping[str, str]] = None,
    ) -> None:
        self.case_id = str(item["case_id"])
        self.group = group_of(item)
        self.target = target
        self.model = model
        self.done: Set[str] = set(done)
        self.attempt = attempt
        self.fruitless = 0  # how many workers it ended with no backend to blame
        # Of script payloads: which backend's execution printed a result under a name of its own, by `script_results.identity`.
        self.reported: Dict[str, str] = dict(reported or {})
        # Of `second_opinions`: where doubtful records lie, by backend and row, how often each was measured again, and
        # which of them are errors that need new workers.
        self.aside: Dict[str, Dict[str, Any]] = {}
        self.tries: Dict[str, int] = {}
        self.excused: Set[str] = set()
        # Of `offsets`: what the backends' clocks are held against.
        self.clocks: Optional[CaseClocks] = None
        self._blob = dump(item)  # a parsed case takes ten times the room, and there may be tens of thousands

    def item(self) -> Dict[str, Any]:
        """The case as it came."""
        item = json.loads(self._blob.decode("ascii"))
        assert isinstance(item, dict)
        return item

    def remaining(self) -> List[str]:
        """Backends still to be measured, in order."""
        return [backend for backend in self.item()["backends"] if backend not in self.done]


def group_of(item: Mapping[str, Any]) -> Group:
    """The group a queue item belongs to."""
    return Group(str(item["payload"]), max(1, int(item.get("devices_per_case") or 1)))


class CaseQueue:
    """Entries that nobody works on. Groups keep the order in which their first case came."""

    def __init__(self) -> None:
        self._groups: "OrderedDict[Group, Dict[Optional[str], Deque[Entry]]]" = OrderedDict()
        self._started: Set[Tuple[str, Optional[str]]] = set()

    def __len__(self) -> int:
        return sum(len(waiting) for lanes in self._groups.values() for waiting in lanes.values())

    def add(self, entry: Entry) -> None:
        """Put a case at the end of its group."""
        self._lane(entry).append(entry)

    def put_back(self, entry: Entry) -> None:
        """Put a case that was taken at the head of its group."""
        self._lane(entry).appendleft(entry)

    def groups(self) -> Iterator[Group]:
        """Groups in which a case waits, in order."""
        return iter([group for group, lanes in self._groups.items() if any(lanes.values())])

    def entries(self) -> Iterator[Entry]:
        """Every case that waits."""
        return (
            entry for lanes in self._groups.values() for waiting in lanes.values() for entry in list(waiting)
        )

    def has(self, group: Group, targets: Sequence[Optional[str]]) -> bool:
        """Whether a case of the group waits that may run under one of these targets."""
        lanes = self._groups.get(group, {})
        return any(lanes.get(target) for target in targets)

    def take(self, group: Group, targets: Sequence[Optional[str]]) -> Optional[Entry]:
        """The next case of the group for one of these targets; it counts as started from now on."""
        lanes = self._groups.get(group, {})
        for target in targets:
            waiting = lanes.get(target)
            if waiting:
                entry = waiting.popleft()
                self._started.add((entry.case_id, entry.model))
                return entry
        return None

    def drop(self, payload: str, target: Optional[str] = None) -> List[Entry]:
        """Take out every case of a payload (or those that may only run on `target`), to be ended without measuring."""
        dropped: List[Entry] = []
        for group, lanes in self._groups.items():
            for lane, waiting in lanes.items():
                if group.payload == payload and target in (None, lane):
                    dropped += waiting
                    waiting.clear()
        return dropped

    def lanes(self, group: Group) -> List[Optional[str]]:
        """The targets for which a case of the group waits."""
        return [target for target, waiting in self._groups.get(group, {}).items() if waiting]

    def drop_lane(self, group: Group, target: Optional[str]) -> List[Entry]:
        """Take out every case of a group that may only run on `target`."""
        waiting = self._groups[group][target]
        dropped = list(waiting)
        waiting.clear()
        return dropped

    def release(self, case_ids: Iterable[str], model: Optional[str] = None) -> Released:
        """Take out those of the cases, as asked for `model`, of which nothing has been started."""
        wanted = {case_id for case_id in case_ids if (case_id, model) not in self._started}
        return self._take_out(
            lambda entry: entry.case_id in wanted and entry.model == model and not entry.done
        )

    def release_all(self) -> Released:
        """Take out every case."""
        return self._take_out(lambda entry: True)

    def _take_out(self, chosen: Callable[[Entry], bool]) -> Released:
        out: Dict[Optional[str], Dict[str, None]] = {}
        for lanes in self._groups.values():
            for lane, waiting in lanes.items():
                for entry in filter(chosen, waiting):
                    out.setdefault(entry.model, {})[entry.case_id] = None
                lanes[lane] = deque(entry for entry in waiting if not chosen(entry))
        return {model: list(case_ids) for model, case_ids in out.items()}

    def _lane(self, entry: Entry) -> Deque[Entry]:
        return self._groups.setdefault(entry.group, {}).setdefault(entry.target, deque())
