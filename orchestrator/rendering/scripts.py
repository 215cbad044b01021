"""Rendering a payload template to a Python script.

Data reaches a script in one way only: the filter `literal` turns a value into an ASCII Python string literal that
holds JSON. Printing anything else is refused, so no value can become code, and none is rendered a second time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import jinja2
from jinja2.runtime import Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from orchestrator.errors import FileError

from .catalogue import Template
from .checking import check_python

_TAKEN = sys.stdlib_module_names | {
    "cupti",
    "flashinfer",
    "numpy",
    "pynvml",
    "sgl_kernel",
    "sglang",
    "torch",
    "triton",
}
"""What a script beside it must not hide: Python looks for modules in the script's folder first."""


def script_name(payload: str) -> str:
    """The file that a payload renders to: `NAME.py`, or `NAME_payload.py` where that would be imported as the module of
    that name (`copy` is one)."""
    return f"{payload}_payload.py" if payload in _TAKEN else f"{payload}.py"


class _Literal(str):
    """Text that came out of the filter `literal`."""

    __slots__ = ()


class _NotALiteral(jinja2.TemplateRuntimeError):
    pass


def literal(value: object) -> str:
    """An ASCII Python string literal of the JSON of `value`: `json.loads` of it gives the value back.

    Raises `jinja2.TemplateRuntimeError` for what is not JSON (NaN and infinities too).
    """
    if isinstance(value, Undefined):
        str(value)  # StrictUndefined raises, with the name
    try:
        _require_json(value)
        text = json.dumps(value, ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise jinja2.TemplateRuntimeError(f"literal: {exc}") from None
    return _Literal(ascii(text))


def _require_json(value: object) -> None:
    """`json.dumps` would silently turn keys into text and tuples into lists; what arrives must be what was sent."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is no text")
            _require_json(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _require_json(inner)
    elif isinstance(value, Undefined):
        str(value)


def _only_literals(value: object) -> object:
    if isinstance(value, Undefined):
        str(value)
    if not isinstance(value, _Literal):
        raise _NotALiteral(
            "data is printed through the filter `literal` only: json.loads({{ cases | literal }})"
        )
    return value


def _environment(folder: Path) -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        loader=jinja2.FileSystemLoader(folder),
        undefined=jinja2.StrictUndefined,
        finalize=_only_literals,
        autoescape=False,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["literal"] = literal
    return environment


def render(template: Template, items: Sequence[Mapping[str, Any]]) -> str:
    """The script of a template for these queue items, checked to be Python.

    Raises `FileError` with the template's line for a mistake in it; for Python that is none with the script's lines around it as well.
    """
    environment = _environment(template.path.parent)
    try:
        code = environment.compile(template.source, template.name, str(template.path))
        compiled = jinja2.Template.from_code(environment, code, environment.make_globals(None))
        script = compiled.render(payload=template.name, cases=list(items))
    except jinja2.TemplateSyntaxError as exc:
        raise FileError(str(exc.message), path=exc.filename or template.path, line=exc.lineno) from None
    except jinja2.TemplateNotFound as exc:
        line = _line_in(exc.__traceback__, template.path)
        raise FileError(f"no template {exc.name!r} beside it", path=template.path, line=line) from None
    except jinja2.TemplateError as exc:
        line = _line_in(exc.__traceback__, template.path)
        raise FileError(str(exc.message), path=template.path, line=line) from None
    except Exception as exc:  # noqa: BLE001 - a template may run any expression; whatever it raises is its own mistake
        line = _line_in(exc.__traceback__, template.path)
        raise FileError(f"{type(exc).__name__}: {exc}", path=template.path, line=line) from None
    check_python(script, template)
    return script


def _line_in(traceback: TracebackType | None, path: Path) -> int | None:
    """Jinja rewrites tracebacks so that they run through the template's own lines."""
    line = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == str(path):
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line
