"""Rendering the argument list of a script payload: each argument is a template of its own, and stays one argument."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from jinja2.runtime import Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from orchestrator.errors import FileError
from orchestrator.model import Case
from orchestrator.sweep import Argument
from orchestrator.yamlfile import suggestion


class _ItemsFirst(ImmutableSandboxedEnvironment):
    """`{{ shape.items }}` is the key `items` of a mapping before it is anything of Python's."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, Mapping):
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)


def _as_argument(value: object) -> str:
    """Text as it is, everything else as JSON."""
    if isinstance(value, (str, Undefined)):
        return str(value)
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


_ENVIRONMENT = _ItemsFirst(
    undefined=jinja2.StrictUndefined,
    finalize=_as_argument,
    autoescape=False,
    keep_trailing_newline=True,
)


@functools.lru_cache(maxsize=1024)
def _compiled(text: str) -> jinja2.Template:
    return _ENVIRONMENT.from_string(text)


def arguments(args: Sequence[Argument], case: Case, backend: str) -> list[str]:
    """The arguments for one case and backend. Templates see the parameters, and `backend`, `label`, `case_id` and
    `params` unless a parameter is called so.

    Raises `FileError` at the argument's line of the sweep.
    """
    params = dict(case.params)
    names = {"backend": backend, "label": case.label, "case_id": case.case_id, "params": params, **params}
    return [_render(argument, names) for argument in args]


def _render(argument: Argument, names: Mapping[str, Any]) -> str:
    if "{" not in argument.text:
        return _no_nul(argument.text, argument)
    try:
        return _no_nul(_compiled(argument.text).render(names), argument)
    except jinja2.UndefinedError as exc:
        unknown = str(exc.message)
        name = unknown.removesuffix(" is undefined").strip("'")
        hint = suggestion(name, names) if unknown.endswith(" is undefined") else ""
        message = f"argument {argument.text!r}: {unknown}{hint}; there are: {', '.join(names)}"
    except jinja2.TemplateError as exc:
        message = f"argument {argument.text!r}: {exc.message}"
    except FileError:
        raise
    except Exception as exc:  # noqa: BLE001 - an expression of the user's may raise anything; it is the sweep's mistake
        message = f"argument {argument.text!r}: {type(exc).__name__}: {exc}"
    raise FileError(message, path=argument.path, line=argument.line)


def _no_nul(text: str, argument: Argument) -> str:
    if "\0" in text:
        raise FileError("an argument cannot hold a NUL character", path=argument.path, line=argument.line)
    return text
