"""Does a call do what the harness takes for granted? Where it does not, its time would be a time of something else.

- It computes anew: an output kept from an earlier call is found, since every output that was returned is poisoned
  (`trial.check`).
- It leaves its inputs alone, or brings a `Call.restore` that makes anew what it reads: else the second call has other
  work than the first.
- Its output lies in memory of its own.
- It reads the inputs that it is handed: a call that reads arrays of its own finds them in the cache, however large the
  ring is. Handed the same memory with all numbers zero (and then NaN), or those of one large array, it must not give the
  same output.
- It works on the device that its timer looks at.
- It still does all of that after it was timed (`trial.recheck`).
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional, Tuple

from . import arrays, cuda, environment, values
from .declare import Call
from .device import Device
from .gang import Gang

# What the copy may take of the memory that is free.
GPU_MEMORY_SHARE = 0.25
CPU_MEMORY_SHARE = 0.125

CHANGES_INPUTS = (
    "the call changes its inputs, so that the next one has other work to do: "
    "work on a copy, or give Call.restore"
)
IN_INPUTS = "the output lies in the memory of the inputs: write to `out`, or give Call.restore"
DEAF = (
    "the call does not read {} that it is handed: "
    "use run's arguments, and nothing that it closed over or kept of an earlier call"
)

LEFT = (
    "Call.restore leaves {} as a call left it, so that the next one has other work to do: "
    "restore what it is handed, all that the call reads, or say Call.repeatable"
)

ON_CPU = (
    "none of its inputs and outputs lies on the GPU, whose time is to be measured: make them on device.torch_device ({}), "
    "or give Call(on_cpu=True) where the work is meant to be the CPU's"
)
ON_GPU = "Call(on_cpu=True) says that the CPU does the work, but arrays of it lie on {}: leave on_cpu out"

# An array that is such a part of the inputs is looked at alone: whether it is cold matters.
LARGE_SHARE = 0.25


class Silence(NamedTuple):
    """Arrays of a copy of the inputs, each with its original, that say nothing for a call; `bits`: other numbers than zero
    are safe to put there, too."""

    what: str
    arrays: List[Tuple[Any, Any]]
    bits: bool


def copy_of(inputs: Any, on_gpu: bool, gang: Gang) -> Any:
    """A copy to hold inputs against afterwards; None where there is nothing to hold, or no room for it. Ranks of a
    gang have none: all of them must make the same calls."""
    size = arrays.span_bytes(inputs)
    if size == 0 or gang.size > 1:
        return None
    return arrays.clone(inputs) if size <= room_for_copies(on_gpu) else None


def room_for_copies(on_gpu: bool) -> float:
    """Bytes that copies may take now."""
    if on_gpu:
        return cuda.free_bytes() * GPU_MEMORY_SHARE
    return environment.available_memory_bytes() * CPU_MEMORY_SHARE


def misplaced(call: Call, output: Any, device: Device) -> Optional[str]:
    """Why the call does its work where the timer would not see it, or None: a GPU's timers see nothing of work on the CPU,
    and the host's clock nothing but the launches of work on a GPU."""
    if not device.is_gpu:
        return None
    place = device.torch_device.split(":")[0]
    found = arrays.devices((call.inputs, output))
    if call.on_cpu and found - {"cpu"}:
        return ON_GPU.format("/".join(sorted(found - {"cpu"})))
    if not call.on_cpu and found and place not in found:
        return ON_CPU.format(place)
    return None


def objection(call: Call, output: Any, before: Any) -> Optional[str]:
    """Why the calls made so far are not what the harness takes for granted, or None. `before`: a `copy_of` the inputs."""
    if call.restore is not None:
        return None
    if before is not None and not arrays.same(call.inputs, before):
        return CHANGES_INPUTS
    if arrays.overlap(output, call.inputs):
        return IN_INPUTS
    return None


def silences(inputs: Any, originals: Any, on_gpu: bool) -> List[Silence]:
    """What to try: all numbers of the copy `inputs`, then each large array of them alone.

    Whole numbers of 32 and 64 bits are indices, offsets and lengths as a rule, and a kernel may go astray by wrong ones:
    they count only where there is nothing else, and on a CPU, where zero is a fair index."""
    pairs = list(zip(arrays.leaves(inputs), arrays.leaves(originals)))
    numbers = [pair for pair in pairs if arrays.is_number(pair[0])]
    if not numbers:
        return [Silence("the inputs", pairs, False)] if pairs and not on_gpu else []
    found = [Silence("the inputs", numbers, True)]
    total = arrays.nbytes([original for _, original in pairs])
    for number, pair in enumerate(pairs):
        if len(pairs) > 1 and arrays.is_number(pair[0]) and arrays.nbytes(pair[1]) >= LARGE_SHARE * total:
            found.append(Silence(named(number, pair[1]), [pair], True))
    return found


def named(number: int, leaf: Any) -> str:
    """An array of the inputs in words; `number` counts from 0."""
    return "array {} of the inputs ({})".format(number + 1, "×".join(map(str, values.sizes(leaf))))


def may_be_zero(leaf: Any, on_gpu: bool) -> bool:
    """Whether an array may be zero for once, when it is not known what it is for: a kernel on a GPU could wait for ever for
    a whole number that never comes."""
    return not on_gpu or arrays.is_floating(leaf)
