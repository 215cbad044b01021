"""Ctrl-C while something is taken in that must not be broken off."""

from __future__ import annotations

import signal

import pytest

from orchestrator.run import interrupts
from orchestrator.run.interrupts import Interrupts


def test_ctrl_c_is_raised_where_it_may_be() -> None:
    with Interrupts() as held:
        held.check()
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            held.check()
        held.check()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_work_that_is_stuck_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "STUCK_S", -1.0)
    with Interrupts():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_handler_of_somebody_else_stays() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        with Interrupts() as held:
            signal.raise_signal(signal.SIGINT)
            held.check()
        assert heard == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)
