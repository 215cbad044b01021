"""Sharding over hosts: whatever the order of events and breaks, each case is measured once per device model."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.run.dealer import Dealer, Enqueue, Release, Seal

H200, B200 = "H200", "B200"


class World:
    """Hosts that take cases in order, one a device, and answer as the agent does; links that come and go.

    What is said over a broken link is said again when it is back (but not `Release`); what a host journals meanwhile is
    heard then."""

    def __init__(self, rng: random.Random, hosts: dict[str, dict[str, int]], cases: list[str]) -> None:
        self.rng, self.hosts = rng, hosts
        self.dealer = Dealer(cases, hosts)
        self.queue: dict[tuple[str, str], list[str]] = {(h, m): [] for h in hosts for m in hosts[h]}
        self.running: dict[tuple[str, str], list[str]] = {seat: [] for seat in self.queue}
        self.measured: list[tuple[str, str]] = []  # (model, case), each time that one was measured
        self.dead: set[str] = set()
        self.cut: set[str] = set()
        self.given_up: set[str] = set()
        self.sealed: set[str] = set()
        self.unheard: dict[str, list[tuple[str, str, str]]] = {host: [] for host in hosts}
        self.unsaid: dict[str, list[Enqueue | Seal]] = {host: [] for host in hosts}

    def act(self) -> None:
        for action in self.dealer.actions():
            if action.host in self.dead:
                continue
            if action.host in self.cut:
                if not isinstance(action, Release):
                    self.unsaid[action.host].append(action)
                continue
            self.obey(action)

    def obey(self, action: Enqueue | Release | Seal) -> None:
        if isinstance(action, Enqueue):
            assert action.host not in self.sealed
            self.queue[action.host, action.model] += action.case_ids
        elif isinstance(action, Release):
            queue = self.queue[action.host, action.model]
            for case in [case for case in action.case_ids if case in queue]:
                queue.remove(case)
                self.tell(action.host, "released", action.model, case)
        else:
            self.sealed.add(action.host)

    def tell(self, host: str, what: str, model: str, case: str) -> None:
        if host in self.cut:
            self.unheard[host].append((what, model, case))
        elif what == "released":
            self.dealer.released(host, model, [case])
        else:
            getattr(self.dealer, what)(host, model, case)

    def step(self, host: str, model: str) -> None:
        queue, running = self.queue[host, model], self.running[host, model]
        if len(running) < self.hosts[host][model] and queue:
            running.append(queue.pop(0))
            self.tell(host, "started", model, running[-1])
        elif running:
            case = running.pop(self.rng.randrange(len(running)))
            self.measured.append((model, case))
            self.tell(host, "stopped", model, case)
            self.tell(host, "finished", model, case)

    def kill(self, host: str) -> None:
        self.dead.add(host)
        for model in self.hosts[host]:
            self.queue[host, model], self.running[host, model] = [], []
        self.dealer.gone(host)

    def break_link(self, host: str) -> None:
        self.cut.add(host)
        self.dealer.linked(host, False)

    def give_up(self, host: str) -> None:
        self.given_up.add(host)
        self.dealer.gone(host)

    def mend_link(self, host: str) -> None:
        self.cut.discard(host)
        self.dealer.linked(host, True)
        unheard, self.unheard[host] = self.unheard[host], []
        for what, model, case in unheard:
            self.tell(host, what, model, case)
        unsaid, self.unsaid[host] = self.unsaid[host], []
        for action in unsaid:
            self.obey(action)

    def over(self) -> bool:
        return self.sealed >= set(self.hosts) - self.dead and not any(
            self.queue[seat] or self.running[seat] for seat in self.queue
        )


HOSTS = st.lists(
    st.dictionaries(st.sampled_from([H200, B200]), st.integers(1, 8), min_size=1, max_size=2), min_size=1, max_size=6
)  # fmt: skip


def world(seed: int, hosts: list[dict[str, int]], cases: int) -> World:
    made = World(
        random.Random(seed), {f"h{i}": h for i, h in enumerate(hosts)}, [f"c{i}" for i in range(cases)]
    )
    for host, devices in made.hosts.items():
        made.dealer.ready(host, devices)
        made.dealer.current(host)
    return made


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32), hosts=HOSTS, cases=st.integers(1, 40), deaths=st.integers(0, 3))
def test_each_case_is_measured_once_per_model(
    seed: int, hosts: list[dict[str, int]], cases: int, deaths: int
) -> None:
    played = world(seed, hosts, cases)
    rng = played.rng
    # A model keeps at least one host, else nobody could measure its cases.
    survivor = {model: rng.choice([h for h in played.hosts if model in played.hosts[h]])
                for model in {m for devices in hosts for m in devices}}  # fmt: skip
    doomed = [h for h in played.hosts if h not in survivor.values()][:deaths]
    for _ in range(20_000):
        played.act()
        if played.over():
            break
        host, model = rng.choice(sorted(played.queue))
        if host in doomed and host not in played.dead and rng.random() < 0.05:
            played.kill(host)
        if host not in played.dead:
            played.step(host, model)
    for model in survivor:
        assert sorted(c for m, c in played.measured if m == model) == sorted(f"c{i}" for i in range(cases))
    assert played.over()


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32), hosts=HOSTS, cases=st.integers(1, 40))
def test_links_that_break_lose_nothing_and_only_a_long_silence_measures_twice(
    seed: int, hosts: list[dict[str, int]], cases: int
) -> None:
    played = world(seed, hosts, cases)
    rng = played.rng
    for _ in range(20_000):
        played.act()
        if played.over() and not played.cut:
            break
        host, model = rng.choice(sorted(played.queue))
        if host not in played.cut and rng.random() < 0.05:
            played.break_link(host)
        elif host in played.cut and rng.random() < 0.2:
            played.mend_link(host)
        elif host in played.cut and rng.random() < 0.05:
            played.give_up(host)
        played.step(host, model)
    assert played.over()
    for model in {m for devices in hosts for m in devices}:
        measured = [c for m, c in played.measured if m == model]
        assert set(measured) == {f"c{i}" for i in range(cases)}
        if not played.given_up:
            assert len(measured) == cases


def ready(dealer: Dealer, **devices: int) -> None:
    for host, count in devices.items():
        dealer.ready(host, {H200: count})
        dealer.current(host)


def test_nothing_is_dealt_before_every_host_answered_or_is_given_up() -> None:
    dealer = Dealer(["a", "b"], ["x", "y"])
    ready(dealer, x=1)
    assert dealer.actions() == []
    dealer.gone("y")
    assert dealer.actions() == [Enqueue("x", H200, ("a", "b"))]


def test_nothing_is_dealt_before_all_that_a_host_holds_is_known() -> None:
    dealer = Dealer(["a", "b"], ["x"])
    dealer.ready("x", {H200: 1})
    assert dealer.actions() == []
    dealer.queued("x", H200, ["a"])
    dealer.current("x")
    assert dealer.actions() == [Enqueue("x", H200, ("b",))]


def test_cases_are_dealt_in_proportion_to_the_devices() -> None:
    dealer = Dealer([str(i) for i in range(9)], ["big", "small"])
    ready(dealer, big=8, small=1)
    hands = {a.host: len(a.case_ids) for a in dealer.actions() if isinstance(a, Enqueue)}
    assert hands == {"big": 8, "small": 1}


def test_a_dry_host_gets_half_of_what_a_slow_one_has_not_begun() -> None:
    dealer = Dealer([f"c{i}" for i in range(8)], ["a", "b"])
    ready(dealer, a=1, b=1)
    hands = {x.host: x.case_ids for x in dealer.actions() if isinstance(x, Enqueue)}
    dealer.started("b", H200, hands["b"][0])
    for case in hands["a"]:
        dealer.started("a", H200, case)
        dealer.finished("a", H200, case)
    assert dealer.actions() == [Release("b", H200, hands["b"][2:])]
    dealer.released("b", H200, hands["b"][2:])
    moved = [x for x in dealer.actions() if isinstance(x, Enqueue)]
    assert sorted(c for x in moved for c in x.case_ids) == sorted(hands["b"][2:])
    assert any(x.host == "a" for x in moved)


def test_a_host_that_waits_for_somebody_elses_run_gives_all_to_one_that_can_begin() -> None:
    dealer = Dealer([f"c{i}" for i in range(4)], ["a", "b"])
    ready(dealer, a=1, b=1)
    hands = {x.host: x.case_ids for x in dealer.actions() if isinstance(x, Enqueue)}
    dealer.waiting("b", H200, True)
    for case in hands["a"]:
        dealer.started("a", H200, case)
        dealer.finished("a", H200, case)
    assert dealer.actions() == [Release("b", H200, hands["b"])]
    dealer.released("b", None, hands["b"])
    assert dealer.actions() == [Enqueue("a", H200, hands["b"])]


def test_a_second_model_measures_every_case_too_also_on_the_same_host() -> None:
    dealer = Dealer(["a", "b"], ["h", "r"])
    dealer.ready("h", {H200: 1})
    dealer.ready("r", {H200: 1, B200: 1})
    for host in "hr":
        dealer.current(host)
    assert dealer.actions() == [
        Enqueue("h", H200, ("a",)), Enqueue("r", H200, ("b",)), Enqueue("r", B200, ("a", "b")),
    ]  # fmt: skip


def test_what_a_returning_host_has_begun_is_taken_from_the_other() -> None:
    dealer = Dealer(["a", "b", "c"], ["x", "y"])
    ready(dealer, x=1, y=1)
    dealer.actions()  # x: a c, y: b
    dealer.linked("x", False)
    dealer.gone("x")
    assert dealer.actions() == [Enqueue("y", H200, ("a", "c"))]
    dealer.linked("x", True)
    dealer.started("x", H200, "a")
    assert dealer.actions() == [Release("y", H200, ("a", "c"))]
    dealer.released("y", H200, ["a"])
    dealer.started("y", H200, "c")  # it had just begun that one
    dealer.finished("y", H200, "c")
    assert dealer.actions() == [Release("x", H200, ("c",))]


def test_a_host_that_lost_its_run_folder_is_dealt_to_anew() -> None:
    dealer = Dealer(["a", "b"], ["x"])
    ready(dealer, x=1)
    dealer.actions()
    dealer.finished("x", H200, "a")
    dealer.gone("x", forgotten=True)
    dealer.ready("x", {H200: 1})
    assert dealer.actions() == [Enqueue("x", H200, ("b",))]
    dealer.finished("x", H200, "b")
    assert dealer.actions() == [Seal("x")]


def test_the_others_begin_without_a_host_that_is_late_and_it_gets_its_share_when_it_answers() -> None:
    cases = [f"c{i}" for i in range(8)]
    dealer = Dealer(cases, ["a", "late"])
    dealer.ready("a", {H200: 1})
    dealer.current("a")
    assert dealer.actions() == []
    dealer.late("late")
    assert dealer.actions() == [Enqueue("a", H200, tuple(cases))]
    assert not dealer.dealt  # who leaves now would leave without it
    dealer.started("a", H200, "c0")
    dealer.ready("late", {H200: 1})
    assert dealer.actions() == []  # what it may hold is not known yet
    dealer.current("late")
    (release,) = dealer.actions()
    assert release == Release("a", H200, ("c4", "c5", "c6", "c7"))
    dealer.released("a", H200, release.case_ids)
    assert dealer.actions() == [Enqueue("late", H200, release.case_ids)]
    assert dealer.dealt
