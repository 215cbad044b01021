"""The agent's look at a program's samples is the harness's."""

from __future__ import annotations

import random

import pytest

from orchestrator.agent import script_samples
from payloads.harness import stats, verdicts

RANDOM = random.Random(0)


@pytest.mark.parametrize("count", [1, 5, 6, 7, 12, 49, 50, 51, 200, 2000])
@pytest.mark.parametrize(
    "sample",
    [
        lambda i: RANDOM.gauss(100, 5),
        lambda i: round(RANDOM.gauss(100, 0.7)),
        lambda i: 100 + i / 10 + RANDOM.random(),
        lambda i: 7.0,
    ],
    ids=["noise", "a coarse clock", "a drift", "all one"],
)
def test_the_error_of_a_median_is_that_of_the_harness(count: int, sample: object) -> None:
    assert callable(sample)
    values = [float(sample(i)) for i in range(count)]
    error = script_samples.relative_error(values)
    assert error == stats.relative_error(values)
    for target in (0.0001, 0.005, 0.02):
        _, reasons = verdicts.judge(count, error, target, 0.0)
        assert script_samples.doubts(script_samples.timing_of(None, values), target) == reasons
