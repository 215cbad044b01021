"""Timers of one prepared call: each yields samples, in microseconds a call.

| timer    | on  | a sample                                                                                         |
|----------|-----|--------------------------------------------------------------------------------------------------|
| `graph`  | GPU | one replay of a graph of many calls over the ring, between events, over the number of calls       |
| `events` | GPU | one call between events: cache evicted first (cold), launch latency hidden behind a blocking kernel |
| `cupti`  | GPU | one call, from its first kernel's start to its last one's end by the device's own time stamps     |
| `host`   | CPU | one call (or a few, when it is short) by the monotonic clock                                     |
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from typing import Any, Callable, List, Optional, Tuple

from . import cuda, environment, stats
from .declare import Call
from .gang import SOLO, Gang
from .kernel_trace import Span, Tracer
from .ring import Ring

# A sample should be long against the resolution of its clock and the gaps around it.
GRAPH_SAMPLE_US = 300.0
GRAPH_MIN_CALLS = 16
GRAPH_MAX_CALLS = 2048

# One replay must stay short against a turn: a ring that takes longer is replaced by a shorter one, whose every pass finds
# the cache evicted.
GRAPH_LONGEST_MS = 5.0

# A device that idles lowers its clocks, and needs this long under load to raise them again.
IDLE_MS = 5.0
WAKE_UP_US = 10000.0
HOST_SAMPLE_US = 100.0
HOST_ESTIMATES = 5
HOST_ESTIMATE_US, HOST_LONG_US = 5e4, 1e6

# Ranks start a sample some 100 µs apart; what it takes them to meet must stay small against it.
GANG_SAMPLE_US = 2000.0
MAX_SAMPLES_A_TURN = 500


class Timer(ABC):
    """What the rounds need of a timer."""

    name = ""
    calls_per_sample = 1

    @abstractmethod
    def take(self, budget_ms: float) -> List[float]:
        """Warm up, then take samples for about `budget_ms`; at least one, at most 500."""

    def took_ms(self, samples: List[float]) -> float:
        """Milliseconds that `samples` kept the device busy, with what each needs around it and without the warm-up."""
        return sum(samples) * self.calls_per_sample / 1000.0


class HostTimer(Timer):
    """Times calls that have done their work when they return."""

    name = "host"

    def __init__(self, call: Call, ring: Ring, gang: Gang = SOLO) -> None:
        self._call = call
        self._ring = ring
        self._gang = gang
        if call.renewed:
            self.calls_per_sample = (
                1 if ring.evict else len(ring.sets)
            )  # all restored, then all used: cold again
        elif not ring.evict:
            self.calls_per_sample = self._calls_that_last(
                HOST_SAMPLE_US if gang.size == 1 else GANG_SAMPLE_US
            )

    def _calls_that_last(self, wanted_us: float) -> int:
        """The fastest of a few samples decides: the first calls are often several times slower than all later ones, and any
        may meet a pause of the whole process. Long calls, of which a sample needs but one, are tried twice, or once."""
        calls, spent_us = 1, 0.0
        for number in range(HOST_ESTIMATES):
            took = self._sample(calls)
            spent_us += took * calls
            calls = self._gang.decide(max(calls, min(10000, math.ceil(wanted_us / max(took, 0.01)))))
            if self._gang.decide(spent_us > (HOST_ESTIMATE_US if number else HOST_LONG_US)):
                break
        return calls

    def _sample(self, calls: int) -> float:
        run, ring = self._call.run, self._ring
        ring.renew(self._call)
        if ring.evict:
            environment.evict_caches()
        sets = [ring.next() for _ in range(calls)]
        start = time.perf_counter_ns()
        for inputs, out in sets:
            run(inputs, out)
        return (time.perf_counter_ns() - start) / 1000.0 / calls

    def take(self, budget_ms: float) -> List[float]:
        """As `Timer.take`. The warm-up takes a tenth of the budget: thread pools of the backend before wind down in it."""
        decide = self._gang.decide
        warm_until = time.perf_counter_ns() + int(budget_ms * 1e5)
        while True:
            warm = self._sample(self.calls_per_sample)
            if decide(warm * self.calls_per_sample > budget_ms * 1000.0):
                # Longer than its turn: the turn is only good for one sample, and that one was warm soon enough.
                return [warm]
            if decide(time.perf_counter_ns() >= warm_until):
                break
        deadline = time.perf_counter_ns() + int(budget_ms * 1e6)
        samples = [self._sample(self.calls_per_sample)]
        while decide(time.perf_counter_ns() < deadline and len(samples) < MAX_SAMPLES_A_TURN):
            samples.append(self._sample(self.calls_per_sample))
        return samples


class GraphTimer(Timer):
    """Replays a CUDA graph of calls over the ring, which may get shorter. Raises what the capture raises."""

    name = "graph"

    def __init__(
        self,
        call: Call,
        ring: Ring,
        estimate_us: float,
        gang: Gang = SOLO,
        flush: Optional[Callable[[], None]] = None,
    ) -> None:
        """`estimate_us` must be the same on all ranks. `flush` evicts the L2 cache; needed for a cold ring."""
        self._call = call
        self._gang = gang
        if flush is not None and estimate_us * len(ring.sets) > GRAPH_LONGEST_MS * 1000.0:
            ring.shorten(int(GRAPH_LONGEST_MS * 1000.0 / estimate_us))
        self._ring = ring
        self._flush = flush if ring.evict else None
        self._sets = ring.sets
        sets = len(self._sets)
        wanted = math.ceil(GRAPH_SAMPLE_US / max(estimate_us, 0.5))
        if estimate_us < GRAPH_SAMPLE_US:
            wanted = max(wanted, GRAPH_MIN_CALLS)
        # A second pass would find a cache hot that needs evicting, and inputs used up that need restoring.
        self._passes = (
            1
            if ring.evict or call.renewed
            else max(1, min(math.ceil(wanted / sets), GRAPH_MAX_CALLS // sets))
        )
        self.calls_per_sample = self._passes * sets
        self._graph = cuda.Graph(self._work)
        if call.captured is not None:
            call.captured()
        self._sample_us = gang.decide(stats.median(cuda.time_each(self._graph.replay, 3, self._before)))

    def _before(self) -> None:
        self._ring.renew(self._call)
        if self._flush is not None:
            self._flush()

    def _work(self) -> List[Any]:
        run = self._call.run
        # Outputs that the library allocates are kept until the last call is captured, or one block would serve all.
        return [run(inputs, out) for _ in range(self._passes) for inputs, out in self._sets]

    @property
    def outputs(self) -> List[Any]:
        """The captured calls' outputs, in order; written anew by every replay."""
        return self._graph.outputs

    def replay(self) -> None:
        """One replay, finished on return."""
        self._graph.replay()
        cuda.synchronize()

    def take(self, budget_ms: float) -> List[float]:
        """As `Timer.take`; the first replays of a turn are the warm-up: 1 ms of them, or 10 ms after the device idled."""
        warm_us = WAKE_UP_US if self._gang.decide(cuda.idle_ms() > IDLE_MS) else WAKE_UP_US / 10
        warm = max(1, min(1000, math.ceil(warm_us / max(self._sample_us, 1.0))))
        count = max(2, min(MAX_SAMPLES_A_TURN, int(budget_ms * 1000.0 / max(self._sample_us, 1.0))))
        found = cuda.time_each(self._graph.replay, warm + count, self._before)
        return [us / self.calls_per_sample for us in found[warm:]]


class SingleCallTimer(Timer):
    """What times single eager calls has in common. With a cold ring, `flush` evicts the L2 cache before each."""

    def __init__(
        self,
        call: Call,
        ring: Ring,
        flush: Optional[Callable[[], None]],
        issue_us: float,
        gang: Gang = SOLO,
    ) -> None:
        self._call = call
        self._ring = ring
        self._flush = flush
        self._issue_us = issue_us
        self._gang = gang
        self._cost_us = 0.0

    def took_ms(self, samples: List[float]) -> float:
        """As `Timer.took_ms`."""
        return len(samples) * self._cost_us / 1000.0

    def _once(self) -> None:
        inputs, out = self._ring.next()
        self._call.run(inputs, out)


class EventsTimer(SingleCallTimer):
    """Times single eager calls by events."""

    name = "events"

    def _before(self) -> None:
        self._ring.renew(self._call, 1)
        # Twice what issuing the call and its events takes on the host: the call is queued before the block ends.
        cuda.block(2 * self._issue_us + 30.0)
        if self._flush is not None:
            self._flush()

    def take(self, budget_ms: float) -> List[float]:
        """As `Timer.take`."""
        warm = cuda.time_each(self._once, 3, self._before)
        self._cost_us = self._gang.decide(warm[-1] + 2 * self._issue_us + 100.0)
        count = max(2, min(MAX_SAMPLES_A_TURN, int(budget_ms * 1000.0 / self._cost_us)))
        return cuda.time_each(self._once, count, self._before)


class CuptiTimer(SingleCallTimer):
    """Times single eager calls by CUPTI's records of their kernels."""

    name = "cupti"

    def __init__(
        self,
        call: Call,
        ring: Ring,
        flush: Optional[Callable[[], None]],
        issue_us: float,
        estimate_us: float,
        tracer: Tracer,
        gang: Gang = SOLO,
    ) -> None:
        """`estimate_us` must be the same on all ranks."""
        super().__init__(call, ring, flush, issue_us, gang)
        self.tracer = tracer
        self._cost_us = estimate_us + 4 * issue_us + 100.0

    def _before(self) -> None:
        self._ring.renew(self._call, 1)
        if self._flush is not None:
            self._flush()

    def take(self, budget_ms: float) -> List[float]:
        """As `Timer.take`."""
        return [span.us for span in self.spans(budget_ms)]

    def spans(self, budget_ms: float) -> List[Span]:
        """As `take`, with what of each span was work."""
        cuda.time_each(self._once, 3, self._before)
        count = max(2, min(MAX_SAMPLES_A_TURN, int(budget_ms * 1000.0 / self._cost_us)))
        return self.tracer.spans(self._once, self._gang.decide(count), self._issue_us, self._before)


def back_to_back(
    call: Call,
    ring: Ring,
    flush: Optional[Callable[[], None]],
    issue_us: float,
    estimate_us: float,
    samples: int = 5,
) -> float:
    """Microseconds a call of eager calls over the ring, all queued behind a blocking kernel: the same work as a graph
    replay by another way, to hold it against. A sample is of at most 200 calls (the device's queue is not endless) and
    about 5 ms."""
    calls = max(1, min(200, max(GRAPH_MIN_CALLS, len(ring.sets)), int(5000.0 / max(estimate_us, 1.0))))
    if call.renewed:
        calls = min(calls, len(ring.sets))
    outputs: List[Any] = []

    def work() -> None:
        del outputs[:]
        for _ in range(calls):
            inputs, out = ring.next()
            outputs.append(call.run(inputs, out))

    def before() -> None:
        ring.renew(call)
        if ring.evict and flush is not None:
            flush()
        cuda.block(2 * issue_us * calls + 100.0)

    found = cuda.time_each(work, samples + 1, before)
    return stats.median(found[1:]) / calls


def host_cost(
    call: Call, ring: Ring, budget_us: float = 5000.0, loops: int = 5, gang: Gang = SOLO
) -> Tuple[float, float]:
    """(µs a call of a host loop that ends with a synchronisation, µs the host takes to issue a call): medians.

    The first is what an eager caller pays, the second how far the host must run ahead of the device. A loop is of 20
    calls, or fewer when they take longer than `budget_us`; the first one, whatever it finds, is the warm-up.
    """
    calls, totals, issues = 1, [], []
    for loop in range(loops + 1):
        ring.renew(call, calls)
        sets = [ring.next() for _ in range(calls)]
        cuda.synchronize()
        start = time.perf_counter_ns()
        for inputs, out in sets:
            call.run(inputs, out)
        issued = time.perf_counter_ns()
        cuda.synchronize()
        total = (time.perf_counter_ns() - start) / 1000.0
        if loop == 0:
            calls = gang.decide(max(1, min(20, int(budget_us / max(total, 1.0)))))
            calls = min(calls, len(ring.sets)) if call.renewed else calls
        else:
            totals.append(total / calls)
            issues.append((issued - start) / 1000.0 / calls)
        if loop and gang.decide(total > 5 * budget_us):
            break
    return stats.median(totals), stats.median(issues)
