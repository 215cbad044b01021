"""The promise of a comparison, held on real measurements: 60 runs of farbench itself on a busy two-core machine.

Each run was a process of its own with 20 measurements: GEMMs by numpy and torch, and sorts by a script, of which some
runs take 2.5 times as long as others for no reason. Nothing was changed between them, so that whatever is called a
change between any two of them is called wrongly.
"""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from orchestrator.compare import Match, Outcome, Pair, PastTime, Subject, Timed
from orchestrator.compare.deciding import decide
from orchestrator.compare.floors import NoiseOfHosts

DATA = Path(__file__).parent / "data" / "repeated-runs.json.gz"
HISTORY = 20
CHANGED = (Outcome.SLOWER, Outcome.FASTER)
Run = dict[Subject, tuple[PastTime, Timed]]


@cache
def runs() -> tuple[Run, ...]:
    """Every run, in the order in which they were made; times whose verdict is invalid are not compared."""
    kept = json.loads(gzip.decompress(DATA.read_bytes()))
    found = []
    for number, measurements in enumerate(kept["runs"]):
        run: Run = {}
        for index, median_us, verdict, reasons, samples_us in measurements:
            payload, label, backend, timer, cache_state = kept["subjects"][index]
            subject = Subject(f"{payload} {label}", "", backend, "CPU", cache_state, timer)
            name, is_valid = f"r{number:03d}", verdict == "valid"
            if verdict != "invalid":
                run[subject] = (
                    PastTime(
                        name, subject, "local", "cpu-0", median_us, is_valid, tuple(reasons), label, payload
                    ),
                    Timed(name, "local", "cpu-0", median_us, is_valid, tuple(reasons), tuple(samples_us)),
                )
        found.append(run)
    return tuple(found)


def resampled(source: random.Random, history: int) -> tuple[list[Match], NoiseOfHosts]:
    """Two runs, and others as the history of both."""
    everything = runs()
    chosen = source.sample(range(len(everything)), 2 + history)
    a, b, earlier = everything[chosen[0]], everything[chosen[1]], sorted(chosen[2:])
    matches = [
        Match(subject, a[subject][0].label, a[subject][0].payload, a[subject][1], b[subject][1])
        for subject in a
        if subject in b
    ]
    past = [time for number in earlier for time, _ in everything[number].values()]
    return matches, NoiseOfHosts(past)


def planted(match: Match, factor: float) -> Match:
    samples = tuple(sample * factor for sample in match.b.samples_us)
    return replace(match, b=replace(match.b, median_us=match.b.median_us * factor, samples_us=samples))


def floor_of(pair: Pair) -> float:
    assert pair.floor is not None
    return pair.floor


def test_the_runs_are_many_and_noisy() -> None:
    assert len(runs()) == 60
    largest = 0.0
    for subject in runs()[0]:
        times = [run[subject][1].median_us for run in runs() if subject in run]
        largest = max(largest, max(times) / min(times))
    assert largest > 2


@pytest.mark.parametrize("part", range(4))
def test_of_1000_comparisons_without_a_change_at_most_one_in_a_hundred_calls_one(part: int) -> None:
    source = random.Random(part)
    calls = 0
    for _ in range(250):
        matches, hosts = resampled(source, HISTORY)
        calls += any(pair.outcome in CHANGED for pair in decide(matches, hosts))
    assert calls <= 2


@pytest.mark.parametrize("part", range(2))
def test_planted_changes_of_twice_the_floor_are_found(part: int) -> None:
    source = random.Random(100 + part)
    found = total = 0
    for _ in range(40):
        matches, hosts = resampled(source, HISTORY)
        pairs = decide(matches, hosts)
        for position in source.sample(range(len(matches)), 3):
            size, is_slower = 1 + 2 * floor_of(pairs[position]), source.random() < 0.5
            changed = list(matches)
            changed[position] = planted(matches[position], size if is_slower else 1 / size)
            outcome = decide(changed, hosts)[position].outcome
            found += outcome == (Outcome.SLOWER if is_slower else Outcome.FASTER)
            total += 1
    assert found >= 0.95 * total


@pytest.mark.parametrize("history", [0, 5])
def test_a_short_history_does_not_mislead(history: int) -> None:
    """Of what the harness times; of a program whose runs differ 2.5 times, no samples of two runs can tell."""
    source = random.Random(7)
    calls = 0
    for _ in range(200):
        matches, hosts = resampled(source, history)
        timed = [match for match in matches if match.payload == "gemm_fp4"]
        calls += any(pair.outcome in CHANGED for pair in decide(timed, hosts))
    assert calls <= 2


def test_a_change_of_everything_is_found_although_a_few_are_not() -> None:
    """Twice the floor in half of a table: Holm's procedure loses none of it."""
    source = random.Random(9)
    matches, hosts = resampled(source, HISTORY)
    pairs = decide(matches, hosts)
    changed = [
        planted(m, 1 + 2 * floor_of(p)) if n % 2 else m
        for n, (m, p) in enumerate(zip(matches, pairs, strict=True))
    ]
    outcomes = [pair.outcome for pair in decide(changed, hosts)]
    assert outcomes[1::2].count(Outcome.SLOWER) >= 0.9 * len(outcomes[1::2])
    assert Outcome.SLOWER not in outcomes[::2]
