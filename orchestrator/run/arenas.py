"""One setting of the C library's allocator, for processes with very many threads."""

from __future__ import annotations

import ctypes
import sys

_M_ARENA_MAX = -8  # malloc.h of glibc
ARENAS = 2


def limit_arenas() -> None:
    """Let the threads share two heaps. By default glibc gives nearly every thread one of its own, eight for each core,
    each with holes that no other thread can use: with 64 hosts that is more than all they have to tell."""
    if sys.platform != "linux":
        return
    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, ARENAS)
    except (OSError, AttributeError):
        pass  # another C library
