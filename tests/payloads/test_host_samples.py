"""How many calls a sample of the host's clock is of."""

import time

import numpy as np
import pytest
from harness import Call, ring, timers

X = np.arange(8.0)


class Clock:
    """A clock that only calls move, each by its time in µs."""

    def __init__(self, monkeypatch, times):
        self.now, self.calls, self.times = 0, 0, times
        monkeypatch.setattr(time, "perf_counter_ns", lambda: self.now)

    def run(self, inputs, out):
        self.now += round(self.times(self.calls) * 1000)
        self.calls += 1
        return inputs


@pytest.mark.parametrize(
    ("times", "calls"),
    [
        (lambda number: 0.5, 200),
        (lambda number: 30.0 if number == 0 else 0.5, 200),
        (lambda number: 20000.0 if number < 1 else 0.5, 200),
        (lambda number: 250.0, 1),
        (lambda number: 0.001, 10000),
    ],
    ids=["steady", "a slow first call", "a pause at the first", "long", "nothing"],
)
def test_a_sample_is_of_as_many_calls_as_last_100_us(monkeypatch, times, calls):
    clock = Clock(monkeypatch, times)
    call = Call(run=clock.run, inputs=X, reference=None, on_cpu=True)
    found = timers.HostTimer(call, ring.hot(call)).calls_per_sample
    assert calls * 0.9 <= found <= calls * 1.1


@pytest.mark.parametrize(("took_us", "at_most"), [(2e6, 1), (2e5, 2), (2e4, 3)])
def test_long_calls_are_not_made_often_to_find_that_out(monkeypatch, took_us, at_most):
    clock = Clock(monkeypatch, lambda number: took_us)
    call = Call(run=clock.run, inputs=X, reference=None, on_cpu=True)
    assert timers.HostTimer(call, ring.hot(call)).calls_per_sample == 1
    assert clock.calls <= at_most
