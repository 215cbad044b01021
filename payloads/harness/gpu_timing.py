"""How a correct call is timed on a GPU: by a graph if it does the work, which another timer must confirm; else by events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Set

from . import accuracy, cuda, filling, kernel_trace, ring, stats, timers, verdicts

if TYPE_CHECKING:
    from .trial import Settings, Trial


def prepare(
    trial: Trial,
    settings: Settings,
    asked: Mapping[str, Any],
    crossed: Set[Any],
    rotation: ring.Ring,
) -> None:
    """Give the trial its timer. `crossed` remembers which (backend, shape class) were cross-checked."""
    call, gang = trial.call, trial.gang
    cuda.settle(trial.device.torch_device)
    trial.extra.update(_allocations(trial, rotation))
    trial.host_us, issue_us = gang.decide(timers.host_cost(call, rotation, gang=gang))
    cuda.stay_settled()
    flush = cuda.L2Flush(trial.device.torch_device) if rotation.cache == "cold" else None
    by_events = timers.EventsTimer(call, rotation, flush, issue_us, gang)
    first = by_events.take(1.0)
    # Ranks meet late in some of so few samples.
    estimate_us = gang.decide(stats.median(first) if gang.size == 1 else min(first))
    trial.timer = by_events
    # After its last launch the host waited for so much of each call's work, whichever stream it is on.
    waited_us = trial.host_us - issue_us
    if settings.timer == "events":
        _confirm_events(trial, estimate_us, {"host": waited_us})
        return
    if settings.timer == "cupti" and _by_cupti(trial, settings, rotation, flush, issue_us, estimate_us):
        return
    if settings.timer == "host":
        trial.notes.append("timer host is not used for GPU work: measured by graph")
    try:
        by_graph = gang.together(lambda: timers.GraphTimer(call, rotation, estimate_us, gang, flush))
    except Exception as error:  # noqa: BLE001 - whatever a library does not stand in a capture, events can still time it
        trial.device.synchronize()  # raises if the failed capture broke more than itself
        trial.notes.append(
            "not captured in a graph ({}): measured by events".format(str(error).strip().split("\n")[0])
        )
        _confirm_events(trial, estimate_us, {"host": waited_us})
        return
    objection = gang.first_objection(_replay_objection(trial, by_graph, rotation, asked))
    if objection:
        trial.notes.append("{}: measured by events".format(objection))
        seen = _cupti_witness(trial, rotation, flush, issue_us, estimate_us)
        _confirm_events(trial, estimate_us, {"host": waited_us} if seen is None else {"cupti": seen.us})
        return
    trial.timer = by_graph
    shape_class = (
        trial.backend.name,
        call.precision,
        len(rotation.sets).bit_length(),
        int(estimate_us).bit_length(),
    )
    if shape_class not in crossed and call.captured is None:
        crossed.add(shape_class)
        _cross_check(trial, by_graph, rotation, flush, issue_us, estimate_us)
        if trial.disagreement:
            crossed.discard(shape_class)  # until they agree, every measurement of the class is checked
    if rotation.cache == "cold":
        hot = timers.GraphTimer(call, ring.hot(call), estimate_us, gang)
        cuda.stay_settled()
        trial.hot_median_us = stats.median(hot.take(settings.min_time_ms / 10))


def _by_cupti(
    trial: Trial,
    settings: Settings,
    rotation: ring.Ring,
    flush: Optional[cuda.L2Flush],
    issue_us: float,
    estimate_us: float,
) -> bool:
    """Time by CUPTI, if every rank can and a first turn shows every call's kernels; else say why not."""
    call, gang = trial.call, trial.gang
    objection, timer = None, None
    try:
        timer = timers.CuptiTimer(call, rotation, flush, issue_us, estimate_us, kernel_trace.tracer(), gang)
    except kernel_trace.Unusable as error:
        objection = str(error)
    objection = gang.first_objection(objection)
    if objection is None and timer is not None:
        objection = gang.first_objection(_first_turn_objection(trial, timer))
    if objection is not None or timer is None:
        trial.notes.append("timer cupti cannot be used ({}): measured by graph".format(objection))
        return False
    trial.timer = timer
    if rotation.cache == "cold":
        hot = timers.CuptiTimer(call, ring.hot(call), None, issue_us, estimate_us, timer.tracer, gang)
        trial.hot_median_us = stats.median(hot.take(settings.min_time_ms / 10))
    return True


def _first_turn_objection(trial: Trial, timer: timers.CuptiTimer) -> Optional[str]:
    try:
        timer.take(1.0)
    except Exception as error:  # noqa: BLE001 - whatever CUPTI does not stand, a graph can still be timed
        trial.device.synchronize()  # raises if the call itself failed
        return str(error).strip().split("\n")[0]
    return None


def _allocations(trial: Trial, rotation: ring.Ring) -> Dict[str, int]:
    """How often one warm call allocates: blocks from torch's allocator (1 where the library allocates its output), and
    segments from the driver, which stall the device."""
    before = cuda.allocations()
    inputs, out = rotation.next()
    kept = trial.call.run(inputs, out)
    trial.synchronize()
    after = cuda.allocations()
    del kept
    found = {"allocations_per_call": after[0] - before[0]}
    if after[1] - before[1]:
        found["driver_allocations_per_call"] = after[1] - before[1]
    return found


def _replay_objection(
    trial: Trial, graph: timers.GraphTimer, rotation: ring.Ring, asked: Mapping[str, Any]
) -> Optional[str]:
    """Whether a replay does the work: outputs are poisoned, one replay must write them all as right as the eager call's
    (that one itself may lie where the replay writes)."""
    call = trial.call
    if call.restore is None:
        filling.poison(graph.outputs)
    else:
        for inputs, _ in rotation.sets:
            call.restore(inputs)
    graph.replay()
    count = len(graph.outputs)
    for index in sorted({0, count // 2, count - 1}):
        got = accuracy.compared_value(call, graph.outputs[index])
        limits = accuracy.Limits.choose({**call.limits, **asked}, accuracy.dtype_name(got))
        if accuracy.compare(got, trial.reference).objection(limits):
            return "kernels escape the graph's capture (a replay does not give the eager output)"
    return None


def _cross_check(
    trial: Trial,
    graph: timers.GraphTimer,
    rotation: ring.Ring,
    flush: Optional[cuda.L2Flush],
    issue_us: float,
    estimate_us: float,
) -> None:
    """Hold the graph's time against CUPTI's of eager calls, or else against the same calls queued back to back."""
    graph_us = stats.median(graph.take(3.0))
    seen = _cupti_witness(trial, rotation, flush, issue_us, estimate_us)
    if seen is None:
        nearest_us = timers.back_to_back(trial.call, rotation, flush, issue_us, estimate_us)
        found = {"back_to_back": nearest_us}
    else:
        # A graph leaves out the host's gaps between the kernels of a call, and no more than them.
        nearest_us = min(max(graph_us, seen.busy_us), seen.us)
        found = {"cupti": seen.us, "cupti_busy": seen.busy_us}
    trial.extra["cross_check_us"] = {"graph": graph_us, **found}
    trial.disagreement = trial.gang.decide(verdicts.timers_disagree(graph_us, nearest_us))


def _confirm_events(trial: Trial, events_us: float, witness: Dict[str, float]) -> None:
    """Events around a call see the current stream alone: what runs on another one, without the current one waiting for it,
    takes them no time. They must not say less than the witness (more they may: launch latency leaks into them)."""
    ((name, least_us),) = witness.items()
    missed = least_us > events_us and verdicts.timers_disagree(events_us, least_us)
    trial.disagreement = trial.gang.decide(missed)
    if trial.disagreement:
        trial.extra["cross_check_us"] = {"events": events_us, name: least_us}


def _cupti_witness(
    trial: Trial, rotation: ring.Ring, flush: Optional[cuda.L2Flush], issue_us: float, estimate_us: float
) -> Optional[kernel_trace.Span]:
    if trial.gang.size > 1:
        return None  # ranks of unlike installations would make unlike calls
    try:
        timer = timers.CuptiTimer(
            trial.call, rotation, flush, issue_us, estimate_us, kernel_trace.tracer(), trial.gang
        )
        spans = timer.spans(3.0)
        return kernel_trace.Span(
            stats.median([span.us for span in spans]), stats.median([span.busy_us for span in spans])
        )
    except Exception:  # noqa: BLE001 - whatever CUPTI does not stand, there is another witness
        trial.device.synchronize()  # raises if the call itself failed
        return None
