"""One backend of one case on its own: built, compiled, proved correct, and given its timer."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Callable, ContextManager, Dict, List, Mapping, Optional, Set

from . import (
    accuracy,
    arrays,
    conduct,
    deprivation,
    filling,
    gpu_timing,
    memory,
    records,
    ring,
    stats,
    timers,
)
from .declare import Backend, Call
from .device import Device
from .gang import SOLO, Gang

# A first call that takes this long has compiled, tuned or loaded something that later runs will find done.
COLD_START_S = 1.0

GPU_TIMERS = ("graph", "events", "cupti")


@dataclass
class Settings:
    """How to measure (`measure` of a queue item); times in milliseconds."""

    cache: str = "cold"
    timer: str = "auto"
    min_time_ms: float = 50.0
    max_time_ms: float = 2000.0
    target_rel_error: float = 0.005
    rounds: int = 3

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> "Settings":
        """From a queue item; keys that are unknown here are left alone."""
        asked = item.get("measure") or {}
        known = {name: asked[name] for name in cls.__dataclass_fields__ if asked.get(name) is not None}
        return cls(**known)


@dataclass
class Trial:
    """What is known of a backend so far, and its timer once it has one."""

    backend: Backend
    call: Call
    device: Device
    gang: Gang = SOLO
    compile_s: float = 0.0
    before: Any = None  # a copy of the inputs as they were before the first call, until they are checked
    reference: Any = None
    comparison: Optional[accuracy.Comparison] = None
    accuracy_record: Optional[Dict[str, Any]] = None
    rotation: Optional[ring.Ring] = None
    timer: Optional[timers.Timer] = None
    cache: Optional[str] = None
    host_us: Optional[float] = None
    hot_median_us: Optional[float] = None
    disagreement: bool = False
    neutral: Callable[[], ContextManager[None]] = nullcontext
    notes: List[str] = field(default_factory=list)
    extra: Dict[str, Any] = field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        """Whether the call's work runs on the GPU."""
        return self.device.is_gpu and not self.call.on_cpu

    def synchronize(self) -> None:
        """Wait for the call's work."""
        if self.on_gpu:
            self.device.synchronize()


def compile_call(trial: Trial, started: float) -> Any:
    """Tune, then call once and wait: just-in-time compilation, tuning and module loading happen here and nowhere else.

    Returns the output. `started` is when building began (monotonic), so that `compile_s` has all of it.
    """
    call = trial.call
    if call.tune is not None:
        call.tune()
    copying = time.perf_counter()
    trial.before = conduct.copy_of(call.inputs, trial.on_gpu, trial.gang)
    trial.synchronize()
    started += time.perf_counter() - copying  # our own work, and none of the compilation
    output = call.run(call.inputs, ring.make_out(call))
    trial.synchronize()
    trial.compile_s = time.perf_counter() - started
    trial.extra.update(call.extra)
    if call.precision is not None:
        trial.extra["precision"] = call.precision
    if trial.compile_s >= COLD_START_S:
        trial.extra["cold_start"] = True
    if call.describe is not None:
        found = records.mapping("Call.describe", call.describe())
        call.resolved = found.pop("resolved_backend", call.resolved)
        trial.extra.update(found)
    call.flops = records.figure("Call.flops", call.flops)
    call.bytes_moved = records.figure("Call.bytes_moved", call.bytes_moved)
    return output


def check(trial: Trial, first_output: Any, asked: Mapping[str, Any]) -> Optional[str]:
    """Call once into poisoned memory and compare. Returns why the output is incorrect, or None.

    A library that allocates its own output most likely gets the poisoned block that was freed just before.
    """
    call = trial.call
    before, trial.before = trial.before, None
    # All ranks of a gang stop here, or none: the next call is made by all.
    objection = conduct.misplaced(call, first_output, trial.device)
    objection = trial.gang.first_objection(objection or conduct.objection(call, first_output, before))
    if objection is not None:
        return objection
    out = ring.make_out(call)
    if out is not None:
        filling.poison(out)
    if call.restore is not None:
        call.restore(call.inputs)
    elif out is None:
        out_like = arrays.clone(first_output)
        filling.poison(out_like)
        del out_like
    if call.restore is None:
        filling.poison(first_output)  # what was kept of the first call is no result of the second
    del first_output
    output = call.run(call.inputs, out)
    trial.synchronize()
    result = deprivation.result_of(trial, output)
    if result is None:
        return "the call returned no array: run(inputs, out) must return its output, of numpy or torch, once it is computed"
    if not trial.on_gpu:
        result = arrays.clone(result)  # as it is now: a thread that still writes it is too late
    limits = accuracy.Limits.choose({**call.limits, **asked}, accuracy.dtype_name(result))
    float_cosine = None
    with trial.neutral():
        trial.reference = call.reference()
        if arrays.overlap(trial.reference, call.inputs):
            trial.reference = arrays.clone(trial.reference)  # inputs are changed to see whether they are read
        trial.comparison = accuracy.compare(result, trial.reference)
        if call.float_reference is not None and not trial.comparison.non_finite:
            float_cosine = accuracy.compare(result, call.float_reference()).cosine
    trial.accuracy_record = trial.comparison.record(call.reference_name, float_cosine)
    objection = trial.comparison.objection(limits)
    if objection is None and call.inspect is not None:
        objection, facts = records.pair("Call.inspect", call.inspect(output))
        trial.extra.update(records.mapping("Call.inspect", facts))
    others = sum(1 for _ in arrays.wholes(output)) - 1
    if objection is None and call.value is None and call.inspect is None and others > 0:
        trial.notes.append(
            "only the first of {} output arrays was compared with the reference (Call.value can join them)".format(
                others + 1
            )
        )
    del result, output
    if objection is None and trial.comparison.zero:
        trial.notes.append(
            "the reference is zero everywhere: that proves little, and zeros are faster than numbers"
        )
    elif objection is None and before is not None:
        objection = conduct.objection(call, None, before) or deprivation.misrestored(trial, before, limits)
        objection = objection or deprivation.deafness(trial, before, limits)
    return objection


def recheck(trial: Trial, asked: Mapping[str, Any]) -> Optional[str]:
    """Why what the timed calls compute is not right any more, or None: once more as they are timed, into poisoned memory."""
    call, rotation, timer = trial.call, trial.rotation, trial.timer
    assert rotation is not None
    if isinstance(timer, timers.GraphTimer):
        # One of them tells enough: the capture was held against the reference before.
        number = len(timer.outputs) // 2
        output, inputs = timer.outputs[number], rotation.sets[number % len(rotation.sets)][0]
        if call.restore is None:
            filling.poison(output)
        else:
            for each, _ in rotation.sets:
                call.restore(each)
        timer.replay()
        result = deprivation.result_of(trial, output)
    else:
        inputs, out = rotation.next()
        filling.poison(out)
        if call.restore is not None:
            call.restore(inputs)
        result = deprivation.result_of(trial, call.run(inputs, out))
        trial.synchronize()
    if result is None:
        return "after it was timed, the call returned no array"
    if not trial.on_gpu:
        result = arrays.clone(result)
    limits = accuracy.Limits.choose({**call.limits, **asked}, accuracy.dtype_name(result))
    objection = accuracy.compare(result, trial.reference).objection(limits)
    if objection:
        return "after it was timed, the call computes something else: {}".format(objection)
    return _deafness_afterwards(trial, inputs, limits)


def _deafness_afterwards(trial: Trial, inputs: Any, limits: accuracy.Limits) -> Optional[str]:
    """As `_deafness`, of a set that was timed: what remembers only inputs that it has often seen, or what a graph captured
    of results that were there already, is found now."""
    assert trial.comparison is not None
    asked = not trial.comparison.zero and trial.call.restore is None
    kept = conduct.copy_of(inputs, trial.on_gpu, trial.gang) if asked else None
    if kept is None or not memory.Own().has(inputs):  # the first set are the payload's own arrays
        return None
    timer = trial.timer

    def replayed() -> bool:
        assert isinstance(timer, timers.GraphTimer)
        output = timer.outputs[len(timer.outputs) // 2]
        filling.poison(output)
        timer.replay()
        trial.synchronize()
        try:
            return (
                accuracy.compare(deprivation.result_of(trial, output), trial.reference).objection(limits)
                is None
            )
        except Exception:  # noqa: BLE001 - as in `_is_right`: `Call.value` may not stand such an output
            trial.synchronize()  # raises if the device is gone
            return False

    def called() -> bool:
        return deprivation.is_right(trial, inputs, limits)

    is_right = replayed if isinstance(timer, timers.GraphTimer) else called
    for silence in conduct.silences(inputs, kept, trial.on_gpu)[:1]:
        if deprivation.indifferent(silence, is_right):
            return "after it was timed, {}".format(conduct.DEAF.format(silence.what))
    return None


def prepare_timer(trial: Trial, settings: Settings, asked: Mapping[str, Any], crossed: Set[Any]) -> None:
    """Give a correct trial its ring and timer. `crossed` remembers which (backend, shape class) were cross-checked."""
    call = trial.call
    if call.renewed and call.restore is not None:
        call.restore(call.inputs)
    output = call.run(call.inputs, ring.make_out(call))
    trial.synchronize()
    if settings.cache == "cold":
        rotation = ring.cold(call, trial.device, output, deprivation.unhanded(trial, output, asked))
    else:
        rotation = ring.hot(call)
    rotation.cut(min(trial.gang.every(len(rotation.sets))))
    trial.rotation = rotation
    trial.cache = rotation.cache
    if rotation.note:
        trial.notes.append(rotation.note)
    if trial.on_gpu:
        del output
        gpu_timing.prepare(trial, settings, asked, crossed, rotation)
    else:
        if settings.timer in GPU_TIMERS:
            trial.notes.append("timer {} is for GPU work: measured by host".format(settings.timer))
        trial.timer = timers.HostTimer(call, rotation, trial.gang)
        if rotation.cache == "cold":
            hot = timers.HostTimer(call, ring.hot(call), trial.gang)
            trial.hot_median_us = stats.median(hot.take(settings.min_time_ms / 10))
    trial.extra["input_sets"] = len(rotation.sets)
    if rotation.evict:
        trial.extra["evicted_each_pass"] = True
