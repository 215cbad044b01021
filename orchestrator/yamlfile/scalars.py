"""What a plain scalar means: the core schema of YAML 1.2 (section 10.3.2), and where that surprises people."""

from __future__ import annotations

import re

JsonScalar = str | int | float | bool | None

_NULL = re.compile(r"null|Null|NULL|~|")
_BOOL = re.compile(r"(true|True|TRUE)|false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL_OR_HEX = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NON_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")

_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
_TRAILING_ZERO = re.compile(r"[-+]?[0-9]*\.[0-9]+0")
_LOOKS_BOOL = re.compile(r"yes|no|on|off", re.IGNORECASE)
_LOOKS_SEXAGESIMAL = re.compile(r"[-+]?[0-9]+(:[0-5]?[0-9])+")
_LOOKS_GROUPED = re.compile(r"[-+]?[0-9]+(_[0-9]+)+")

MAX_DIGITS = 4000


def resolve(text: str) -> JsonScalar:
    """The value of a plain scalar. Raises `ValueError` for numbers that JSON (and so a result) cannot hold."""
    if _NULL.fullmatch(text):
        return None
    if match := _BOOL.fullmatch(text):
        return match[1] is not None
    if _INT.fullmatch(text) or _OCTAL_OR_HEX.fullmatch(text):
        if len(text) > MAX_DIGITS:
            raise ValueError("this number has too many digits")
        return int(text, 10 if _INT.fullmatch(text) else 0)
    if _FLOAT.fullmatch(text):
        value = float(text)
        if value in (float("inf"), float("-inf")):
            raise ValueError(f"{text} is too large a number")
        return value
    if _NON_FINITE.fullmatch(text):
        raise ValueError(
            f"{text} is no value here: results are strict JSON, which has no such number (quote it for text)"
        )
    return text


def surprise(text: str, value: JsonScalar) -> str | None:
    """A warning where a plain scalar is not what YAML 1.1, or the eye, makes of it."""
    if type(value) is int and _LEADING_ZERO.fullmatch(text):
        return f"{text} is the decimal number {value} (octal is written 0o…; quote it for text)"
    if type(value) is float and _TRAILING_ZERO.fullmatch(text) and not text.endswith(".0"):
        return f"{text} is the number {value!r} (quote it for text)"
    if type(value) is str and _LOOKS_BOOL.fullmatch(text):
        return f"{text} is text, not a truth value (those are true and false)"
    if type(value) is str and _LOOKS_SEXAGESIMAL.fullmatch(text):
        return f"{text} is text, not a number of seconds or minutes"
    if type(value) is str and _LOOKS_GROUPED.fullmatch(text):
        return f"{text} is text, not a number (YAML 1.2 has no digit groups)"
    return None


def tagged(text: str, tag: str) -> JsonScalar:
    """The value of a scalar with an explicit tag (`int`, `float`, `bool`, `null`, `str`). Raises `ValueError`."""
    if tag == "str":
        return text
    value = resolve(text)
    if tag == "float" and type(value) is int:
        return float(value)
    if {int: "int", float: "float", bool: "bool", type(None): "null"}.get(type(value)) != tag:
        raise ValueError(f"{text!r} is no {tag}")
    return value
