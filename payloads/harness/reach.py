"""What a call can read beside its arguments: arrays that its function closed over, of the problem, of a module, of globals.

They lie in one place, whichever set of the ring a call is handed, so that the cache keeps them.
"""

from __future__ import annotations

import functools
import types
from typing import Any, Iterable, Iterator, List, NamedTuple, Set, Tuple

from . import arrays, memory, values
from .declare import Call

# Objects looked at, at most: a problem has tens of them, and nobody shall wait for more. Numbers and texts are none.
MAX_OBJECTS = 2000
_PLAIN = (type(None), bool, int, float, complex, str, bytes)

# What is smaller than this part of the inputs changes no time that anybody would see.
NOTABLE_SHARE = 0.25


class Hidden(NamedTuple):
    """Arrays that are told, and tried, as one."""

    what: str
    arrays: List[Any]


def hidden(call: Call, output: Any) -> List[Hidden]:
    """Arrays of floating point that `call.run` could read and is not handed, a quarter of the inputs or more: each large
    one, each module's, and all small ones together; not what it wrote its `output` to.

    Whole numbers are left out: in buffers of bytes lie semaphores and plans, and a kernel may never end without them. So is
    what cannot be changed for a moment (`memory`).
    """
    handed = [leaf for leaf in arrays.leaves(call.inputs) if arrays.count(leaf)]
    least = max(1.0, NOTABLE_SHARE * arrays.nbytes(handed))
    found: List[Hidden] = []
    small: List[Any] = []
    known: Set[Any] = set()
    devices, own, taken = arrays.devices(handed), memory.Own(), memory.Spans([handed, output])
    for owner, leaf in _Walk(call).arrays():
        try:
            place = arrays.place(leaf)
            if place in known or not _counts(leaf, devices) or taken.meet(leaf) or not own.has(leaf):
                continue
        except Exception:  # noqa: BLE001, S112 - tensors of a library's own kind, or not made yet: they have no memory to look at
            continue
        known.add(place)
        if owner is None and arrays.nbytes(leaf) >= least:
            found.append(Hidden("an array of {}".format("×".join(map(str, values.sizes(leaf)))), [leaf]))
        else:
            small.append(leaf)
    if small and arrays.nbytes(small) >= least:
        found.append(Hidden("arrays of {:.3g} MB".format(arrays.nbytes(small) / 1e6), small))
    return found


def _counts(leaf: Any, devices: Set[str]) -> bool:
    if not arrays.count(leaf) or not arrays.devices(leaf) <= devices:
        return False
    return arrays.is_floating(leaf)


class _Walk:
    """Every array within reach of a call's function."""

    def __init__(self, call: Call) -> None:
        self._start = [call.run, call.inputs]
        self._handed = set(map(id, _things(call.inputs)))
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
            try:
                owner, leaves, within = self._look_at(value)
            except Exception:  # noqa: BLE001, S112 - a user's object may do anything when it is asked for its parts
                continue
            todo += within
            for leaf in leaves:
                yield owner, leaf

    def _look_at(self, value: Any) -> Tuple[Any, List[Any], List[Any]]:
        """(the module, arrays, what else to look at)."""
        if arrays.is_tensor(value) or arrays.is_array(value):
            return None, list(arrays.leaves(value)), []
        if arrays.is_module(value):
            return value, list(value.parameters()) + list(value.buffers()), []
        return None, [], [part for part in self._within(value) if not isinstance(part, _PLAIN)]

    def _within(self, value: Any) -> Iterable[Any]:
        if isinstance(value, dict):
            return value.values()
        if isinstance(value, (tuple, list, set, frozenset)):
            return value
        if isinstance(value, functools.partial):
            return [value.func, value.args, value.keywords]
        if isinstance(value, types.MethodType):
            return [value.__func__, value.__self__]
        if isinstance(value, (staticmethod, classmethod)):
            return [value.__func__]
        if isinstance(value, types.FunctionType):
            return self._of_function(value)
        if isinstance(value, types.ModuleType):
            return []
        if isinstance(value, type):
            return vars(value).values() if self._is_own(value) else []
        if not self._is_own(type(value)) and not isinstance(value, types.SimpleNamespace):
            # Of a library's objects those that are handed over: a sparse matrix, say, is three arrays.
            return (
                [*getattr(value, "__dict__", {}).values(), *_slots(value)]
                if id(value) in self._handed
                else []
            )
        return list(getattr(value, "__dict__", {}).values()) + _slots(value) + list(type(value).__mro__)

    def _of_function(self, function: types.FunctionType) -> List[Any]:
        found: List[Any] = [function.__defaults__, function.__kwdefaults__, _wrapped(function)]
        for cell in function.__closure__ or ():
            try:
                found.append(cell.cell_contents)
            except ValueError:
                continue  # not bound yet
        if function.__globals__ is self._globals:
            found += map(function.__globals__.get, _names(function.__code__))
        return found

    def _is_own(self, kind: type) -> bool:
        """Whether a class is of the payload's script: what libraries keep in theirs is their own affair."""
        return self._globals is not None and kind.__module__ == self._globals.get("__name__")


def _things(inputs: Any) -> Iterator[Any]:
    """What a nest holds."""
    if isinstance(inputs, (tuple, list)):
        for item in inputs:
            yield from _things(item)
    elif isinstance(inputs, dict):
        for item in inputs.values():
            yield from _things(item)
    else:
        yield inputs


def _names(code: types.CodeType) -> Iterator[str]:
    """Every name that a function may look up, also those of the functions within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _slots(value: Any) -> List[Any]:
    found: List[Any] = []
    for kind in type(value).__mro__:
        for part in vars(kind).values():
            if isinstance(part, types.MemberDescriptorType):
                try:
                    found.append(part.__get__(value))
                except AttributeError:
                    continue  # empty
    return found


def _wrapped(function: Any) -> Any:
    """What a decorator put `function` around (`functools.wraps`), or None."""
    return getattr(function, "__wrapped__", None)


def _innermost(function: Any) -> Any:
    """The function that a payload wrote: behind partials, methods, decorators, or its object that can be called."""
    for _ in range(100):
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, types.MethodType):
            function = function.__func__
        elif isinstance(function, types.FunctionType) and _wrapped(function) is None:
            return function
        elif isinstance(function, types.FunctionType):
            function = _wrapped(function)
        else:
            function = getattr(type(function), "__call__", None)  # noqa: B004 - it is that function that is wanted
    return None
