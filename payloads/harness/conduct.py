"""Does a call do what the harness takes for granted? Where it does not, its time would be a time of something else.

- It computes anew: an output kept from an earlier call is found, since every output that was returned is poisoned
  (`trial.check`).
- It leaves its inputs alone, or brings `Call.restore`: else the second call has other work than the first.
- Its output lies in memory of its own.
- It reads the inputs that it is handed: a call that reads arrays of its own finds them in the cache, however large the
  ring is. Handed the same memory with all numbers zero, it must not give the same output.
- It still does all of that after it was timed (`trial.recheck`).
"""

from __future__ import annotations

from typing import Any, Optional

from . import arrays, cuda, environment
from .declare import Call
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
    "the call does not read the inputs that it is handed: "
    "use run's arguments, and nothing that it closed over or kept of an earlier call"
)


def copy_of_inputs(call: Call, on_gpu: bool, gang: Gang) -> Any:
    """A copy to hold the inputs against afterwards; None where there is nothing to hold, or no room for it. Ranks of a
    gang have none: all of them must make the same calls."""
    size = arrays.nbytes(call.inputs)
    if call.restore is not None or size == 0 or gang.size > 1:
        return None
    if on_gpu:
        room = cuda.free_bytes() * GPU_MEMORY_SHARE
    else:
        room = environment.available_memory_bytes() * CPU_MEMORY_SHARE
    return arrays.clone(call.inputs) if size <= room else None


def objection(call: Call, output: Any, before: Any) -> Optional[str]:
    """Why the calls made so far are not what the harness takes for granted, or None. `before`: `copy_of_inputs`."""
    if call.restore is not None:
        return None
    if before is not None and not arrays.same(call.inputs, before):
        return CHANGES_INPUTS
    if arrays.overlap(output, call.inputs):
        return IN_INPUTS
    return None


def blank(inputs: Any) -> bool:
    """Make all numbers of a copy of inputs zero; whether there were any. Whole numbers of 32 and 64 bits are left: they
    are indices, offsets and lengths as a rule, and a kernel may go astray by wrong ones."""
    blanked = False
    for leaf in arrays.leaves(inputs):
        if arrays.is_number(leaf):
            arrays.zero(leaf)
            blanked = True
    return blanked
