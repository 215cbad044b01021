"""Where what a command made goes: into the file that the user named, or to standard output."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.console import print_text, say, show
from orchestrator.errors import FileError

if TYPE_CHECKING:
    from rich.console import RenderableType


def deliver(content: str | RenderableType, path: Path | None) -> None:
    """Text goes anywhere as it is; what is to be laid out fits the terminal, and in a file is plain. Raises `FileError`."""
    if path is None:
        if isinstance(content, str):
            print_text(content)
        else:
            show(content)
        return
    if not isinstance(content, str):
        from orchestrator.report import to_text

        content = to_text(content)
    _write(path, content)


def _write(path: Path, text: str) -> None:
    """With a newline at its end."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
    except OSError as error:
        raise FileError(f"cannot be written: {error.strerror}", path=path) from error
    say(f"wrote {path}")
