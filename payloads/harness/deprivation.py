"""What becomes of a call's output when what it should need is taken away: it is then wrong, or the work was not done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional

from . import accuracy, arrays, conduct, filling, reach, ring

if TYPE_CHECKING:
    from .trial import Trial


def result_of(trial: Trial, output: Any) -> Any:
    """What of an output is held against the reference."""
    return accuracy.compared_value(trial.call, output)


def misrestored(trial: Trial, inputs: Any, limits: accuracy.Limits) -> Optional[str]:
    """Which array `Call.restore` does not make anew, though the call reads what changed: without that, the output is not right.
    `inputs` is a copy that no call has seen; afterwards it is one that was restored, as are the inputs themselves."""
    call = trial.call
    if call.restore is None:
        return None
    own, copy = list(arrays.leaves(call.inputs)), list(arrays.leaves(inputs))
    call.restore(call.inputs)
    changed = _changes(own, copy)
    call.run(inputs, ring.make_out(call))
    call.restore(inputs)
    changed = {**_changes(copy, own), **changed}
    trial.synchronize()
    for number in () if call.repeatable else sorted(changed):
        if conduct.may_be_zero(copy[number], trial.on_gpu):
            _refill(copy, own)
            filling.zero_where(copy[number], changed[number])
            if not is_right(trial, inputs, limits):
                return conduct.LEFT.format(conduct.named(number, copy[number]))
    _refill(copy, own)
    return None


def _changes(leaves: List[Any], originals: List[Any]) -> Dict[int, Any]:
    """Which arrays are not what they were, by number, and where."""
    pairs = enumerate(zip(leaves, originals))
    return {number: arrays.unlike(*pair) for number, pair in pairs if not arrays.same(*pair)}


def _refill(leaves: List[Any], originals: List[Any]) -> None:
    for leaf, original in zip(leaves, originals):
        filling.refill(leaf, original)


def deafness(trial: Trial, inputs: Any, limits: accuracy.Limits) -> Optional[str]:
    """Call with a copy of the inputs, and again when numbers of it are gone: that cannot give the same output."""
    call = trial.call
    call.run(inputs, ring.make_out(call))
    silences = conduct.silences(inputs, call.inputs, trial.on_gpu)
    if call.restore is not None:
        # Arrays that such a call is handed may be places to write to: only all of them together say something.
        silences = [
            silence
            for silence in silences[:1]
            if all(conduct.may_be_zero(leaf, trial.on_gpu) for leaf, _ in silence.arrays)
        ]
    for silence in silences:
        if indifferent(silence, lambda: is_right(trial, inputs, limits)):
            return conduct.DEAF.format(silence.what)
    return None


def indifferent(silence: conduct.Silence, is_right: Callable[[], bool]) -> bool:
    """Whether the output is right without those numbers. Zeros may be as good as they (are they finite?), NaN is not."""
    try:
        for leaf, _ in silence.arrays:
            filling.zero(leaf)
        if not is_right():
            return False
        if silence.bits:
            for leaf, _ in silence.arrays:
                filling.spoil(leaf)
            return is_right()
        return True
    finally:
        for leaf, original in silence.arrays:
            filling.refill(leaf, original)


def is_right(trial: Trial, inputs: Any, limits: accuracy.Limits) -> bool:
    """Whether the call's output with these inputs is that of its own."""
    out = ring.make_out(trial.call)
    filling.poison(out)
    try:
        result = result_of(trial, trial.call.run(inputs, out))
        trial.synchronize()
        return accuracy.compare(result, trial.reference).objection(limits) is None
    except Exception:  # noqa: BLE001 - such inputs are not what it was made for; that it cares for them is the answer
        trial.synchronize()  # raises if the device is gone
        return False


def unhanded(trial: Trial, output: Any, asked: Mapping[str, Any]) -> Optional[str]:
    """What the call reads beside its inputs, in words: without it, the output is not right. None where there is nothing,
    nothing can be told (of a reference of zeros), or in a gang, whose ranks must all make the same calls."""
    call = trial.call
    if trial.gang.size > 1 or trial.comparison is None or trial.comparison.zero:
        return None
    limits = accuracy.Limits.choose({**call.limits, **asked}, accuracy.dtype_name(result_of(trial, output)))
    candidates = reach.hidden(call, output)
    all_of_them = [leaf for hidden in candidates for leaf in hidden.arrays]
    fits = arrays.span_bytes(all_of_them) <= conduct.room_for_copies(trial.on_gpu)
    if len(candidates) > 1 and fits and _is_right_without(trial, all_of_them, limits):
        candidates = []  # one call instead of many: a problem may hold the weights of all of its backends
    found = None
    for hidden in candidates:
        room = conduct.room_for_copies(trial.on_gpu)
        if arrays.span_bytes(hidden.arrays) <= room and not _is_right_without(trial, hidden.arrays, limits):
            found = hidden.what
            break
    if call.renewed and call.restore is not None:
        call.restore(call.inputs)
    return found


def _is_right_without(trial: Trial, hidden: List[Any], limits: accuracy.Limits) -> bool:
    call = trial.call
    kept = arrays.clone(hidden)
    out = ring.make_out(call)
    filling.poison(out)
    if call.restore is not None:
        call.restore(call.inputs)
    try:
        for leaf in hidden:
            filling.zero(leaf)
        output = call.run(call.inputs, out)
        trial.synchronize()
    except Exception:  # noqa: BLE001 - it cannot do without them
        trial.synchronize()  # raises if the device is gone
        return False
    finally:
        for leaf, original in zip(hidden, kept):
            filling.refill(leaf, original)
    # Only now: what reads the output, and the reference itself, may be of those arrays, too.
    try:
        return accuracy.compare(result_of(trial, output), trial.reference).objection(limits) is None
    except Exception:  # noqa: BLE001 - of another shape, or such that `Call.value` does not stand it
        trial.synchronize()  # raises if the device is gone
        return False
