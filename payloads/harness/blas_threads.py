"""Threads of the OpenBLAS that numpy or scipy brought: `threadpoolctl` and its like set them for the whole process."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any, Callable, Dict, FrozenSet, List, Tuple

_MAPS = "/proc/self/maps"
_BRINGERS = ("numpy", "scipy", "scipy.linalg")

# Wheels of numpy and scipy rename the functions; a suffix says that integers are of 64 bits.
_NAMES = tuple(
    prefix + "openblas_{}_num_threads" + suffix for prefix in ("scipy_", "") for suffix in ("64_", "_64", "")
)

_Setting = Tuple[str, Callable[[], Any], Callable[[Any], Any]]
_found: Dict[FrozenSet[str], List[_Setting]] = {}


def settings() -> List[_Setting]:
    """(name, how to read them, how to set them) of each OpenBLAS that is loaded; looked for again when another package
    that brings one has been imported."""
    imported = frozenset(name for name in _BRINGERS if name in sys.modules)
    if imported not in _found:
        _found[imported] = [setting for path in _loaded() for setting in _of(path)] if imported else []
    return _found[imported]


def _loaded() -> List[str]:
    try:
        with open(_MAPS, encoding="utf-8", errors="surrogateescape") as file:
            paths = {line.rstrip("\n").partition("/")[1:] for line in file}
    except OSError:
        return []  # not Linux: what cannot be found is left alone
    return sorted("".join(path) for path in paths if "openblas" in os.path.basename("".join(path)))


def _of(path: str) -> List[_Setting]:
    try:
        library = ctypes.CDLL(path)
    except OSError:
        return []
    for name in _NAMES:
        read, write = (getattr(library, name.format(verb), None) for verb in ("get", "set"))
        if read is not None and write is not None:
            return [("threads of {}".format(os.path.basename(path)), read, write)]
    return []
