"""What pydantic finds wrong, told in terms of the file: its lines, its keys, and the key that was probably meant."""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from .document import Document, Fault, Loc

M = TypeVar("M", bound=BaseModel)


def suggestion(name: str, known: Iterable[str]) -> str:
    """`" (did you mean 'backends'?)"`, or nothing when no known name is close."""
    by_lower = {k.lower(): k for k in reversed(list(known))}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f" (did you mean {by_lower[close[0]]!r}?)" if close else ""


def kind(value: object) -> str:
    """What a value is, in the words of a YAML file."""
    words = {type(None): "null", bool: "a truth value", int: "a whole number", float: "a number", str: "text"}
    return words.get(type(value)) or ("a list" if isinstance(value, (list, tuple)) else "a mapping")


_CLASS = re.compile(r" or instance of \w+")
"""What users did not write and need not know."""


def validate(model: type[M], data: object, document: Document, loc: Loc = ()) -> M:
    """Check `data`, which stands at `loc`, against a pydantic model. Raises one `FileError` for all its faults."""
    try:
        return model.model_validate(data)
    except ValidationError as exc:
        raise document.errors(faults_of(exc, model, data, loc)) from None


def faults_of(exc: ValidationError, model: type[BaseModel], data: object, loc: Loc = ()) -> list[Fault]:
    """The faults pydantic found, in a user's words and at the document's places."""
    errors = exc.errors(include_url=False)
    errors = [error for error in errors if not _is_of_another_kind(error)] or errors
    return [_fault(error, model, data, loc) for error in errors]


def _is_of_another_kind(error: ErrorDetails) -> bool:
    """Whether it is the complaint of a union's plain member (`literal[…]`, `tuple[…]`) about a mapping, which was meant for
    another member."""
    member = error["loc"][-1] if error["loc"] else ""
    return isinstance(member, str) and member.endswith("]") and isinstance(error["input"], Mapping)


def _fault(error: ErrorDetails, model: type[BaseModel], data: object, loc: Loc) -> Fault:
    real = _real_loc(error["loc"], data)
    name = ".".join(str(step) for step in real)
    if error["type"] == "extra_forbidden":
        key, owner = str(real[-1]), ".".join(str(step) for step in real[:-1])
        known = _fields_at(model, error["loc"][:-1])
        hint = suggestion(key, known) or (f"; known are {', '.join(known)}" if known else "")
        message = f"unknown key {key!r}{f' in {owner}' if owner else ''}{hint}"
    elif error["type"] == "missing":
        message = f"{name} is missing"
    else:
        message = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
        message = message.replace("valid tuple", "list").replace("valid dictionary", "mapping")
        message = _CLASS.sub("", message)
        if error["type"] == "too_short":
            message = f"needs at least {error['ctx']['min_length']}, and has {error['ctx']['actual_length']}"
        elif error["type"] != "value_error":
            message += f", not {_shown(error['input'])}"
        message = f"{name}: {message}" if name else message
    return Fault(message, (*loc, *real))


def _shown(value: object) -> str:
    if isinstance(value, (dict, list, tuple)):
        return kind(value)
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else repr(value)


def _real_loc(loc: Loc, data: object) -> Loc:
    """`loc` without the steps that only pydantic knows (names of union members); a missing key stays at the end."""
    out: list[str | int] = []
    for position, step in enumerate(loc):
        found = False
        if isinstance(data, Mapping):
            found = step in data
        elif isinstance(data, (list, tuple)):
            found = isinstance(step, int) and step < len(data)
        if found:
            data = typing.cast(Any, data)[step]
        elif position < len(loc) - 1 or not isinstance(data, Mapping):
            continue
        out.append(step)
    return tuple(out)


def _fields_at(model: type[BaseModel], loc: Loc) -> list[str]:
    """Names of the fields that a model has at `loc`."""
    models = [model]
    for step in loc:
        named = [m for m in models if m.__name__ == step]
        inner = [
            found
            for m in models
            if step in m.model_fields
            for found in _models_in(m.model_fields[str(step)].annotation)
        ]
        models = named or inner or models
    return list(dict.fromkeys(name for m in models for name in m.model_fields))


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    arguments = typing.get_args(annotation)
    if arguments:
        return [found for inner in arguments for found in _models_in(inner)]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []
