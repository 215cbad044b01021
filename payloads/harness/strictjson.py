"""Anything a benchmark may return, as strict JSON: nothing is lost because of a NaN, a numpy scalar or a path."""

from __future__ import annotations

import json
import math
import os
from typing import Any, Dict, List, Tuple

MAX_DEPTH = 32


def plain(value: Any) -> Tuple[Any, List[str]]:
    """(JSON value, problems): what JSON cannot say becomes null, and `problems` says where and what it was
    ("metrics.b is infinite")."""
    problems: List[str] = []
    return _plain(value, "", problems, 0), problems


def dumps(value: Any) -> str:
    """One line of ASCII, strict JSON of a value that `plain` returned."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def _plain(value: Any, where: str, problems: List[str], depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return _finite(float(value), where, problems)
    if depth > MAX_DEPTH:
        return _text(repr(type(value)))
    if isinstance(value, dict):
        return _mapping(value, where, problems, depth)
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
        return [_plain(item, "{}[{}]".format(where, i), problems, depth + 1) for i, item in enumerate(items)]
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, os.PathLike):
        return _text(os.fsdecode(os.fspath(value)))
    for method in ("tolist", "isoformat"):  # numpy and torch values; dates
        if callable(getattr(value, method, None)):
            return _plain(getattr(value, method)(), where, problems, depth + 1)
    return _text(str(value))


def _mapping(value: Dict[Any, Any], where: str, problems: List[str], depth: int) -> Dict[str, Any]:
    result = {}
    for key, item in value.items():
        name = _text(key if isinstance(key, str) else str(key))
        result[name] = _plain(item, "{}.{}".format(where, name) if where else name, problems, depth + 1)
    return result


def _finite(value: float, where: str, problems: List[str]) -> Any:
    if math.isfinite(value):
        return value
    problems.append("{} is {}".format(where or "the value", "NaN" if math.isnan(value) else "infinite"))
    return None


def _text(value: str) -> str:
    # A lone surrogate is no character: strict readers refuse its escape.
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
