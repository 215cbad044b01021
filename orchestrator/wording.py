"""How text and numbers are shown: foreign text inert on one line, numbers with three or four significant digits."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

_HIDDEN = {"Cc", "Cs", "Zl", "Zp"}
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")
"""Characters that would turn or hide the text around them."""


def visible(text: str, limit: int | None = None) -> str:
    r"""Text in which nothing acts: control, line-breaking and direction characters become `\x1b`, `\n`, `\u202e`.

    With `limit`, at most that many characters, the last an ellipsis."""
    if text.isprintable() and (limit is None or len(text) <= limit):
        return text
    shown = "".join(_escaped(c) if unicodedata.category(c) in _HIDDEN or c in _BIDI else c for c in text)
    if limit is not None and len(shown) > limit:
        shown = shown[: limit - 1] + "…"
    return shown


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def number(value: float | None, digits: int = 4) -> str:
    """A number with `digits` significant digits and no exponent between 0.0001 and 10⁹; whole digits are never cut.

    >>> [number(x) for x in (12.3456, 1234.56, 0.0123456, 123456.7)]
    ['12.35', '1235', '0.01235', '123457']
    """
    if value is None:
        return ""
    if value == 0:
        return "0"
    if not 1e-4 <= abs(value) < 1e9:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(0, digits - _whole_digits(value, digits))}f}"


def ratio(value: float) -> str:
    """A speed-up: `1.45×`, `12.3×`, `0.0871×`."""
    decimals = 2 if 0.1 <= value < 1 else max(0, 3 - _whole_digits(value, 3))
    return f"{value:.{decimals}f}×"


def some_of(names: Sequence[str], most: int = 3) -> str:
    """Names in a sentence, the last ones as a number where there are many.

    >>> some_of(["cpu-0", "cpu-1"]), some_of([f"cpu-{n}" for n in range(8)])
    ('cpu-0, cpu-1', 'cpu-0, cpu-1, cpu-2 and 5 more')
    """
    if len(names) <= most + 1:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


def _whole_digits(value: float, digits: int) -> int:
    """Digits before the point once rounded to `digits`; zero or less for a value below one."""
    return math.floor(math.log10(abs(float(f"{value:.{digits}g}")))) + 1


def share(value: float) -> str:
    """A fraction as per cent: `41%`."""
    return f"{100 * value:.{0 if value >= 0.1 else 1}f}%"


def assignments(values: Mapping[str, Any]) -> str:
    """`m=16 n=2048`; strings as they are, everything else as JSON."""
    return " ".join(
        f"{key}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for key, value in values.items()
    )


def tally(counts: Mapping[str, int], order: tuple[str, ...]) -> str:
    """`10 ok, 1 error`: the counts that are not zero, known words first."""
    words = [*order, *sorted(set(counts) - set(order))]
    return ", ".join(f"{counts[word]} {word}" for word in words if counts.get(word))


def without_name(host: str, error: str) -> str:
    """What a host says of itself, for a place where its name stands already."""
    return error.strip().removeprefix(f"{host}: ")
