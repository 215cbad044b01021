"""Sharding over hosts: whatever the order of events, each case is measured once per device model."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.run.dealer import Dealer, Enqueue, Release, Seal


class World:
    """Hosts that take cases in order, one a device, and answer requests like the agent does."""

    def __init__(self, rng: random.Random, models: dict[str, tuple[str, int]], cases: list[str]) -> None:
        self.rng, self.models = rng, models
        self.dealer = Dealer(cases, models)
        self.queue: dict[str, list[str]] = {h: [] for h in models}
        self.running: dict[str, list[str]] = {h: [] for h in models}
        self.measured: list[tuple[str, str]] = []  # (model, case)
        self.begun: list[tuple[str, str]] = []
        self.dead: set[str] = set()
        self.sealed: set[str] = set()

    def act(self) -> None:
        for action in self.dealer.actions():
            if action.host in self.dead:
                continue
            if isinstance(action, Enqueue):
                assert action.host not in self.sealed
                self.queue[action.host] += action.case_ids
            elif isinstance(action, Release):
                given = [c for c in action.case_ids if c in self.queue[action.host]]
                self.queue[action.host] = [c for c in self.queue[action.host] if c not in given]
                self.dealer.released(action.host, given)
            elif isinstance(action, Seal):
                self.sealed.add(action.host)

    def step(self, host: str) -> None:
        model, devices = self.models[host]
        if len(self.running[host]) < devices and self.queue[host]:
            case = self.queue[host].pop(0)
            self.running[host].append(case)
            self.begun.append((model, case))
            self.dealer.started(host, case)
        elif self.running[host]:
            case = self.running[host].pop(self.rng.randrange(len(self.running[host])))
            self.measured.append((model, case))
            self.dealer.finished(host, case)

    def kill(self, host: str) -> None:
        self.dead.add(host)
        self.queue[host], self.running[host] = [], []
        self.dealer.host_gone(host)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    hosts=st.lists(st.tuples(st.sampled_from(["H200", "B200"]), st.integers(1, 8)), min_size=1, max_size=6),
    cases=st.integers(1, 40),
    deaths=st.integers(0, 3),
)
def test_each_case_is_measured_once_per_model(
    seed: int, hosts: list[tuple[str, int]], cases: int, deaths: int
) -> None:
    rng = random.Random(seed)
    models = {f"h{i}": h for i, h in enumerate(hosts)}
    names = [f"c{i}" for i in range(cases)]
    world = World(rng, models, names)
    for host, (model, devices) in models.items():
        world.dealer.host_ready(host, model, devices)
    doomed = rng.sample(sorted(models), min(deaths, len(models)))
    # a model survives with at least one host, else nobody could measure its cases
    doomed = [h for h in doomed if any(o not in doomed and models[o][0] == models[h][0] for o in models)]
    for _ in range(20_000):
        world.act()
        if world.sealed >= set(models) - world.dead and not any(
            world.running[h] or world.queue[h] for h in models
        ):
            break
        host = rng.choice(sorted(models))
        if host in doomed and host not in world.dead and rng.random() < 0.05:
            world.kill(host)
        if host not in world.dead:
            world.step(host)
    for model in {m for m, _ in hosts}:
        assert sorted(c for m, c in world.measured if m == model) == sorted(names)
    assert world.sealed == set(models) - world.dead or world.sealed >= set(models) - set(doomed)


def test_nothing_is_dealt_before_every_host_answered_or_is_given_up() -> None:
    dealer = Dealer(["a", "b"], ["x", "y"])
    dealer.host_ready("x", "H200", 1)
    assert dealer.actions() == []
    dealer.host_gone("y")
    assert dealer.actions() == [Enqueue("x", ("a", "b"))]


def test_cases_are_dealt_in_proportion_to_the_devices() -> None:
    dealer = Dealer([str(i) for i in range(9)], ["big", "small"])
    dealer.host_ready("big", "H200", 8)
    dealer.host_ready("small", "H200", 1)
    hands = {a.host: len(a.case_ids) for a in dealer.actions() if isinstance(a, Enqueue)}
    assert hands == {"big": 8, "small": 1}


def test_a_dry_host_gets_half_of_what_a_slow_one_has_not_begun() -> None:
    dealer = Dealer([f"c{i}" for i in range(8)], ["a", "b"])
    dealer.host_ready("a", "H200", 1)
    dealer.host_ready("b", "H200", 1)
    hands = {x.host: x.case_ids for x in dealer.actions() if isinstance(x, Enqueue)}
    dealer.started("b", hands["b"][0])
    for case in hands["a"]:
        dealer.started("a", case)
        dealer.finished("a", case)
    (ask,) = dealer.actions()
    assert isinstance(ask, Release)
    assert ask.host == "b"
    assert ask.case_ids == hands["b"][2:]
    dealer.released("b", ask.case_ids)
    moved = [x for x in dealer.actions() if isinstance(x, Enqueue)]
    assert sorted(c for x in moved for c in x.case_ids) == sorted(ask.case_ids)
    assert any(x.host == "a" for x in moved)


def test_a_second_model_measures_every_case_too() -> None:
    dealer = Dealer(["a", "b"], ["h", "r"])
    dealer.host_ready("h", "H200", 1)
    dealer.host_ready("r", "RTX PRO 6000", 1)
    assert dealer.actions() == [Enqueue("h", ("a", "b")), Enqueue("r", ("a", "b"))]
