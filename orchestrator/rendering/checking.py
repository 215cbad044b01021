"""Whether a rendered script is Python, and where not: in the script, which a user never sees, and in the template."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Sequence

from orchestrator.errors import FileError
from orchestrator.wording import visible

from .catalogue import Template

_AROUND = 2
_LONGEST_LINE = 120


def check_python(script: str, template: Template) -> None:
    """Raise `FileError` unless `script`, rendered from `template`, is Python: with the script's lines around the fault,
    and the template's line where that one is not made of data."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # No file has this name: Python would quote that file's line instead of the script's.
            compile(script, "<the rendered script>", "exec", dont_inherit=True)
    except SyntaxError as exc:
        lines = _lines(script)
        if exc.lineno is None or not 0 < exc.lineno <= len(lines):
            raise FileError(f"renders to no Python: {exc.msg}", path=template.path) from None
        raise FileError(
            f"renders to no Python: {exc.msg}, line {exc.lineno} of the script:\n{_around(lines, exc.lineno)}",
            path=template.path,
            line=_line_of_template(lines, exc.lineno, template),
        ) from None
    except (ValueError, RecursionError, MemoryError) as exc:
        raise FileError(f"renders to no Python: {exc}", path=template.path) from None


def _lines(text: str) -> list[str]:
    """Lines as Python counts them; a form feed ends none."""
    return re.split(r"\r\n|\r|\n", text)


def _around(lines: Sequence[str], number: int) -> str:
    """The line `number` (1-based), marked, and those around it."""
    first, last = max(1, number - _AROUND), min(len(lines), number + _AROUND)
    return "\n".join(
        f"{'>' if at == number else ' '} {at:{len(str(last))}} | {visible(lines[at - 1], _LONGEST_LINE)}".rstrip()
        for at in range(first, last + 1)
    )


def _line_of_template(lines: Sequence[str], number: int, template: Template) -> int | None:
    """Where the template has that line of the script; None for one that it makes of data, or takes from elsewhere."""
    matcher = difflib.SequenceMatcher(None, lines, _lines(template.source), autojunk=False)
    for start, in_template, length in matcher.get_matching_blocks():
        if start < number <= start + length:
            return in_template + number - start
    return None
