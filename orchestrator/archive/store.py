"""The archive: the folder that keeps every run. Its folders are the truth; there is no index to go stale."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from orchestrator.archive import files, lock
from orchestrator.archive.document import RunDocument, read_document, write_document
from orchestrator.archive.openrun import OpenRun
from orchestrator.archive.paths import COMMITTED, OPEN, RUN_ID, RunFolder, new_run_id
from orchestrator.errors import ArchiveError

if TYPE_CHECKING:
    import duckdb

    from orchestrator.archive.mirror import Mirror

_LISTED = 10
_DIGITS = 6  # at the end of a run's id
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*?)/*")  # a `Path` has one slash left of two


class Archive:
    """The runs under one folder, which need not exist until the first run is created.

    `s3://bucket/prefix` is an archive that is only read; `path` is then the folder of what was copied of it so far."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.name = str(path)
        """The archive as people call it."""
        self.mirror: Mirror | None = None
        if address := _ADDRESS.fullmatch(self.name):
            self.name = _address(*address.groups())
            from orchestrator.archive.mirror import Mirror

            self.mirror = Mirror(self.name, os.environ)
            self.path = self.mirror.path

    def next_id(self, clock: Callable[[], float], randomness: Callable[[int], bytes]) -> str:
        """An id for a new run, as `new_run_id`, that sorts after those of the runs that began in the same second."""
        made = new_run_id(clock, randomness)
        second, drawn = made[:-_DIGITS], int(made[-_DIGITS:], 16)
        rivals = [entry.name for kind in (OPEN, COMMITTED) for entry in self._entries(kind)]
        last = max(
            (
                int(name[-_DIGITS:], 16)
                for name in rivals
                if name.startswith(second) and RUN_ID.fullmatch(name)
            ),
            default=-1,
        )
        room = 16**_DIGITS - 1 - last
        return f"{second}{last + 1 + drawn % room:0{_DIGITS}x}" if drawn <= last and room else made

    def create(
        self,
        run_id: str,
        run_document: Mapping[str, Any] | RunDocument,
        scripts: Mapping[str, bytes],
        others: Mapping[str, bytes] | None = None,
    ) -> OpenRun:
        """A new open run, already locked by the caller. It appears whole: document, scripts, other files and lock.

        `scripts` maps paths below `scripts/` to contents, `others` names in the run's folder. Raises `ArchiveError`."""
        self.require_folder()
        if not RUN_ID.fullmatch(run_id):
            raise ArchiveError(f"{run_id!r} cannot be the id of a run")
        document = RunDocument.model_validate({**_as_mapping(run_document), "run_id": run_id})
        folder = RunFolder(self.path / OPEN / run_id)
        if os.path.lexists(folder.path) or os.path.lexists(self.path / COMMITTED / run_id):
            raise ArchiveError(f"there is a run {run_id} in {self.path} already")
        draft = RunFolder(self.path / OPEN / f".new-{run_id}")
        try:
            shutil.rmtree(draft.path, ignore_errors=True)
            for name, content in scripts.items():
                files.make_folder((draft.scripts / _inside(name)).parent)
                # Not synced one by one: a loss of power in the next seconds may cost scripts, never a result.
                files.append(draft.scripts / _inside(name), content)
            files.make_folder(draft.path)
            for name, content in (others or {}).items():
                files.write_whole(draft.path / name, [content])
            write_document(draft.run_json, document)
            descriptor = lock.take(draft.lock)
            draft.path.rename(folder.path)
            files.sync_folder(folder.path.parent)
        except OSError as error:
            shutil.rmtree(draft.path, ignore_errors=True)
            raise ArchiveError(f"no run can be created in {self.path}: {error.strerror}") from error
        return OpenRun(folder, descriptor)

    def open_run(self, run_id: str) -> OpenRun:
        """An open run, not locked yet (`OpenRun.lock`). Raises `ArchiveError` when there is none by that id."""
        self.require_folder()
        folder = RunFolder(self.path / OPEN / run_id)
        if RUN_ID.fullmatch(run_id) and folder.run_json.is_file():
            return OpenRun(folder)
        if RUN_ID.fullmatch(run_id) and RunFolder(self.path / COMMITTED / run_id).run_json.is_file():
            raise ArchiveError(f"run {run_id} is complete and never changes again")
        raise ArchiveError(f"there is no open run {run_id} in {self.path}")

    def runs(self) -> list[RunFolder]:
        """Every run, open or committed, newest first."""
        return self.scan()[0]

    def scan(self) -> tuple[list[RunFolder], list[Path]]:
        """The runs, newest first, and whatever else lies among them (a damaged or foreign folder)."""
        self.refresh()
        found: dict[str, RunFolder] = {}
        strays = []
        for kind in (OPEN, COMMITTED):  # a run that moves meanwhile is seen at its new place
            for entry in self._entries(kind):
                folder = RunFolder(entry)
                if RUN_ID.fullmatch(entry.name) and _may_be_file(folder.run_json):
                    found[entry.name] = folder
                elif not entry.name.startswith(".") and os.path.lexists(entry):
                    strays.append(entry)
        return [found[run_id] for run_id in sorted(found, reverse=True)], sorted(strays)

    def find(self, text: str) -> RunFolder:
        """The run meant by `latest`, an id or a unique beginning of one. Raises `ArchiveError`, naming candidates."""
        folder = self._find(text)
        self.bring(folder)
        return folder

    def _find(self, text: str) -> RunFolder:
        runs = self.runs()
        if not runs:
            raise ArchiveError(f"there is no run in the archive yet ({self.name})")
        if text == "latest":
            return runs[0]
        matching = [run for run in runs if run.run_id.startswith(text)] if text else []
        exact = [run for run in matching if run.run_id == text]
        if exact or len(matching) == 1:
            return (exact or matching)[0]
        if matching:
            raise ArchiveError(f"{text!r} is the beginning of {len(matching)} runs:\n{_listing(matching)}")
        raise ArchiveError(f"there is no run {text!r} in {self.name}; the newest are:\n{_listing(runs)}")

    def state(self, run: RunFolder, document: RunDocument | None = None) -> str:
        """`running detached finished cancelled lost`. An open run is `running` while a coordinator holds its lock."""
        if document is None:
            document = read_document(run.run_json)
        if run.is_committed:
            return document.state
        if lock.is_held(run.lock):
            return "running"
        return "lost" if document.state == "lost" else "detached"

    def require_folder(self) -> None:
        """Raises `ArchiveError` for an archive that can only be read, whoever asks."""
        if self.mirror is not None:
            raise ArchiveError(
                f"{self.name} can only be read: name a folder with --archive, and bring what it holds there "
                f"with `aws s3 sync FOLDER {self.name}`, or any tool that copies files"
            )

    def refresh(self) -> None:
        """Where the archive is elsewhere, see what is there now. Raises `ArchiveError`."""
        if self.mirror is not None:
            self.mirror.refresh()

    def bring(self, folder: RunFolder, *, everything: bool = False) -> None:
        """Where the archive is elsewhere, copy the files of a run that reports read, or all. Raises `ArchiveError`."""
        if self.mirror is not None:
            self.mirror.bring(folder.path, everything=everything)

    def prepare(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Where the archive is elsewhere, teach a connection to read there. Raises `ArchiveError`."""
        if self.mirror is not None:
            self.mirror.objects.prepare(connection)

    def address(self, path: Path) -> str:
        """What DuckDB is to read for a file of the archive that is never copied."""
        return str(path) if self.mirror is None else self.mirror.address(path)

    def told(self, words: str) -> str:
        """A message in which files are named by where they really are."""
        return words if self.mirror is None else self.mirror.told(words)

    def _entries(self, kind: str) -> list[Path]:
        try:
            return list((self.path / kind).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            if self.path.exists() and not self.path.is_dir():
                raise ArchiveError(f"{self.path} is no folder") from None
            return []
        except OSError as error:
            raise ArchiveError(f"{self.path / kind} cannot be read: {error.strerror}") from None


def _address(scheme: str, rest: str) -> str:
    if scheme.lower() != "s3" or not rest or set(rest) & set("*?["):
        raise ArchiveError(
            f"{scheme}://{rest}: an archive is a folder, or s3://BUCKET/PREFIX (without any of *?[) to read from"
        )
    return f"s3://{rest}"


def _as_mapping(document: Mapping[str, Any] | RunDocument) -> Mapping[str, Any]:
    return document.as_json() if isinstance(document, RunDocument) else document


def _may_be_file(path: Path) -> bool:
    """Whether it is a file. One in a folder that may not be looked into may be one: reading it will say why it cannot be."""
    try:
        return path.is_file()
    except OSError:
        return True


def _inside(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or os.sep != "/":
        raise ArchiveError(f"a script cannot be kept as {name!r}")
    return str(path)


def _listing(runs: list[RunFolder]) -> str:
    lines = []
    for run in runs[:_LISTED]:
        try:
            lines.append(f"  {run.run_id}  {read_document(run.run_json).sweep.name}")
        except (ArchiveError, FileNotFoundError):
            lines.append(f"  {run.run_id}")
    if len(runs) > _LISTED:
        lines.append(f"  … and {len(runs) - _LISTED} more")
    return "\n".join(lines)
