"""Input sets to rotate through, so that a call finds cold (or hot) caches for real.

Cold means: between two uses of a set, at least five L2 sizes (on a CPU: two last-level caches) of other sets went by.
A ring with fewer sets would be read from the cache after the first round, and call itself cold. Where so many sets are
too many (tiny messages), or calls too long for a pass over all of them, a GPU's cache is evicted before each pass over
fewer; a CPU's is not, and the ring calls itself hot.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, List, Optional, Tuple

from . import arrays, cuda, environment
from .declare import Call
from .device import Device

GPU_L2_SIZES = 5
CPU_CACHE_SIZES = 2

# Shares of the memory that is free now: other backends of the case need theirs too.
GPU_MEMORY_SHARE = 0.5
CPU_MEMORY_SHARE = 0.125

MAX_SETS = 4096
# Of a ring whose cache is evicted before each pass: enough calls for a long sample.
EVICTED_SETS = 1024
# A cache that is read through in turns has nothing left of what came before, once that is this much larger than it.
CPU_CACHE_SIZES_AT_LEAST = 1.25
# What is smaller than this part of the inputs changes no time that anybody would see.
NOTABLE_SHARE = 0.25
# A call that moves so many times the bytes that it was handed reads something else.
UNSEEN = 2.0


@dataclass
class Ring:
    """`sets` of (inputs, out); `cache` says what a call finds, `note` why that is not what was asked for.

    `evict`: a set is only cold if the cache is evicted first, and once in a pass over the sets."""

    sets: List[Tuple[Any, Any]]
    cache: str
    note: Optional[str] = None
    position: int = 0
    evict: bool = False

    def cut(self, count: int) -> None:
        """Keep `count` sets: what a rank of a gang has room for, all of them use."""
        if count < len(self.sets):
            del self.sets[count:]
            if count == 1 and self.cache == "cold":
                self.cache, self.evict = "hot", False
                self.note = "not cold: the input sets would not fit the free memory of every rank"

    def shorten(self, count: int) -> None:
        """Keep `count` sets of a cold ring, which stays cold by `evict`."""
        if self.cache == "cold" and count < len(self.sets):
            del self.sets[max(1, count) :]
            self.position = 0
            self.evict = True

    def renew(self, call: Call, count: Optional[int] = None) -> None:
        """Restore the inputs of the next `count` sets (None: of all) of a call that overwrites them. All of them, one after
        another, are as cold afterwards as a pass over the ring makes them."""
        if call.renewed and call.restore is not None:
            sets = len(self.sets)
            for number in range(sets if count is None else min(count, sets)):
                call.restore(self.sets[(self.position + number) % sets][0])

    def next(self) -> Tuple[Any, Any]:
        """The set whose turn it is."""
        current = self.sets[self.position]
        self.position = (self.position + 1) % len(self.sets)
        return current


def make_out(call: Call) -> Any:
    """A fresh output, or None where the library allocates its own."""
    return call.make_out() if call.make_out is not None else None


def hot(call: Call) -> Ring:
    """One set, used over and over."""
    return Ring([(call.inputs, make_out(call))], "hot")


def cold(call: Call, device: Device, output: Any, unhanded: Optional[str] = None) -> Ring:
    """As many sets as coldness takes. `output` is one of the call's outputs, to count its bytes; `unhanded` says what the
    call reads beside its inputs.

    Where memory does not suffice, the ring is one hot set and says so.
    """
    on_gpu = device.is_gpu and not call.on_cpu
    if on_gpu:
        target = GPU_L2_SIZES * cuda.l2_bytes()
        available = int(cuda.free_bytes() * GPU_MEMORY_SHARE)
    else:
        target = CPU_CACHE_SIZES * environment.last_level_cache_bytes()
        available = int(environment.available_memory_bytes() * CPU_MEMORY_SHARE)
    if arrays.holds_modules(call.inputs):
        return Ring(hot(call).sets, "hot", "not cold: weights of a module among the inputs cannot be rotated")
    unmovable = arrays.unmovable(call.inputs, NOTABLE_SHARE * arrays.nbytes(call.inputs))
    if unmovable is not None:
        why = "not cold: a {} among the inputs cannot be rotated: hand over arrays or tensors".format(
            unmovable
        )
        return Ring(hot(call).sets, "hot", why)
    if unhanded is not None:
        why = "not cold: the call reads {} that it is not handed: put that among Call.inputs".format(unhanded)
        return Ring(hot(call).sets, "hot", why)
    used = arrays.nbytes(call.inputs) + arrays.nbytes(output)
    moved = call.bytes_moved
    if moved is not None and moved > UNSEEN * used:
        why = "not cold: the call moves {:.3g} MB, but its inputs and output are of {:.3g} MB".format(
            moved / 1e6, used / 1e6
        )
        return Ring(hot(call).sets, "hot", why)
    # A call may read but a part of its inputs (few of many experts): the rest evicts nothing.
    touched = used if moved is None else min(used, math.ceil(moved))
    set_bytes = arrays.span_bytes(call.inputs) + arrays.nbytes(output)
    made = cold_ring(call, set_bytes, target, available, touched, can_evict=on_gpu)
    if made.cache == "cold" and len(made.sets) == 1 and moved is None:
        made.evict = True  # it may read but a part of so much, and find that in the cache
    return made


def cold_ring(
    call: Call,
    set_bytes: int,
    target: int,
    available: int,
    touched: Optional[int] = None,
    can_evict: bool = False,
) -> Ring:
    """`cold` for given sizes in bytes: of a set, of what must go by between two uses of it, of free memory, and of what
    a call touches of its set (None: all). `can_evict`: where it takes too many sets, fewer will do."""
    if set_bytes == 0:
        return Ring(hot(call).sets, "hot", "the call has no arrays as inputs that could be rotated")
    touched = max(1, set_bytes if touched is None else touched)
    # One more than fits the target: between two uses of a set only the *others* go by.
    count = 1 if touched >= target else math.ceil(target / touched) + 1
    evict = count > MAX_SETS and can_evict
    if evict:
        count = EVICTED_SETS
    elif count > MAX_SETS:
        if MAX_SETS * touched < target * CPU_CACHE_SIZES_AT_LEAST / CPU_CACHE_SIZES:
            why = "not cold: it would take {} input sets of {:.3g} kB".format(count, touched / 1e3)
            return Ring(hot(call).sets, "hot", why)
        count = MAX_SETS
    if (count - 1) * set_bytes > available:
        return Ring(
            hot(call).sets,
            "hot",
            "not cold: {} input sets of {:.1f} MB would not fit the free memory".format(
                count, set_bytes / 1e6
            ),
        )
    sets = hot(call).sets + [(arrays.clone(call.inputs), make_out(call)) for _ in range(count - 1)]
    if count > 1 and arrays.overlap(sets[0][1], sets[1][1]):
        raise ValueError(
            "make_out gave the same memory twice: each call of it must make an output of its own"
        )
    return Ring(sets, "cold", evict=evict)
