"""Finding payload templates: the user's own in ./payloads first, then the built-in ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orchestrator
from orchestrator.errors import UsageError
from orchestrator.yamlfile import read_text, suggestion

from .header import Header, read_header

SUFFIX = ".py.j2"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Template:
    """A payload template: its text with `\\n` line ends, and its header."""

    name: str
    path: Path
    source: str
    header: Header
    builtin: bool = False

    def describe(self) -> dict[str, Any]:
        """All that a person needs to use it, as JSON."""
        header = self.header
        parameters = header.parameters or {}
        return {
            "name": self.name,
            "path": str(self.path),
            "builtin": self.builtin,
            "summary": header.summary,
            "parameters": {
                name: {**p.model_dump(exclude_unset=True), "type": p.type, "required": p.required}
                for name, p in parameters.items()
            },
            "backends": dict(header.backends or {}),
            "accuracy": header.accuracy.model_dump(exclude_none=True) if header.accuracy else {},
        }


class Catalogue:
    """The templates of some folders; a name found in an earlier folder hides the same name in later ones."""

    def __init__(self, search_path: Sequence[Path]) -> None:
        self.search_path = tuple(search_path)

    @classmethod
    def default(cls, cwd: Path) -> Catalogue:
        """`./payloads` of a working directory, then what comes with farbench."""
        own = cwd / "payloads"
        return cls(
            [own, builtin_folder()] if own.resolve() != builtin_folder().resolve() else [builtin_folder()]
        )

    def names(self) -> list[str]:
        """Every name that `find` knows, in alphabetical order."""
        found = {
            p.name.removesuffix(SUFFIX) for folder in self.search_path for p in folder.glob(f"*{SUFFIX}")
        }
        return sorted(name for name in found if _NAME.fullmatch(name))

    def find(self, name: str) -> Template:
        """The template called `name`. Raises `UsageError` for an unknown one, `FileError` for a broken header."""
        if _NAME.fullmatch(name):
            for folder in self.search_path:
                path = folder / f"{name}{SUFFIX}"
                if path.exists():
                    source = read_text(path, "template")
                    builtin = folder.resolve() == builtin_folder().resolve()
                    return Template(name, path, source, read_header(path, source), builtin)
        names = self.names()
        places = ", ".join(str(folder) for folder in self.search_path)
        raise UsageError(
            f"no payload {name!r}{suggestion(name.removesuffix(SUFFIX).removesuffix('.py'), names)}; "
            f"there are: {', '.join(names) or 'none'} (looked in {places}; "
            "a program of your own is `payload: {script: …}`)"
        )

    def all(self) -> list[Template]:
        """Every template, by name."""
        return [self.find(name) for name in self.names()]


def builtin_folder() -> Path:
    """Where farbench's own payloads lie: inside the installed package, or beside it in a checkout."""
    package = Path(orchestrator.__file__).resolve().parent
    installed = package / "_payloads"
    return installed if installed.is_dir() else package.parent / "payloads"


def harness_files() -> dict[str, bytes]:
    """The files that payloads import, by path relative to the rendered scripts: `harness/….py`."""
    folder = builtin_folder()
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.glob("harness/**/*.py"))
    }
