"""Writing what a command made into a file that the user named."""

from __future__ import annotations

from pathlib import Path

from orchestrator.cli.console import say
from orchestrator.errors import FileError


def write_text(path: Path, text: str) -> None:
    """Write it, with a newline at its end, and say so. Raises `FileError`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
    except OSError as error:
        raise FileError(f"cannot be written: {error.strerror}", path=path) from error
    say(f"wrote {path}")
