"""The values of an axis can be read off it, however far or near they lie."""

from __future__ import annotations

import pytest

from orchestrator.report.ticks import log_ticks


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (1, 1000, [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]),
        (0.9, 11e4, [1, 10, 100, 1000, 10000, 100000]),
        (8.0, 30.0, [8, 9, 10, 15, 20, 30]),
        (8.48, 9.7, [8.5, 9, 9.5]),
        (10.7, 12.7, [11, 11.5, 12, 12.5]),
        (383, 422, [390, 400, 410, 420]),
        (0.00012, 0.00013, [0.000122, 0.000124, 0.000126, 0.000128, 0.00013]),
        (12, 95, [20, 40, 60, 80]),
    ],
)
def test_ticks_are_round_and_never_too_few(low: float, high: float, ticks: list[float]) -> None:
    assert log_ticks(low, high) == pytest.approx(ticks)


def test_an_axis_without_extent_has_its_value() -> None:
    assert log_ticks(8.0, 8.0) == [8.0]


def test_any_extent_has_ticks_inside_it_that_are_all_different() -> None:
    for power in range(-6, 9):
        for share in (1.05, 1.1, 1.3, 1.9, 2.6, 4.0, 7.0, 60.0, 2e3, 1e6):
            low = 1.37 * 10.0**power
            ticks = log_ticks(low, low * share)
            assert 3 <= len(ticks) <= 12, (low, share, ticks)
            assert all(low <= tick <= low * share for tick in ticks)
            assert len({f"{tick:.6g}" for tick in ticks}) == len(ticks)
