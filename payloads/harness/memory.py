"""Where arrays lie, and which memory may hold other numbers for a moment, so that it shows whether a call reads them.

Not what cannot be written to, and not what others see: a file that is mapped (its content would be gone if this process
ended just then), or memory that processes share.
"""

from __future__ import annotations

import bisect
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from . import arrays

# Mapped by all processes that ask, and yet nobody else's: memory that is pinned for a GPU.
_PINNED = ("/dev/zero", "/dev/nvidia")


class Spans:
    """Memory that the arrays of a nest take; like `arrays.overlap`, for many questions about many arrays."""

    def __init__(self, value: Any) -> None:
        self._of: Dict[str, Tuple[List[int], List[int]]] = {}
        for device, start, end in sorted(map(arrays.place, arrays.leaves(value))):
            starts, ends = self._of.setdefault(device, ([], []))
            if ends and start <= ends[-1]:
                ends[-1] = max(ends[-1], end)
            else:
                starts.append(start)
                ends.append(end)

    def meet(self, leaf: Any) -> bool:
        """Whether an array lies, at least in part, in it."""
        device, start, end = arrays.place(leaf)
        starts, ends = self._of.get(device, ([], []))
        last = bisect.bisect_left(starts, end) - 1  # the last one that begins before the array ends
        return last >= 0 and ends[last] > start


class _Region(NamedTuple):
    start: int
    end: int
    fine: bool


class Own:
    """The process's memory as it is mapped now."""

    def __init__(self) -> None:
        self._regions = _regions()
        self._starts = [region.start for region in self._regions or ()]

    def has(self, value: Any) -> bool:
        """Whether each array of a nest may be changed for a moment."""
        return all(map(self._has_leaf, arrays.leaves(value)))

    def _has_leaf(self, leaf: Any) -> bool:
        if arrays.is_array(leaf) and (not leaf.flags.writeable or _is_mapped(leaf)):
            return False
        if self._regions is None or not arrays.count(leaf):
            return True
        device, start, end = arrays.place(leaf)
        if device != "cpu":
            return True
        first = max(0, bisect.bisect_right(self._starts, start) - 1)
        last = bisect.bisect_left(self._starts, end)
        return all(region.fine for region in self._regions[first:last] if region.end > start)


def _is_mapped(array: Any) -> bool:
    import numpy as np

    while array is not None:
        if isinstance(array, np.memmap):
            return array.mode != "c"
        array = getattr(array, "base", None)
    return False


def _regions() -> Optional[List[_Region]]:
    """What is mapped where, in order; None where the system does not tell."""
    if not sys.platform.startswith("linux"):
        return None
    found = []
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            for line in file:
                span, rights, *rest = line.split(None, 5)
                start, end = (int(part, 16) for part in span.split("-"))
                private = rights[3] == "p" or (len(rest) == 4 and rest[3].startswith(_PINNED))
                found.append(_Region(start, end, rights[1] == "w" and private))
    except (OSError, ValueError):
        return None
    return found
