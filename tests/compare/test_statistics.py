from __future__ import annotations

import math
import random

import numpy as np
import pytest

from orchestrator.statistics import (
    Noise,
    Spread,
    holm,
    median_draws,
    moderate,
    resolution,
    segments,
    spread,
    t_quantile,
    t_tail,
    typical_scale,
    worst_case,
)


@pytest.mark.parametrize(
    ("t", "df", "tail"),
    [  # tables of Student's t; df 1 and 2 in closed form
        (12.706, 1, 0.025), (2.228, 10, 0.025), (2.750, 30, 0.005), (3.090, math.inf, 0.001), (1.886, 2, 0.10),
        (5.893, 6, 0.00053), (1.0, 1, 0.25), (0.0, 5, 0.5),
    ],
)  # fmt: skip
def test_tails_of_t_agree_with_the_tables(t: float, df: float, tail: float) -> None:
    assert t_tail(t, df) == pytest.approx(tail, rel=2e-3)
    assert t_tail(-t, df) == t_tail(t, df)


@pytest.mark.parametrize("df", [1, 2, 3.5, 10, 200, math.inf])
@pytest.mark.parametrize("tail", [0.4, 0.025, 1e-4, 1e-9])
def test_a_quantile_is_where_the_tail_is(df: float, tail: float) -> None:
    assert t_tail(t_quantile(tail, df), df) == pytest.approx(tail, rel=1e-4)


def test_tails_of_two_degrees_of_freedom_are_exact_far_out() -> None:
    t = 1e4
    assert t_tail(t, 2) == pytest.approx(0.5 * (1 - t / math.sqrt(2 + t * t)), rel=1e-6)
    assert t_tail(math.inf, 3) == 0


def test_holm_steps_down_until_the_first_that_fails() -> None:
    # Holm's own order: 0.001 < 0.05/4, 0.01 < 0.05/3, 0.03 fails 0.05/2, and with it 0.04.
    decisions = holm([0.03, 0.001, 0.04, 0.01], 0.05)
    assert [d.rejected for d in decisions] == [False, True, False, True]
    assert [d.level for d in decisions] == pytest.approx([0.025, 0.0125, 0.025, 0.05 / 3])
    assert holm([], 0.05) == []


def draws(samples: list[float], count: int, stream: int = 0) -> np.ndarray:
    found = median_draws(samples, count, stream)
    assert found is not None
    return found.deviations


def test_samples_in_stretches_vary_as_their_stretches_do() -> None:
    source = random.Random(1)
    independent = [100 * math.exp(source.gauss(0, 0.05)) for _ in range(400)]
    rounds = [100 * math.exp(source.gauss(0, 0.05)) for _ in range(8)]
    clustered = [r * math.exp(source.gauss(0, 0.001)) for r in rounds for _ in range(50)]
    of_independent, of_clustered = (np.std(draws(s, 4000)) for s in (independent, clustered))
    assert of_independent == pytest.approx(0.05 * 1.25 / math.sqrt(400), rel=0.6)
    assert of_clustered == pytest.approx(0.05 / math.sqrt(8), rel=0.6), "eight witnesses, not four hundred"


def test_one_spoilt_stretch_does_not_make_the_whole_run_uncertain() -> None:
    samples = [100.0 + i % 3 for i in range(80)]
    samples[10:20] = [1000.0] * 10
    found = draws(samples, 2000)
    assert abs(found.mean()) < 1e-9
    assert np.quantile(found, 0.2) > -0.5


@pytest.mark.parametrize("samples", [[], [1.0] * 5, [0.0, -1.0] * 20])
def test_a_few_samples_say_nothing(samples: list[float]) -> None:
    assert median_draws(samples, 100) is None


def test_what_few_stretches_show_is_not_well_known() -> None:
    known = [median_draws([100.0 + i % 7 for i in range(count)], 100) for count in (6, 12, 24, 400)]
    assert [found and found.df for found in known] == [2, 5, 7, 7]


@pytest.mark.parametrize(
    ("times", "step"),
    [
        ([12.0, 13.0, 12.0], 1.0),
        ([5.0, 5.5], 0.5),
        ([5.024, 5.536, 6.048], 0.032),
        ([10.0, 20.0], 1.0),
        ([12.8371923, 13.0], 0.0),
        ([12.84, 12.87, 13.0], 0.01),
        ([0.00001, 5.0], 0.0),
        ([1e9, 1000000000.0001], 0.0001),
        ([1e-4, 2e-4], 0.00001),
        ([1e308, 1.0], 0.0),
        ([], 0.0),
    ],
)
def test_the_step_of_a_clock(times: list[float], step: float) -> None:
    assert resolution(times) == pytest.approx(step)


def test_equal_samples_give_equal_draws_and_other_streams_other_ones() -> None:
    samples = [100.0 + (i * 7) % 11 for i in range(64)]
    first, again, other = (draws(samples, 50, stream) for stream in (0, 0, 1))
    assert (first == again).all()
    assert (first != other).any()


def noisy(levels: list[float], seed: int = 0, sigma: float = 0.01) -> list[float]:
    source = random.Random(seed)
    return [level + source.gauss(0, sigma) for level in levels]


def test_a_lasting_change_is_found_where_it_happened() -> None:
    assert segments(noisy([0.0] * 20 + [0.1] * 12)) == [slice(0, 20), slice(20, 32)]
    assert segments(noisy([0.0] * 20 + [-0.1] * 3)) == [slice(0, 20), slice(20, 23)]


def test_a_freak_run_is_no_change() -> None:
    values = noisy([0.0] * 30)
    values[12] += 0.5
    values[13] += 0.4
    assert segments(values) == [slice(0, 30)]


def test_changes_are_seldom_found_where_there_are_none() -> None:
    found = sum(len(segments(noisy([0.0] * n, seed))) > 1 for seed in range(200) for n in (8, 30))
    assert found <= 8, "2% of 400 series"


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0, 3.0, 4.0, 5.0]])
def test_short_series_are_one_stretch(values: list[float]) -> None:
    assert segments(values) == ([slice(0, len(values))] if values else [])


def test_a_long_series_is_cut_among_its_newest_values() -> None:
    values = noisy([0.0] * 480 + [0.1] * 20)
    assert segments(values) == [slice(0, 480), slice(480, 500)]


def test_changes_of_level_are_not_noise_and_devices_are_not_mixed() -> None:
    one = spread([noisy([0.0] * 20 + [0.3] * 20, 1), noisy([0.5] * 20, 2)])
    assert one is not None
    assert one.runs == 60
    assert one.scale == pytest.approx(0.01, rel=0.35)


def test_freaks_do_not_move_the_scale_but_are_kept() -> None:
    values = noisy([0.0] * 40)
    values[7] = 0.4
    one = spread([values])
    assert one is not None
    assert one.scale == pytest.approx(0.01, rel=0.35)
    assert max(one.deviations) == pytest.approx(0.4, abs=0.02)


def test_single_values_have_no_spread() -> None:
    assert spread([[1.0], [2.0]]) is None
    assert spread([]) is None


def test_three_runs_that_agree_are_not_believed_and_fifty_are() -> None:
    prior = Noise(0.01**2, 10)
    few = moderate(Spread(0.0, (0.0,) * 3), prior)
    many = moderate(Spread(0.001, (0.001,) * 50), prior)
    assert math.sqrt(few.variance) == pytest.approx(0.01 * math.sqrt(4 / 7))
    assert math.sqrt(many.variance) < 0.003
    assert many.df > few.df
    assert moderate(None, prior) == prior


def test_the_typical_scale_is_of_what_is_known_well_enough() -> None:
    assert typical_scale([Spread(0.5, (0.1,) * 3)]) is None
    assert (
        typical_scale([Spread(0.5, (0.1,) * 3), Spread(0.01, (0.0,) * 9), Spread(0.02, (0.0,) * 9)]) == 0.015
    )


def test_the_next_freak_may_be_larger_the_fewer_were_seen() -> None:
    assert worst_case([]) == 0
    assert worst_case([-0.2]) == pytest.approx(0.4)
    assert worst_case([0.1, -0.2, 0.15, 0.1]) == pytest.approx(0.3)
