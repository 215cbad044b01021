"""Anything a benchmark may return, as strict JSON: nothing is lost because of a NaN, a numpy scalar or a path."""

from __future__ import annotations

import json
import math
import os
from typing import Any, Dict, List, Tuple

MAX_DEPTH = 32
# A record is a line that hosts, archives and reports hold in memory: weights are no place for it.
MAX_ITEMS = 20_000
MAX_VALUES = 100_000
MAX_TEXT = 1_000_000
MAX_PROBLEMS = 20
# Python itself refuses to write, or read, integers of more than 4300 digits.
MAX_INTEGER_BITS = 4096


def plain(value: Any) -> Tuple[Any, List[str]]:
    """(JSON value, problems): what JSON cannot say becomes null, what is too large for a record is cut or a text that says so, and
    `problems` says where and what it was ("metrics.b is infinite")."""
    found = _Plain()
    clean = found.of(value, "", 0)
    told, more = found.problems[:MAX_PROBLEMS], len(found.problems) - MAX_PROBLEMS
    return clean, told + (["and {} more".format(more)] if more > 0 else [])


def dumps(value: Any) -> str:
    """One line of ASCII, strict JSON of a value that `plain` returned."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


class _Plain:
    def __init__(self) -> None:
        self.problems: List[str] = []
        self._values = 0

    def of(self, value: Any, where: str, depth: int) -> Any:
        self._values += 1
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._text(value, where)
        if isinstance(value, int):
            return self._integer(int(value), where)
        if isinstance(value, float):
            return self._finite(float(value), where)
        if depth > MAX_DEPTH:
            return self._text(repr(type(value)), where)
        if isinstance(value, (bytes, bytearray)):
            return self._text(bytes(value).decode("utf-8", "replace"), where)
        if isinstance(value, dict):
            return self._mapping(value, where, depth)
        if self._is_too_much(value):
            return self._left_out(value, where)
        if isinstance(value, (list, tuple, set, frozenset)):
            items = sorted(value, key=_said) if isinstance(value, (set, frozenset)) else value
            return [self.of(item, "{}[{}]".format(where, i), depth + 1) for i, item in enumerate(items)]
        if isinstance(value, os.PathLike):
            return self._text(os.fsdecode(os.fspath(value)), where)
        for method in ("tolist", "isoformat"):  # numpy and torch values; dates
            if callable(getattr(value, method, None)):
                return self.of(getattr(value, method)(), where, depth + 1)
        return self._text(_said(value, str), where)

    def _is_too_much(self, value: Any) -> bool:
        length = _length(value)
        return length > MAX_ITEMS or (length > 0 and self._values + length > MAX_VALUES)

    def _left_out(self, value: Any, where: str) -> str:
        text = "{} of {} values".format(type(value).__name__, _length(value))
        self.problems.append("{} is left out: a {}".format(where or "the value", text))
        return text

    def _mapping(self, value: Dict[Any, Any], where: str, depth: int) -> Dict[str, Any]:
        result = {}
        for number, (key, item) in enumerate(value.items()):
            # The fields of a record, and what they hold by name, stay as they are.
            if number == MAX_ITEMS or (depth > 1 and self._values > MAX_VALUES):
                self.problems.append("{} is cut: {} keys".format(where or "the value", len(value)))
                break
            name = self._text(key if isinstance(key, str) else _said(key, str), where)
            result[name] = self.of(item, "{}.{}".format(where, name) if where else name, depth + 1)
        return result

    def _integer(self, value: int, where: str) -> Any:
        if value.bit_length() <= MAX_INTEGER_BITS:
            return value
        self.problems.append("{} is too large an integer".format(where or "the value"))
        return None

    def _finite(self, value: float, where: str) -> Any:
        if math.isfinite(value):
            return value
        self.problems.append(
            "{} is {}".format(where or "the value", "NaN" if math.isnan(value) else "infinite")
        )
        return None

    def _text(self, value: str, where: str) -> str:
        if len(value) > MAX_TEXT:
            self.problems.append(
                "{} is cut: a text of {} characters".format(where or "the value", len(value))
            )
            value = value[:MAX_TEXT]
        # A lone surrogate is no character: strict readers refuse its escape.
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _length(value: Any) -> int:
    """How many values a container or an array holds; 0 for anything else."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return len(value)
    if not callable(getattr(value, "tolist", None)):
        return 0
    count = getattr(value, "numel", None)  # torch's `size` is a function
    size = count() if callable(count) else getattr(value, "size", 0)
    return size if isinstance(size, int) else 0


def _said(value: Any, words: Any = repr) -> str:
    try:
        return str(words(value))
    except Exception:  # noqa: BLE001 - an object of a user's own: that it has no words must not cost the measurement
        return "a {} without words".format(type(value).__name__)
