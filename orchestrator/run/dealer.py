"""Which host measures which case when a sweep is sharded over several hosts.

Every case is measured once per device model. The devices of one model on one host are a seat; the seats of a model
share its cases. Cases are dealt out whole (a run goes on without the controller), in proportion to the devices. When a
seat has run dry while another of its model holds cases that it will not begin soon, half of those are asked back
(`Release`) and, once the host has journalled that it gave them up, dealt anew. The cases of a host that is gone or
silent are dealt anew at once; if it comes back, what it has not begun of them is asked back.

Pure: events go in, actions come out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Enqueue:
    """Give these cases to the devices of one model on a host."""

    host: str
    model: str
    case_ids: tuple[str, ...]


@dataclass(frozen=True)
class Release:
    """Ask a host to give back those of these cases that its devices of a model have not begun."""

    host: str
    model: str
    case_ids: tuple[str, ...]


@dataclass(frozen=True)
class Seal:
    """Tell a host that nothing more will come."""

    host: str


Action = Enqueue | Release | Seal


@dataclass
class _Seat:
    """The devices of one model on one host. Of what it holds, `running` has begun."""

    host: str
    model: str
    devices: int
    unstarted: dict[str, None] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    asked_back: set[str] = field(default_factory=set)
    waiting: bool = False

    @property
    def dry(self) -> bool:
        return not self.unstarted and len(self.running) < self.devices and not self.waiting

    @property
    def idle_hand(self) -> list[str]:
        """What it will not begin soon: all but as many as it has free devices, unless somebody else has those."""
        soon = 0 if self.waiting else max(0, self.devices - len(self.running))
        return [case_id for case_id in self.unstarted if case_id not in self.asked_back][soon:]

    def drop(self, case_id: str) -> None:
        self.unstarted.pop(case_id, None)
        self.running.discard(case_id)
        self.asked_back.discard(case_id)


@dataclass
class _Host:
    ready: bool = False
    current: bool = False
    gone: bool = False
    late: bool = False
    linked: bool = True
    sealed: bool = False


class Dealer:
    """Deals the cases of a sharded sweep out to hosts, and moves those not begun from slow or dead ones."""

    def __init__(self, case_ids: Sequence[str], hosts: Iterable[str]) -> None:
        self._cases = tuple(case_ids)
        self._hosts = {name: _Host() for name in hosts}
        self._seats: dict[tuple[str, str], _Seat] = {}
        self._free: dict[str, dict[str, None]] = {}  # by model: cases nobody holds at the moment
        self._done: dict[str, set[str]] = {}  # by model: cases with every result
        self._doubtful: set[str] = set()  # models of which two seats may hold the same case

    @property
    def dealt(self) -> bool:
        """Whether every host has answered or is given up, and no case is left in our hands."""
        return not self._unanswered() and not any(
            free for model, free in self._free.items() if any(self._live(model))
        )

    @property
    def complete(self) -> bool:
        """Whether every case has its results for every model of the hosts that have answered and are not given up."""
        models = {seat.model for seat in self._seats.values() if not self._hosts[seat.host].gone}
        return bool(models) and all(len(self._done[model]) == len(self._cases) for model in models)

    # --- what is heard of hosts ------------------------------------------------------------------------------

    def ready(self, host: str, devices: Mapping[str, int]) -> None:
        """A host has reported the number of its devices by model. One that was gone is back, with what it holds."""
        state = self._hosts[host]
        state.ready, state.gone = True, False
        for seat in self._of(host):
            if seat.model not in devices:  # a device that fell off the bus
                self._hand_back(seat)
                del self._seats[host, seat.model]
        for model, count in devices.items():
            if model not in self._free:
                self._done[model] = set()
                self._free[model] = dict.fromkeys(self._cases)
            seat = self._seats.setdefault((host, model), _Seat(host, model, count))
            seat.devices = max(1, count)
            self._recall(seat)

    def current(self, host: str) -> None:
        """All that a host had journalled by now has been told to us: what it holds is known."""
        self._hosts[host].current = True

    def late(self, host: str) -> None:
        """A host that holds nothing lets the others wait for its first word: they begin without it."""
        self._hosts[host].late = True

    def linked(self, host: str, linked: bool) -> None:
        """Whether we can speak with a host at the moment. What we asked of it before a break may not have arrived."""
        state = self._hosts[host]
        if linked and not state.linked:
            for seat in self._of(host):
                seat.asked_back.clear()
                if state.gone:
                    self._recall(seat)
            state.gone = False
        state.linked = linked

    def gone(self, host: str, *, forgotten: bool = False) -> None:
        """A host will not answer, or has been silent for too long: what it has not finished goes to others.

        `forgotten`: it has lost what it held."""
        state = self._hosts[host]
        was_gone, state.gone = state.gone, True
        for seat in self._of(host):
            if not was_gone:
                self._hand_back(seat)
            if forgotten:
                del self._seats[host, seat.model]
        if forgotten:
            self._hosts[host] = _Host(current=True, gone=True, linked=state.linked)

    def restarted(self, host: str) -> None:
        """A new agent has taken up what the last one held: nothing of it is running."""
        for seat in self._of(host):
            seat.unstarted = {**dict.fromkeys(sorted(seat.running)), **seat.unstarted}
            seat.running.clear()

    def waiting(self, host: str, model: str, waiting: bool) -> None:
        """Whether somebody else has the devices of a seat."""
        if seat := self._seats.get((host, model)):
            seat.waiting = waiting

    # --- what is heard of cases; `model` None means every model of the host ------------------------------------

    def queued(self, host: str, model: str | None, case_ids: Iterable[str]) -> None:
        """A host has journalled that it holds these cases; news only to a dealer that takes a run up again."""
        case_ids = tuple(case_ids)
        for seat in self._of(host, model):
            free, done = self._free[seat.model], self._done[seat.model]
            for case_id in case_ids:
                if case_id in seat.unstarted or case_id in seat.running or case_id in done:
                    continue
                if case_id in free:
                    del free[case_id]
                else:
                    self._doubtful.add(seat.model)
                seat.unstarted[case_id] = None

    def started(self, host: str, model: str, case_id: str) -> None:
        """A host has begun a case."""
        if (seat := self._seats.get((host, model))) and case_id not in self._done[model]:
            seat.drop(case_id)
            seat.running.add(case_id)
            self._free[model].pop(case_id, None)

    def stopped(self, host: str, model: str, case_id: str) -> None:
        """An attempt at a case has ended; unless it is finished, the host will begin it again."""
        seat = self._seats.get((host, model))
        if seat is not None and case_id in seat.running:
            seat.running.discard(case_id)
            seat.unstarted = {case_id: None, **seat.unstarted}

    def finished(self, host: str, model: str, case_id: str) -> None:
        """Every result of a case is there for a model."""
        if (host, model) not in self._seats:
            return
        self._done[model].add(case_id)
        self._free[model].pop(case_id, None)
        for seat in self._seats.values():
            if seat.model == model:
                if case_id in seat.unstarted and seat.host != host:
                    self._doubtful.add(model)
                else:
                    seat.drop(case_id)

    def released(self, host: str, model: str | None, case_ids: Iterable[str]) -> None:
        """A host has journalled that it gave cases back."""
        case_ids = tuple(case_ids)
        for seat in self._of(host, model):
            for case_id in case_ids:
                seat.asked_back.discard(case_id)
                if case_id in seat.unstarted:
                    del seat.unstarted[case_id]
                    if case_id not in self._done[seat.model] and not self._held_elsewhere(seat, case_id):
                        self._free[seat.model][case_id] = None

    # --- what to do -------------------------------------------------------------------------------------------

    def actions(self) -> list[Action]:
        """What to tell the hosts now; each action is returned once."""
        if any(not self._hosts[name].late for name in self._unanswered()):
            return []  # the first hand is dealt when every host has answered, is late or is given up
        out: list[Action] = []
        for model in self._free:
            out += self._withdraw(model)
            out += self._deal(model)
            out += self._ask_back(model)
        for name, host in self._hosts.items():
            if host.ready and not host.gone and not host.sealed and self._has_all(name):
                host.sealed = True
                out.append(Seal(name))
        return out

    def _unanswered(self) -> list[str]:
        """Hosts of which it is not known yet what they have and hold."""
        return [n for n, host in self._hosts.items() if not host.gone and not (host.ready and host.current)]

    def _live(self, model: str) -> Iterator[_Seat]:
        return (s for s in self._seats.values() if s.model == model and not self._hosts[s.host].gone)

    def _of(self, host: str, model: str | None = None) -> list[_Seat]:
        return [s for s in self._seats.values() if s.host == host and model in (None, s.model)]

    def _held_elsewhere(self, seat: _Seat, case_id: str) -> bool:
        return any(
            case_id in other.unstarted or case_id in other.running
            for other in self._live(seat.model)
            if other is not seat
        )

    def _has_all(self, host: str) -> bool:
        return all(len(self._done[seat.model]) == len(self._cases) for seat in self._of(host))

    def _hand_back(self, seat: _Seat) -> None:
        """What a seat holds, and nobody else does, is to be dealt anew; what had begun comes first."""
        back = [
            case_id
            for case_id in (*sorted(seat.running), *seat.unstarted)
            if case_id not in self._done[seat.model] and not self._held_elsewhere(seat, case_id)
        ]
        self._free[seat.model] = dict.fromkeys([*back, *self._free[seat.model]])

    def _recall(self, seat: _Seat) -> None:
        """A seat is back with what it holds: of what was dealt to others meanwhile one has to go."""
        for case_id in (*seat.running, *seat.unstarted):
            self._free[seat.model].pop(case_id, None)
        self._doubtful.add(seat.model)

    def _withdraw(self, model: str) -> list[Action]:
        """Ask back what is done or held elsewhere too."""
        if model not in self._doubtful:
            return []
        self._doubtful.discard(model)
        taken = set(self._done[model]) | {c for seat in self._live(model) for c in seat.running}
        out: list[Action] = []
        for seat in sorted(
            self._live(model), key=lambda seat: (not self._hosts[seat.host].linked, seat.host)
        ):
            extra = [c for c in seat.unstarted if c in taken and c not in seat.asked_back]
            taken.update(seat.unstarted)
            if extra:
                seat.asked_back.update(extra)
                out.append(Release(seat.host, model, tuple(extra)))
        return out

    def _deal(self, model: str) -> list[Action]:
        free = self._free[model]
        waited_for = set(self._unanswered())
        seats = [
            seat
            for seat in self._live(model)
            if not self._hosts[seat.host].sealed and seat.host not in waited_for
        ]
        # A host that cannot be spoken with just now gets cases only where there is no other.
        seats = [seat for seat in seats if self._hosts[seat.host].linked] or seats
        if not free or not seats:
            return []
        hands: dict[str, list[str]] = {seat.host: [] for seat in seats}

        def load(seat: _Seat) -> tuple[bool, float, str]:
            held = len(seat.unstarted) + len(seat.running) + len(hands[seat.host])
            return seat.waiting, held / seat.devices, seat.host

        for case_id in free:
            hands[min(seats, key=load).host].append(case_id)
        free.clear()
        out: list[Action] = []
        for seat in seats:
            if hand := hands[seat.host]:
                seat.unstarted.update(dict.fromkeys(hand))
                out.append(Enqueue(seat.host, model, tuple(hand)))
        return out

    def _ask_back(self, model: str) -> list[Action]:
        seats = [seat for seat in self._live(model) if self._hosts[seat.host].linked]
        waited_for = set(self._unanswered())
        dry = sum(seat.dry for seat in seats if seat.host not in waited_for)
        asking = sum(bool(seat.asked_back) for seat in seats)
        if asking >= dry:
            return []
        out: list[Action] = []
        hands = [(seat, seat.idle_hand) for seat in seats]
        for seat, hand in sorted(hands, key=lambda held: (-len(held[1]), held[0].host)):
            if asking >= dry or not hand:
                break
            if seat.asked_back:
                continue
            half = hand[len(hand) - (len(hand) + 1) // 2 :] if not seat.waiting else hand
            seat.asked_back = set(half)
            out.append(Release(seat.host, model, tuple(half)))
            asking += 1
        return out
