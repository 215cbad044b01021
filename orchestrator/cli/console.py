"""The two streams of the command: data on standard output, everything else on standard error.

Neither ever reads Rich markup out of text: labels such as `[bs=8]` are printed as they are. Rich itself is loaded
only where something is laid out or coloured.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from typing import TYPE_CHECKING, Any

from orchestrator.cli.streams import drop, emit, mention
from orchestrator.wording import visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


_ACTS = r"[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"


@functools.cache
def out() -> Console:
    """Standard output, for what is laid out."""
    from rich.console import Console

    class Output(Console):
        """Rich would end the command when its reader has left."""

        def on_broken_pipe(self) -> None:
            drop(sys.stdout)

    return Output(markup=False, highlight=False, emoji=False, soft_wrap=False)


@functools.cache
def err() -> Console:
    """Standard error, for live progress."""
    from rich.console import Console

    return Console(stderr=True, markup=False, highlight=False, emoji=False)


def show(renderable: RenderableType) -> None:
    """What is laid out, on standard output; for anything but a terminal without blanks at the ends of lines."""
    if out().is_terminal:
        out().print(renderable)
        return
    from orchestrator.report.table import to_text

    emit(to_text(renderable, width=out().width))


def say(text: str) -> None:
    """A message for a person."""
    mention("\n".join(map(visible, text.split("\n"))) + "\n")


def warn(text: str) -> None:
    """Something a person should know that stops nothing."""
    say(f"warning: {text}")


def print_json(document: Any) -> None:
    """One strict JSON document on standard output."""
    emit(json_text(document) + "\n")


def json_text(document: Any) -> str:
    """A strict JSON document, in which what ends a line or turns the text around it stands as `\\u2028`."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=2)
    return text if text.isascii() else re.sub(_ACTS, lambda match: f"\\u{ord(match[0]):04x}", text)


def print_text(text: str) -> None:
    """Data as it is, with a newline at its end."""
    emit(text if text.endswith("\n") else text + "\n")
