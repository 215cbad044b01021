"""The header of a payload template: what a sweep may ask of it."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, JsonValue, field_validator

from orchestrator.sweep import Accuracy
from orchestrator.yamlfile import Document, suggestion, validate

_HEADER = re.compile(r"\s*\{#[-+]?[ \t]*farbench\b(?P<yaml>.*?)[-+]?#\}", re.DOTALL)
_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
    "list": (list,),
    "dict": (dict,),
}


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Parameter(_Spec):
    """One parameter of a payload. With a default (null counts) a sweep may leave it out."""

    type: Literal["int", "float", "str", "bool", "list", "dict", "any"] = "any"
    help: str = ""
    default: JsonValue = None
    choices: list[JsonValue] | None = None

    @property
    def required(self) -> bool:
        """Whether every case needs it."""
        return "default" not in self.model_fields_set

    def fault(self, value: Any) -> str | None:
        """What is wrong with a value, as the end of a sentence about it."""
        # a truth value is no number here, although Python counts it as one
        allowed = _TYPES.get(self.type)
        if allowed and (not isinstance(value, allowed) or (isinstance(value, bool) and self.type != "bool")):
            whole = isinstance(value, float) and value.is_integer() and self.type == "int"
            return f"is {json.dumps(value)}, not of type {self.type}" + (
                f"; write {int(value)}" if whole else ""
            )
        if self.choices is not None and not any(type(c) is type(value) and c == value for c in self.choices):
            hint = (
                suggestion(value, [c for c in self.choices if isinstance(c, str)])
                if isinstance(value, str)
                else ""
            )
            return f"is {json.dumps(value)}, which is none of {', '.join(json.dumps(c) for c in self.choices)}{hint}"
        return None


class Header(_Spec):
    """What is None is not checked. A backend `name:*` in `backends` allows every `name:…`."""

    summary: str = ""
    parameters: dict[str, Parameter] | None = None
    backends: dict[str, str] | None = None
    accuracy: Accuracy | None = None

    @field_validator("parameters", mode="before")
    @classmethod
    def _nothing_said_is_anything_goes(cls, value: Any) -> Any:
        return {k: {} if v is None else v for k, v in value.items()} if isinstance(value, dict) else value

    @field_validator("backends", mode="before")
    @classmethod
    def _a_backend_needs_no_words(cls, value: Any) -> Any:
        if isinstance(value, list) and all(isinstance(v, str) for v in value):
            return dict.fromkeys(value, "")
        return {k: "" if v is None else v for k, v in value.items()} if isinstance(value, dict) else value

    @property
    def default_backends(self) -> tuple[str, ...]:
        """Those measured when a sweep names none."""
        return tuple(name for name in self.backends or {} if "*" not in name)

    def knows_backend(self, name: str) -> bool:
        """Whether a sweep may ask for it."""
        return self.backends is None or any(fnmatch.fnmatchcase(name, known) for known in self.backends)

    def missing(self, given: Iterable[str]) -> list[str]:
        """Parameters that a case must set and does not."""
        have = set(given)
        return [name for name, p in (self.parameters or {}).items() if p.required and name not in have]


def read_header(path: Path, source: str) -> Header:
    """The header at the start of a template; an empty one where there is none. Raises `FileError`."""
    match = _HEADER.match(source)
    if match is None:
        return Header()
    first_line = source.count("\n", 0, match.start("yaml")) + 1
    document = Document(path, match["yaml"], first_line=first_line)
    if document.data is None:
        return Header()
    return validate(Header, document.mapping("a template's header"), document)
