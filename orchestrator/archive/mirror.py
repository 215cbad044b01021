"""An archive in object storage, as a folder: what a command reads of it is copied to a folder that goes with the command.

`run.json` and notes come for every run, the rest of a run when it is asked for; Parquet files are never copied, DuckDB
reads them where they are.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path

from orchestrator.archive.objects import Objects
from orchestrator.archive.paths import COMMITTED, OPEN

_HEAD = "run.json"
_NOTES = "notes"
_LEFT_THERE = ("results.parquet", "logs/", "collected/", "imported/", "coordinator.lock")
_DEEPEST, _LONGEST_NAME = 32, 255


class Mirror:
    """The copy. `path` is its folder, laid out as an archive; nothing is read before `refresh`."""

    def __init__(self, url: str, environ: Mapping[str, str]) -> None:
        self.url = url
        self.objects = Objects(url, environ)
        parent = Path(tempfile.mkdtemp(prefix="farbench-objects-"))
        weakref.finalize(self, shutil.rmtree, parent, True)
        self.path = parent / url.replace("//", "/", 1)
        self.path.mkdir(parents=True)
        self._there: dict[str, None] = {}  # in order
        self._here: set[str] = set()

    def refresh(self) -> None:
        """See what there is now. Raises `ArchiveError`."""
        self._there = dict.fromkeys(name for name in self.objects.names() if _is_plain(name))
        for kind in (OPEN, COMMITTED):  # what is no run is seen too
            for name in self._there:
                head, _, rest = name.partition("/")
                if head == kind and rest:
                    self._see(kind, rest)
        heads = [name for name in self._there if _is_head(name)]
        self._fetch(name for name in heads if name not in self._here or not name.startswith(f"{COMMITTED}/"))

    def bring(self, folder: Path, *, everything: bool = False) -> None:
        """Copy the files of a run that are not here yet: those that reports read, or all. Raises `ArchiveError`."""
        start = folder.relative_to(self.path).as_posix() + "/"
        names = [name for name in self._there if name.startswith(start) and name not in self._here]
        self._fetch(n for n in names if everything or not n.removeprefix(start).startswith(_LEFT_THERE))

    def has(self, path: Path) -> bool:
        """Whether there is such an object."""
        return path.relative_to(self.path).as_posix() in self._there

    def address(self, path: Path) -> str:
        """The address of what `path` is a copy of, or would be."""
        return f"{self.url}/{path.relative_to(self.path).as_posix()}"

    def told(self, words: str) -> str:
        """A message with the addresses of files in place of their copies."""
        return words.replace(str(self.path), self.url)

    def _see(self, kind: str, name: str) -> None:
        first, slash, _ = name.partition("/")
        seen = self.path / kind / first
        if slash:
            seen.mkdir(parents=True, exist_ok=True)
        elif not seen.exists():
            seen.parent.mkdir(parents=True, exist_ok=True)
            seen.touch()

    def _fetch(self, names: Iterable[str]) -> None:
        for name, content in self.objects.read(list(names)):
            target = self.path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            self._here.add(name)


def _is_head(name: str) -> bool:
    parts = name.split("/")
    if parts[0] == _NOTES:
        return len(parts) == 2 and parts[1].endswith(".json")
    return len(parts) == 3 and parts[0] in (OPEN, COMMITTED) and parts[2] == _HEAD


def _is_plain(name: str) -> bool:
    """Whether an object may be copied by its name: what is called `../x` would lie elsewhere."""
    parts = name.split("/")
    return len(parts) <= _DEEPEST and not any(
        part in ("", ".", "..") or "\0" in part or len(os.fsencode(part)) > _LONGEST_NAME for part in parts
    )
