"""Interleaved rounds: A B C, C B A, A B C …, so that a drift of the device meets every backend alike.

On a GPU a turn is a short burst after a rest. Under steady load a GPU reaches its power limit within tens of milliseconds
and then lowers its clocks: on an H200 an FP8 product of 8192³ takes 742 µs in bursts of 8 ms with rests of 10 ms, turn
after turn within 0.5%, and 850 to 930 µs, drifting, without rests. In bursts every backend meets the same full clocks.
"""

from __future__ import annotations

import gc
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Callable, ContextManager, List, Optional, Sequence

from . import cuda, stats
from .gang import SOLO, Gang
from .timers import Timer
from .trial import Settings

BURST_MS = 8.0
REST_MS = 10.0
REST_TO_BURST = 1.25
LONGEST_REST_MS = 250.0
ON_GPU = frozenset(("graph", "events", "cupti"))


@dataclass
class Contender:
    """A backend in the rounds: its timer, the process's settings in its turns, and the samples of each round in
    microseconds."""

    name: str
    timer: Timer
    settings: Callable[[], ContextManager[None]] = nullcontext
    rounds: List[List[float]] = field(default_factory=list)
    timed_ms: float = 0.0
    spent_ms: float = 0.0
    done: bool = False

    @property
    def on_gpu(self) -> bool:
        """Whether its turns heat a GPU."""
        return self.timer.name in ON_GPU

    @property
    def samples(self) -> List[float]:
        """All samples in the order they were taken."""
        return [sample for samples in self.rounds for sample in samples]

    @property
    def round_medians(self) -> List[float]:
        """The median of each round."""
        return [stats.median(samples) for samples in self.rounds if samples]

    def take(self, budget_ms: float) -> None:
        """One turn."""
        if self.on_gpu:
            cuda.stay_settled()
        start = time.perf_counter()
        with self.settings():
            samples = self.timer.take(budget_ms)
        self.spent_ms += (time.perf_counter() - start) * 1000.0
        if not stats.median(samples) > 0:
            raise RuntimeError(
                "timer {} measured {:g} µs a call: nothing that it could see was done".format(
                    self.timer.name, stats.median(samples)
                )
            )
        self.timed_ms += self.timer.took_ms(samples)
        self.rounds.append(samples)

    def has_enough(self, settings: Settings) -> bool:
        """Whether the sweep's precision is reached, or its time is used up."""
        if self.spent_ms >= settings.max_time_ms:
            return True
        if len(self.rounds) < settings.rounds or self.timed_ms < settings.min_time_ms:
            return False
        error = stats.relative_error(self.samples)
        return error is not None and error <= settings.target_rel_error


def run(
    contenders: Sequence[Contender],
    settings: Settings,
    announce: Callable[[Contender], None],
    finished: Callable[[Contender], Optional[bool]],
    failed: Callable[[Contender, Exception], bool],
    gang: Gang = SOLO,
) -> None:
    """Take turns until every contender has enough. `announce` before each turn, `finished` as each one ends.

    `failed` is told of an exception in a turn, and says whether the others can go on; so may `finished`, by False.
    """
    gc.collect()
    gc.disable()  # a collection inside a sample would be measured
    try:
        _take_turns(contenders, settings, announce, finished, failed, gang)
    finally:
        gc.enable()


def _take_turns(
    contenders: Sequence[Contender],
    settings: Settings,
    announce: Callable[[Contender], None],
    finished: Callable[[Contender], Optional[bool]],
    failed: Callable[[Contender, Exception], bool],
    gang: Gang,
) -> None:
    turn_ms = settings.min_time_ms / max(1, settings.rounds)
    number = 0
    rest = _Rest()
    while True:
        active = [contender for contender in contenders if not contender.done]
        if not active:
            return
        for contender in active if number % 2 == 0 else reversed(active):
            announce(contender)
            budget_ms = max(0.0, min(turn_ms, settings.max_time_ms - contender.spent_ms))
            if contender.on_gpu:
                rest.take()
                budget_ms = min(budget_ms, BURST_MS)
            error = _turn(contender, budget_ms, gang)
            rest.earned()
            if error is not None:
                contender.done = True
                if not failed(contender, error):
                    return
            elif gang.decide(contender.has_enough(settings)):
                contender.done = True
                if finished(contender) is False:
                    return
        number += 1
        if number >= settings.rounds:
            # More rounds only come for precision, and each is longer: the interval shrinks with the root of the time.
            turn_ms *= 1.5


class _Rest:
    """The pause before a burst: longer after a long one, so that the device is at work less than half of the time."""

    def __init__(self) -> None:
        self._since = time.perf_counter()
        self._due_s = LONGEST_REST_MS / 5000.0  # the checks before the first turn were load, too

    def take(self) -> None:
        """Wait until the rest is over."""
        left_s = self._since + self._due_s - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)
        self._since = time.perf_counter()

    def earned(self) -> None:
        """A turn is over; the next rest begins."""
        now = time.perf_counter()
        burst_ms = (now - self._since) * 1000.0
        self._due_s = min(LONGEST_REST_MS, max(REST_MS, REST_TO_BURST * burst_ms)) / 1000.0
        self._since = now


def _turn(contender: Contender, budget_ms: float, gang: Gang) -> Optional[Exception]:
    try:
        gang.together(lambda: contender.take(gang.decide(budget_ms)))
    except Exception as error:  # noqa: BLE001 - the boundary to a library's code: its failure is this backend's outcome
        return error
    return None
