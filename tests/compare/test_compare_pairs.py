"""Which measurements are compared, what is left out and why, and what may be said of a pair."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.compare import Outcome, Pair, PastTime, compare_measurements
from orchestrator.compare.pairing import subject_of
from orchestrator.model import Measurement, Timing

Measured = Callable[..., Measurement]


@pytest.fixture
def past(measured: Measured) -> Callable[..., list[PastTime]]:
    """Earlier runs of c1 with these times."""

    def make(times_us: list[float], **changes: Any) -> list[PastTime]:
        template = measured("c1", 1.0, **changes)
        return [
            PastTime(
                run_id=f"p{number:03d}",
                subject=subject_of(template),
                host=template.host,
                device_uuid=template.device.uuid if template.device else "",
                median_us=time_us,
                is_valid=template.verdict == "valid",
                reasons=tuple(template.reasons),
                payload=template.payload,
            )
            for number, time_us in enumerate(times_us)
        ]

    return make


QUIET = [100.0, 100.2, 99.9, 100.1, 99.8, 100.0, 100.3, 99.9, 100.1, 100.0] * 3


def only(a: Measurement, b: Measurement, past: list[PastTime] | None = None, **options: Any) -> Pair:
    found = compare_measurements([a], [b], past=past or [], **options)
    assert not found.left_out
    (pair,) = found.pairs
    return pair


def test_a_large_change_is_called_in_either_direction(measured: Measured) -> None:
    slower = only(measured("c1", 100), measured("c1", 130))
    assert (slower.outcome, round(slower.change, 6)) == (Outcome.SLOWER, 0.3)
    assert slower.low is not None
    assert slower.high is not None
    assert 0.25 < slower.low < 0.3 < slower.high < 0.36
    assert only(measured("c1", 130), measured("c1", 100)).outcome == Outcome.FASTER


def test_without_a_change_it_is_the_same(measured: Measured, past: Callable[..., list[PastTime]]) -> None:
    assert only(measured("c1", 100), measured("c1", 100.1)).outcome == Outcome.SAME
    assert only(measured("c1", 100), measured("c1", 100.1), past(QUIET)).outcome == Outcome.SAME


def test_history_brings_the_floor_down(measured: Measured, past: Callable[..., list[PastTime]]) -> None:
    a, b = measured("c1", 100), measured("c1", 102.5)
    alone, known = only(a, b), only(a, b, past(QUIET))
    assert alone.outcome == Outcome.SAME
    assert (known.outcome, known.noise, known.noise_runs) == (Outcome.SLOWER, "history", 30)
    assert known.floor is not None
    assert alone.floor is not None
    assert known.floor < 0.02 < alone.floor


def test_a_change_of_the_floor_is_called_and_one_below_is_not(
    measured: Measured, past: Callable[..., list[PastTime]]
) -> None:
    a = measured("c1", 100)
    floor = only(a, measured("c1", 100), past(QUIET)).floor
    assert floor is not None
    assert only(a, measured("c1", 100 * (1 + 1.05 * floor)), past(QUIET)).outcome == Outcome.SLOWER
    assert only(a, measured("c1", 100 / (1 + 1.05 * floor)), past(QUIET)).outcome == Outcome.FASTER
    assert only(a, measured("c1", 100 * (1 + 0.95 * floor)), past(QUIET)).outcome == Outcome.UNCLEAR


def test_freak_runs_in_the_history_raise_the_floor_of_all_that_was_measured_there(
    measured: Measured, past: Callable[..., list[PastTime]]
) -> None:
    times = list(QUIET)
    times[5], times[17], times[25] = 120.0, 125.0, 118.0
    pair = only(measured("c1", 100), measured("c1", 115), past(times))
    assert pair.outcome == Outcome.UNCLEAR
    assert pair.freaks
    other = past(times)
    elsewhere = [replace(t, subject=replace(t.subject, case_id="other")) for t in other]
    assert only(measured("c1", 100), measured("c1", 115), elsewhere).noise == "host"
    assert only(measured("c1", 100), measured("c1", 115), elsewhere).freaks


def test_a_change_long_ago_is_no_noise(measured: Measured, past: Callable[..., list[PastTime]]) -> None:
    with_a_step = [150 * t / 100 for t in QUIET[:15]] + QUIET[:15]
    pair = only(measured("c1", 100), measured("c1", 104), past(with_a_step))
    assert pair.outcome == Outcome.SLOWER


def test_what_telemetry_explains_is_no_noise_and_no_change(
    measured: Measured, past: Callable[..., list[PastTime]]
) -> None:
    throttled = {"verdict": "suspect", "reasons": ["throttled"]}
    hot = past([120.0, 130.0, 125.0], **throttled)
    assert only(measured("c1", 100), measured("c1", 104), [*hot, *past(QUIET)]).outcome == Outcome.SLOWER
    pair = only(measured("c1", 100), measured("c1", 130, **throttled), past(QUIET))
    assert (pair.outcome, pair.why) == (Outcome.UNCLEAR, "the slower side was throttled")
    assert pair.notes == ("B suspect: throttled",)


@pytest.mark.parametrize("samples", [None, [], [100.0], [100.0] * 5])
def test_one_sample_and_no_history_is_unclear(measured: Measured, samples: list[float] | None) -> None:
    pair = only(measured("c1", 100, samples_us=samples), measured("c1", 500, samples_us=samples))
    assert (pair.outcome, pair.floor, pair.low) == (Outcome.UNCLEAR, None, None)
    assert "no earlier runs" in pair.why


def test_one_sample_with_a_history_can_be_judged(
    measured: Measured, past: Callable[..., list[PastTime]]
) -> None:
    pair = only(measured("c1", 100, samples_us=[100.0]), measured("c1", 110, samples_us=[110.0]), past(QUIET))
    assert pair.outcome == Outcome.SLOWER


@pytest.mark.parametrize(("now", "outcome"), [(13.0, Outcome.UNCLEAR), (15.0, Outcome.SLOWER)])
def test_one_tick_of_a_coarse_clock_is_no_change(
    measured: Measured, past: Callable[..., list[PastTime]], now: float, outcome: Outcome
) -> None:
    """A program that prints whole microseconds: twenty runs that agree do not prove that it takes 12.0."""
    before = past([12.0] * 20)
    assert (
        only(measured("c1", 12, samples_us=[12.0]), measured("c1", now, samples_us=[now]), before).outcome
        == outcome
    )
    many = only(
        measured("c1", 12, samples_us=[12.0] * 30), measured("c1", now, samples_us=[now] * 30), before
    )
    assert many.outcome == outcome


def test_six_samples_are_not_believed_as_sixty_are(measured: Measured) -> None:
    source = random.Random(1)
    samples = [100 * math.exp(source.gauss(0, 0.05)) for _ in range(60)]
    floors = [
        only(
            *(measured("c1", 100, samples_us=[s * by for s in samples[:count]]) for by in (1.0, 1.0003))
        ).floor
        for count in (6, 60)
    ]
    assert floors[0] is not None
    assert floors[1] is not None
    assert floors[0] > 2 * floors[1]


def test_a_noisy_run_widens_the_interval(measured: Measured, past: Callable[..., list[PastTime]]) -> None:
    rounds = [100 * f for f in (1.0, 1.4, 1.0, 1.5, 0.9, 1.6, 1.0, 1.3) for _ in range(10)]
    pair = only(measured("c1", 100), measured("c1", 112, samples_us=rounds), past(QUIET))
    assert pair.outcome == Outcome.UNCLEAR


def test_a_threshold_is_the_least_change_of_interest(
    measured: Measured, past: Callable[..., list[PastTime]]
) -> None:
    a, b = measured("c1", 100), measured("c1", 104)
    assert only(a, b, past(QUIET)).outcome == Outcome.SLOWER
    assert only(a, b, past(QUIET), threshold=0.10).outcome == Outcome.SAME
    assert only(a, measured("c1", 112), past(QUIET), threshold=0.10).outcome == Outcome.SLOWER
    assert only(a, a, past(QUIET), threshold=0.001).outcome == Outcome.UNCLEAR


def test_more_comparisons_need_more_evidence(measured: Measured) -> None:
    one = compare_measurements([measured("c1", 100)], [measured("c1", 100)]).pairs[0]
    many = [measured(f"c{n}", 100) for n in range(200)]
    of_many = compare_measurements(many, many).pairs[0]
    assert one.floor is not None
    assert of_many.floor is not None
    assert of_many.floor > 1.3 * one.floor


def test_times_on_other_devices_need_more_evidence(
    measured: Measured, past: Callable[..., list[PastTime]]
) -> None:
    other = {"uuid": "GPU-2", "index": 1, "name": "H200", "compute_capability": "9.0", "kind": "gpu"}
    pair = only(measured("c1", 100), measured("c1", 103, device=other), past(QUIET))
    assert (pair.outcome, pair.notes) == (Outcome.UNCLEAR, ("another device of the host",))
    elsewhere = only(measured("c1", 100), measured("c1", 100, host="gpu2", device=other))
    assert elsewhere.notes == ("host gpu1 → gpu2",)


def test_clocks_that_differ_are_told_and_leave_nothing_out(measured: Measured) -> None:
    a = measured("c1", 100, telemetry={"sm_clock_mhz": 1980})
    b = measured("c1", 130, telemetry={"sm_clock_mhz": 1500})
    pair = only(a, b)
    assert (pair.outcome, pair.notes) == (Outcome.SLOWER, ("SM clock 1980 → 1500 MHz",))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"timer": "events"}, "timer graph in A, events in B"),
        ({"cache": "hot"}, "cache cold in A, hot in B"),
        ({"device": {"uuid": "x", "index": 0, "name": "B200"}}, "device H200 in A, B200 in B"),
        ({"case_id": "c9"}, "B: not measured"),
        ({"backend": "sgl_kernel"}, "B: not measured"),
        ({"row": {"m": 3}}, "B: not measured"),
        ({"verdict": "invalid", "reasons": ["noisy"]}, "B: invalid: noisy"),
    ],
)
def test_what_is_not_of_the_same_thing_is_left_out_with_why(
    measured: Measured, change: dict[str, Any], why: str
) -> None:
    found = compare_measurements(
        [measured("c1", 100)], [measured(**{"case_id": "c1", "median_us": 100, **change})]
    )
    assert not found.pairs
    assert why in [missing.why for missing in found.left_out]


def test_failures_are_left_out_with_their_reasons(measured: Measured, failed: Measured) -> None:
    a = [measured("c1"), failed("c2", "oom"), measured("c3"), measured("c4")]
    b = [failed("c1", "crashed", "signal 11\nmore"), measured("c2"), measured("c4"), failed("c5", "lost")]
    found = compare_measurements(a, b)
    assert [pair.match.subject.case_id for pair in found.pairs] == ["c4"]
    assert [(m.case_id, m.a, m.b, m.why) for m in found.left_out] == [
        ("c1", "100 µs", "crashed: signal 11", "B: crashed: signal 11"),
        ("c2", "oom", "100 µs", "A: oom"),
        ("c5", "not measured", "lost", "A: not measured; B: lost"),
        ("c3", "100 µs", "not measured", "B: not measured"),
    ]


@pytest.mark.parametrize(
    ("median_us", "word"),
    [
        (0.0, "its time is zero"),
        (-1.0, "its time is negative"),
        (float("nan"), "its time is not a number"),
        (float("inf"), "its time is not finite"),
    ],
)
def test_numbers_that_are_no_times_give_words(measured: Measured, median_us: float, word: str) -> None:
    timing = Timing.model_construct(timer="graph", cache="cold", median_us=median_us, samples=40)
    wrong = measured("c1").model_copy(update={"timing": timing})
    found = compare_measurements([wrong], [measured("c1")])
    assert [missing.why for missing in found.left_out] == [f"A: {word}"]
    assert not found.pairs


def test_an_ok_measurement_without_a_time_is_left_out(measured: Measured) -> None:
    found = compare_measurements([measured("c1", timing=None, samples_us=None)], [measured("c1")])
    assert found.left_out[0].why == "A: ok, but without a time"


def test_samples_of_zero_are_passed_over(measured: Measured) -> None:
    samples = [0.0] * 40
    pair = only(measured("c1", 100, samples_us=samples), measured("c1", 130, samples_us=samples))
    assert pair.outcome == Outcome.UNCLEAR


def test_rows_of_a_program_are_told_apart(measured: Measured) -> None:
    a = [measured("c1", 100, row={"m": m, "k": 1}) for m in (1, 2)]
    b = [measured("c1", 200, row={"k": 1, "m": m}) for m in (2, 1)]
    found = compare_measurements(a, b)
    assert [pair.match.subject.row for pair in found.pairs] == ['{"k": 1, "m": 2}', '{"k": 1, "m": 1}']


def test_each_device_is_compared_with_itself(measured: Measured) -> None:
    def on(index: int, time_us: float, host: str = "gpu1") -> Measurement:
        return measured(
            "c1", time_us, host=host, device={"uuid": f"GPU-{host}-{index}", "index": index, "name": "H200"}
        )

    a = [on(0, 100), on(1, 110), on(0, 120, "gpu2")]
    b = [on(0, 120, "gpu2"), on(1, 110), on(0, 100), on(2, 100)]
    found = compare_measurements(a, b)
    assert sorted((p.match.a.device_uuid, p.match.b.device_uuid) for p in found.pairs) == [
        ("GPU-gpu1-0", "GPU-gpu1-0"), ("GPU-gpu1-1", "GPU-gpu1-1"), ("GPU-gpu2-0", "GPU-gpu2-0"),
    ]  # fmt: skip
    assert [m.why for m in found.left_out] == ["A: not measured"]


def test_the_same_input_gives_the_same_answer_whatever_else_is_compared(measured: Measured) -> None:
    a, b = measured("c1", 100), measured("c1", 101)
    first = compare_measurements([a], [b]).pairs[0]
    again = compare_measurements([a, measured("c2", 5)], [b, measured("c2", 7)]).pairs[0]
    assert (first.low, first.high, first.p_value) == (again.low, again.high, again.p_value)


def test_what_two_devices_did_together_is_not_held_against_what_eight_did(measured: Measured) -> None:
    two, eight = (measured("c1", 100.0, extra={"ranks": ranks}) for ranks in (2, 8))
    found = compare_measurements([two], [eight], past=[])
    assert found.pairs == ()
    assert [left.why for left in found.left_out] == ["device 2 × H200 in A, 8 × H200 in B"]
    assert only(two, two).outcome == Outcome.SAME
