"""What may be said after two or a few runs of a user's own program, whose noise nobody knows.

A machine is played by numbers: runs that differ by 1%, one in ten of them leaps by 8%, and samples within half a per
cent or within twenty. Nothing of it is called a change, and what was changed by 30% in tight samples, or three times, is.
"""

from __future__ import annotations

import math
import random
import subprocess
from collections.abc import Callable, Sequence

import pytest

from orchestrator.archive import Archive, RunFolder
from orchestrator.archive.notes import annotate
from orchestrator.compare import Match, Outcome, Pair, PastTime, Subject, Timed
from orchestrator.compare.deciding import decide
from orchestrator.compare.floors import NoiseOfHosts
from orchestrator.model import Measurement

TIGHT, LOOSE = 0.005, 0.1
CASES = 10


class Machine:
    """Runs of a program with `CASES` cases, of which the samples lie within `width` of the run's time."""

    def __init__(self, seed: int, width: float = TIGHT, count: int = 30, leaps: float = 0.1) -> None:
        self._random = random.Random(seed)
        self._width, self._count, self._leaps, self._runs = width, count, leaps, 0

    def run(self, factor: float = 1.0) -> list[Timed]:
        self._runs += 1
        return [self._time(factor) for _ in range(CASES)]

    def _time(self, factor: float) -> Timed:
        leap = self._random.choice((-0.08, 0.08)) if self._random.random() < self._leaps else 0.0
        level = 16.08123 * factor * math.exp(self._random.gauss(0, 0.01) + leap)
        samples = sorted(
            level * (1 + self._random.uniform(-self._width, self._width)) for _ in range(self._count)
        )
        median = samples[len(samples) // 2]
        self._random.shuffle(samples)
        return Timed(f"r{self._runs:03d}", "local", "cpu-0", median, samples_us=tuple(samples))


def judged(earlier: Sequence[list[Timed]], a: list[Timed], b: list[Timed]) -> tuple[Pair, ...]:
    subjects = [Subject(f"c{number}", "", "bench", "CPU", None, "program") for number in range(CASES)]
    past = [
        PastTime(time.run_id, subject, time.host, time.device_uuid, time.median_us, payload="bench")
        for run in earlier
        for subject, time in zip(subjects, run, strict=True)
    ]
    matches = [Match(s, s.case_id, "bench", *sides) for s, *sides in zip(subjects, a, b, strict=True)]
    return decide(matches, NoiseOfHosts(past))


def outcomes(machine: Machine, earlier: int, factor: float) -> list[Outcome]:
    past = [machine.run() for _ in range(earlier)]
    return [pair.outcome for pair in judged(past, machine.run(), machine.run(factor))]


@pytest.mark.parametrize("earlier", [0, 2, 3, 5])
@pytest.mark.parametrize("width", [TIGHT, LOOSE])
def test_of_200_tables_in_which_nothing_changed_at_most_two_call_a_change(earlier: int, width: float) -> None:
    called = 0
    for seed in range(200):
        found = outcomes(Machine(seed, width), earlier, 1.0)
        called += bool({Outcome.SLOWER, Outcome.FASTER} & set(found))
    assert called <= 2


@pytest.mark.parametrize("earlier", [0, 2, 3, 5])
@pytest.mark.parametrize(("factor", "width"), [(3.0, TIGHT), (3.0, LOOSE), (1.5, TIGHT)])
def test_a_change_that_no_machine_makes_is_found(earlier: int, factor: float, width: float) -> None:
    for by, outcome in ((factor, Outcome.SLOWER), (1 / factor, Outcome.FASTER)):
        found = [o for seed in range(20) for o in outcomes(Machine(seed, width), earlier, by)]
        assert found.count(outcome) >= 0.95 * len(found)


@pytest.mark.parametrize("earlier", [0, 2, 3, 5])
@pytest.mark.parametrize(("leaps", "share"), [(0.0, 0.95), (0.1, 0.8)])
def test_a_third_more_is_found_but_where_a_run_leapt_against_it(
    earlier: int, leaps: float, share: float
) -> None:
    found = [o for seed in range(20) for o in outcomes(Machine(seed, leaps=leaps), earlier, 1.3)]
    assert found.count(Outcome.SLOWER) >= share * len(found)
    assert Outcome.FASTER not in found
    assert Outcome.SAME not in found


def test_a_run_of_a_slower_program_among_the_earlier_ones_does_not_hide_the_next() -> None:
    """Three times as long in one run of three, which was no freak of the machine."""
    machine = Machine(3, leaps=0.0)
    past = [machine.run(), machine.run(), machine.run(3.0)]
    pairs = judged(past, machine.run(), machine.run(1.5))
    assert {pair.outcome for pair in pairs} == {Outcome.SLOWER}
    assert all(pair.floor is not None and pair.floor < 0.4 for pair in pairs)
    freaky = [*past, machine.run(), machine.run(3.0), machine.run(), machine.run()]
    again = judged(freaky, machine.run(), machine.run(1.5))
    assert {pair.outcome for pair in again} == {Outcome.UNCLEAR}, "it does that now and then"


@pytest.mark.parametrize("cases", [1, 30, 300])
def test_no_floor_of_tight_samples_is_beyond_what_a_machine_does(cases: int) -> None:
    machine = Machine(1)
    a, b = (machine.run() * (cases // CASES + 1) for _ in range(2))
    subjects = [Subject(f"c{number}", "", "bench", "CPU", None, "program") for number in range(cases)]
    matches = [Match(s, s.case_id, "bench", *sides) for s, *sides in zip(subjects, a, b, strict=False)]
    floors = [pair.floor for pair in decide(matches, NoiseOfHosts([]))]
    assert all(floor is not None and 0.08 < floor < 0.30 for floor in floors)


def test_samples_too_few_to_tell_are_not_believed_to_be_tight() -> None:
    machine = Machine(1, count=8)
    (floor, *_) = [pair.floor for pair in judged([], machine.run(), machine.run())]
    assert floor is not None
    assert floor > 1


@pytest.mark.parametrize("width", [0.005, 0.0])
def test_a_program_that_takes_three_times_as_long_fails_the_build(
    archive: Archive,
    farbench: Callable[..., subprocess.CompletedProcess[str]],
    add_run: Callable[..., RunFolder],
    measured: Callable[..., Measurement],
    width: float,
) -> None:
    """Three runs of ten cases, of which the last is the baseline, and one of the changed program."""
    for number, time_us in enumerate([16.08, 16.1, 16.08, 48.24]):
        samples = [round(time_us * (1 + width * ((i * 7) % 5 - 2) / 2), 3) for i in range(30)]
        cases = [
            measured(f"c{case}", time_us, timer="program", cache=None, samples_us=samples)
            for case in range(CASES)
        ]
        add_run(f"20250101T00000{number}Z-000000", cases)
    annotate(archive, "20250101T000002Z-000000", add=["baseline"])
    done = farbench("compare", "baseline", "latest", "--threshold", "2")
    assert done.returncode == 5, done.stdout
    assert "10 compared: 10 slower" in done.stdout
    assert farbench("compare", "20250101T000000Z", "baseline", "--threshold", "2").returncode == 0
