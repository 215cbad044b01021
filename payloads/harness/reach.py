"""What a call can read beside its arguments: arrays that its function closed over, of the problem, of a module, of globals.

They lie in one place, whichever set of the ring a call is handed, so that the cache keeps them.
"""

from __future__ import annotations

import functools
import types
from typing import Any, Iterator, List, NamedTuple, Set, Tuple

from . import arrays
from .declare import Call

# Objects looked at, at most: a problem has tens of them, and nobody shall wait for more.
MAX_OBJECTS = 2000

# What is smaller than this part of the inputs changes no time that anybody would see.
NOTABLE_SHARE = 0.25


class Hidden(NamedTuple):
    """Arrays that are told, and tried, as one."""

    what: str
    arrays: List[Any]


def hidden(call: Call) -> List[Hidden]:
    """Arrays of floating point that `call.run` could read and is not handed, a quarter of the inputs or more: each large
    one, each module's, and all small ones together.

    Whole numbers are left out: in buffers of bytes lie semaphores and plans, and a kernel may never end without them.
    """
    handed = [leaf for leaf in arrays.leaves(call.inputs) if arrays.count(leaf)]
    least = max(1.0, NOTABLE_SHARE * arrays.nbytes(handed))
    found: List[Hidden] = []
    small: List[Any] = []
    known: Set[Any] = set()
    devices = arrays.devices(handed)
    for owner, leaf in _Walk(call).arrays():
        try:
            place = arrays.place(leaf)
            if place in known or not _counts(leaf, devices) or arrays.overlap(leaf, handed):
                continue
        except Exception:  # noqa: BLE001, S112 - tensors of a library's own kind, or not made yet: they have no memory to look at
            continue
        known.add(place)
        if owner is None and arrays.nbytes(leaf) >= least:
            found.append(Hidden("an array of {}".format("×".join(map(str, arrays.sizes(leaf)))), [leaf]))
        else:
            small.append(leaf)
    if small and arrays.nbytes(small) >= least:
        found.append(Hidden("arrays of {:.3g} MB".format(arrays.nbytes(small) / 1e6), small))
    return found


def _counts(leaf: Any, devices: Set[str]) -> bool:
    if not arrays.count(leaf) or not arrays.devices(leaf) <= devices:
        return False
    if arrays.is_tensor(leaf):
        return bool(leaf.is_floating_point() or leaf.is_complex())
    return leaf.dtype.kind in "fc" and bool(leaf.flags.writeable)


class _Walk:
    """Every array within reach of a call's function."""

    def __init__(self, call: Call) -> None:
        self._start = [call.run, call.inputs]
        self._seen: Set[int] = set()
        self._globals = getattr(_innermost(call.run), "__globals__", None)

    def arrays(self) -> Iterator[Tuple[Any, Any]]:
        """(the module that owns it, or None; the array or tensor)."""
        todo: List[Any] = list(self._start)
        while todo and len(self._seen) < MAX_OBJECTS:
            value = todo.pop()
            if id(value) in self._seen:
                continue
            self._seen.add(id(value))
            if arrays.is_tensor(value) or arrays.is_array(value):
                for leaf in arrays.leaves(value):
                    yield None, leaf
            elif arrays.is_module(value):
                for leaf in list(value.parameters()) + list(value.buffers()):
                    yield value, leaf
            else:
                todo.extend(self._within(value))

    def _within(self, value: Any) -> List[Any]:
        if isinstance(value, dict):
            return list(value.values())
        if isinstance(value, (tuple, list, set, frozenset)):
            return list(value)
        if isinstance(value, functools.partial):
            return [value.func, value.args, value.keywords]
        if isinstance(value, types.MethodType):
            return [value.__func__, value.__self__]
        if isinstance(value, types.FunctionType):
            return self._of_function(value)
        if isinstance(value, (type, types.ModuleType)) or not self._is_own(value):
            return []
        return list(getattr(value, "__dict__", {}).values()) + _slots(value)

    def _of_function(self, function: types.FunctionType) -> List[Any]:
        found: List[Any] = [function.__defaults__, function.__kwdefaults__]
        for cell in function.__closure__ or ():
            try:
                found.append(cell.cell_contents)
            except ValueError:
                continue  # not bound yet
        if function.__globals__ is self._globals:
            found += map(function.__globals__.get, function.__code__.co_names)
        return found

    def _is_own(self, value: Any) -> bool:
        """Whether an object's class is of the payload's script: what libraries keep in theirs is their own affair."""
        own = self._globals is not None and type(value).__module__ == self._globals.get("__name__")
        return own or isinstance(value, types.SimpleNamespace)


def _slots(value: Any) -> List[Any]:
    names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()) or ()]
    return [getattr(value, name) for name in names if isinstance(name, str) and hasattr(value, name)]


def _innermost(function: Any) -> Any:
    while isinstance(function, (functools.partial, types.MethodType)):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    return function
