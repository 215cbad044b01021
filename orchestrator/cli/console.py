"""The two streams of the command: data on standard output, everything else on standard error.

Neither ever reads Rich markup out of text: labels such as `[bs=8]` are printed as they are.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console

out = Console(markup=False, highlight=False, emoji=False, soft_wrap=False)
err = Console(stderr=True, markup=False, highlight=False, emoji=False)


def say(text: str) -> None:
    """A message for a person."""
    err.print(text, soft_wrap=True)


def warn(text: str) -> None:
    """Something a person should know that stops nothing."""
    err.print(f"warning: {text}", soft_wrap=True, style="yellow")


def print_json(document: Any) -> None:
    """One strict JSON document on standard output."""
    sys.stdout.write(json.dumps(document, ensure_ascii=False, allow_nan=False, indent=2) + "\n")


def print_text(text: str) -> None:
    """Data as it is, with a newline at its end."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
