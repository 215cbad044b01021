"""Which host measures which case when a sweep is sharded over several hosts.

Every case is measured once per device model. A host joins the group of its device model when it has reported
its devices; the cases of a group are dealt out whole (a run goes on without the controller), in proportion to
the hosts' devices. When a host has run dry while another of its group still has cases it has not begun, half of
those are asked back (`Release`) and, once the host has journalled that it gave them up, handed on. The cases of
a host that is gone are handed on at once.

Pure: events go in, actions come out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Enqueue:
    """Give these cases to a host."""

    host: str
    case_ids: tuple[str, ...]


@dataclass(frozen=True)
class Release:
    """Ask a host to give back those of these cases that it has not begun."""

    host: str
    case_ids: tuple[str, ...]


@dataclass(frozen=True)
class Seal:
    """Tell a host that nothing more will come."""

    host: str


Action = Enqueue | Release | Seal


@dataclass
class _Host:
    model: str
    devices: int
    unstarted: list[str] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    asked_back: set[str] = field(default_factory=set)
    sealed: bool = False
    gone: bool = False

    @property
    def dry(self) -> bool:
        return not self.unstarted and len(self.running) < self.devices


class Dealer:
    """Deals the cases of a sharded sweep out to hosts, and moves those not begun from slow or dead ones."""

    def __init__(self, case_ids: Sequence[str], hosts: Iterable[str]) -> None:
        self._cases = tuple(case_ids)
        self._expected = set(hosts)
        self._hosts: dict[str, _Host] = {}
        self._groups: dict[str, list[str]] = {}  # model -> cases nobody holds at the moment
        self._done: dict[str, set[str]] = {}  # model -> cases with a result
        self._given: dict[str, int] = {}

    @property
    def dealt(self) -> bool:
        """Whether every host has answered or is given up, and no case is left in our hands."""
        return not self._expected and not any(self._groups[m] for m in self._groups if self._of(m))

    def given(self, name: str) -> int:
        """How many cases a host was given so far, those it gave back included."""
        return self._given.get(name, 0)

    @property
    def models(self) -> Mapping[str, int]:
        """Device models seen so far, with the number of their devices."""
        totals: dict[str, int] = {}
        for host in self._hosts.values():
            totals[host.model] = totals.get(host.model, 0) + host.devices
        return totals

    def host_ready(self, name: str, model: str, devices: int, done: Iterable[str] = ()) -> None:
        """A host has reported its devices; `done` are cases it finished before (a resumed run)."""
        self._expected.discard(name)
        if name in self._hosts and not self._hosts[name].gone:
            return
        self._hosts[name] = _Host(model, max(1, devices))
        if model not in self._groups:
            self._done[model] = set()
            self._groups[model] = list(self._cases)
        for case_id in done:
            self.finished(name, case_id)

    def host_gone(self, name: str) -> None:
        """A host will not answer (again): what it has not finished goes to others of its model."""
        self._expected.discard(name)
        host = self._hosts.get(name)
        if host is None or host.gone:
            return
        host.gone = True
        back = [c for c in (*sorted(host.running), *host.unstarted) if c not in self._done[host.model]]
        held = {c for other in self._of(host.model) for c in (*other.unstarted, *other.running)}
        self._groups[host.model][:0] = [
            c for c in back if c not in held and c not in self._groups[host.model]
        ]
        host.unstarted, host.running, host.asked_back = [], set(), set()

    def queued(self, name: str, case_ids: Iterable[str]) -> None:
        """A host has journalled that it holds these cases; news only to a dealer that takes a run up again."""
        host = self._hosts.get(name)
        if host is None:
            return
        free = self._groups[host.model]
        for case_id in case_ids:
            if case_id in free:
                free.remove(case_id)
                host.unstarted.append(case_id)

    def started(self, name: str, case_id: str) -> None:
        """A host has begun a case."""
        host = self._hosts.get(name)
        if host is None:
            return
        if case_id in host.unstarted:
            host.unstarted.remove(case_id)
        host.asked_back.discard(case_id)
        host.running.add(case_id)

    def finished(self, name: str, case_id: str) -> None:
        """A host has every result of a case."""
        host = self._hosts.get(name)
        if host is None:
            return
        host.running.discard(case_id)
        host.asked_back.discard(case_id)
        if case_id in host.unstarted:
            host.unstarted.remove(case_id)
        self._done[host.model].add(case_id)
        if case_id in self._groups[host.model]:
            self._groups[host.model].remove(case_id)

    def released(self, name: str, case_ids: Iterable[str]) -> None:
        """A host has journalled that it gave cases back."""
        host = self._hosts.get(name)
        if host is None:
            return
        for case_id in case_ids:
            host.asked_back.discard(case_id)
            if case_id in host.unstarted:
                host.unstarted.remove(case_id)
                if case_id not in self._done[host.model]:
                    self._groups[host.model].append(case_id)

    def actions(self) -> list[Action]:
        """What to tell the hosts now; each action is returned once."""
        if self._expected:
            return []  # the first hand is dealt when every host has answered or is given up
        out: list[Action] = []
        for model in self._groups:
            out += self._deal(model)
            out += self._ask_back(model)
        if self._everything_done():
            for name, host in self._hosts.items():
                if not host.sealed and not host.gone:
                    host.sealed = True
                    out.append(Seal(name))
        return out

    def _of(self, model: str) -> list[_Host]:
        return [h for h in self._hosts.values() if h.model == model and not h.gone]

    def _everything_done(self) -> bool:
        return all(len(self._done[m]) == len(self._cases) for m in self._groups if self._of(m))

    def _deal(self, model: str) -> list[Action]:
        free = self._groups[model]
        hosts = {n: h for n, h in self._hosts.items() if h.model == model and not h.gone and not h.sealed}
        if not free or not hosts:
            return []
        hands: dict[str, list[str]] = {name: [] for name in hosts}
        for case_id in free:
            # the host with the least to do for each of its devices comes next
            name = min(
                hosts,
                key=lambda n: (
                    (len(hosts[n].unstarted) + len(hosts[n].running) + len(hands[n])) / hosts[n].devices,
                    n,
                ),
            )
            hands[name].append(case_id)
        free.clear()
        for name, hand in hands.items():
            hosts[name].unstarted += hand
            self._given[name] = self._given.get(name, 0) + len(hand)
        return [Enqueue(name, tuple(hand)) for name, hand in hands.items() if hand]

    def _ask_back(self, model: str) -> list[Action]:
        hosts = {n: h for n, h in self._hosts.items() if h.model == model and not h.gone}
        if any(h.asked_back for h in hosts.values()) or not any(h.dry for h in hosts.values()):
            return []
        name = max(hosts, key=lambda n: (len(hosts[n].unstarted), n))
        slow = hosts[name]
        half = slow.unstarted[len(slow.unstarted) - (len(slow.unstarted) + 1) // 2 :]
        if not half or len(slow.running) < slow.devices:
            return []  # it is about to begin what it has
        slow.asked_back = set(half)
        return [Release(name, tuple(half))]
