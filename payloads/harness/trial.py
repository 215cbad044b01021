"""One backend of one case on its own: built, compiled, proved correct, and given its timer."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Set

from . import accuracy, arrays, gpu_timing, ring, stats, timers
from .declare import Backend, Call
from .device import Device
from .gang import SOLO, Gang

# A first call that takes this long has compiled, tuned or loaded something that later runs will find done.
COLD_START_S = 1.0


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
    comparison: Optional[accuracy.Comparison] = None
    accuracy_record: Optional[Dict[str, Any]] = None
    timer: Optional[timers.Timer] = None
    cache: Optional[str] = None
    host_us: Optional[float] = None
    hot_median_us: Optional[float] = None
    disagreement: bool = False
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
    output = call.run(call.inputs, ring.make_out(call))
    trial.synchronize()
    trial.compile_s = time.perf_counter() - started
    trial.extra.update(call.extra)
    if call.precision is not None:
        trial.extra["precision"] = call.precision
    if trial.compile_s >= COLD_START_S:
        trial.extra["cold_start"] = True
    if call.describe is not None:
        found = call.describe()
        call.resolved = found.pop("resolved_backend", call.resolved)
        trial.extra.update(found)
    return output


def check(trial: Trial, first_output: Any, asked: Mapping[str, Any]) -> Optional[str]:
    """Call once into poisoned memory and compare. Returns why the output is incorrect, or None.

    A library that allocates its own output most likely gets the poisoned block that was freed just before.
    """
    call = trial.call
    out = ring.make_out(call)
    if call.restore is not None:
        call.restore(call.inputs)
    elif out is None:
        out_like = arrays.clone(first_output)
        arrays.poison(out_like)
        del out_like
    else:
        arrays.poison(out)
    del first_output
    output = call.run(call.inputs, out)
    trial.synchronize()
    result = accuracy.compared_value(call, output)
    if result is None:
        return "the call returned no array"
    limits = accuracy.Limits.choose({**call.limits, **asked}, accuracy.dtype_name(result))
    trial.comparison = accuracy.compare(result, call.reference())
    float_cosine = None
    if call.float_reference is not None and not trial.comparison.non_finite:
        float_cosine = accuracy.compare(result, call.float_reference()).cosine
    trial.accuracy_record = trial.comparison.record(call.reference_name, float_cosine)
    objection = trial.comparison.objection(limits)
    if objection is None and call.inspect is not None:
        objection, facts = call.inspect(output)
        trial.extra.update(facts)
    return objection


def prepare_timer(trial: Trial, settings: Settings, asked: Mapping[str, Any], crossed: Set[Any]) -> None:
    """Give a correct trial its ring and timer. `crossed` remembers which (backend, shape class) were cross-checked."""
    call = trial.call
    output = call.run(call.inputs, ring.make_out(call))
    trial.synchronize()
    rotation = ring.cold(call, trial.device, output) if settings.cache == "cold" else ring.hot(call)
    rotation.cut(min(trial.gang.every(len(rotation.sets))))
    trial.cache = rotation.cache
    trial.extra["input_sets"] = len(rotation.sets)
    if rotation.note:
        trial.notes.append(rotation.note)
    if trial.on_gpu:
        gpu_timing.prepare(trial, settings, asked, crossed, rotation, output)
    else:
        trial.timer = timers.HostTimer(call, rotation, trial.gang)
        if rotation.cache == "cold":
            hot = timers.HostTimer(call, ring.hot(call), trial.gang)
            trial.hot_median_us = stats.median(hot.take(settings.min_time_ms / 10))
