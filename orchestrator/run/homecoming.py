"""Bringing files of a run home from a host: what script payloads asked to keep, and the workers' logs."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from orchestrator.archive import OpenRun, RunFolder
from orchestrator.archive.faults import reading, writing
from orchestrator.errors import ArchiveError, HostUnusable
from orchestrator.launch.dialogue import Dialogue, RemoteFile
from orchestrator.launch.fetching import Fetched, fetch

FILE_LIMIT_BYTES = 2 * 2**30
HOST_LIMIT_BYTES = 16 * 2**30
"""The most that is brought of one file, and of all files of a host in one go: a host says how much there is, and a file
full of holes costs it nothing."""
COLLECTED = "collected/"
NAME_ERRORS = (errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)
SAID_EVERY_S = 2.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Shelf:
    """Where the files of one host are kept. `save` keeps one, named as the host lists it, and says where; `places` are
    where it may be already: first its own, then those where a copy could lie."""

    save: Callable[[str, Iterator[bytes]], Path]
    places: Callable[[str], Sequence[Path]]


def shelf_of(run: OpenRun, host: str) -> Shelf:
    """In the folder of an open run."""
    return Shelf(partial(run.save_file, host), lambda path: [place_of(run.folder, host, path)])


def place_of(folder: RunFolder, host: str, path: str) -> Path:
    """Where a run's folder keeps a file that the host lists as `path`."""
    top, _, rest = path.partition("/")
    return (folder.collected(host) if f"{top}/" == COLLECTED else folder.logs(host)) / rest


def collects(job: Mapping[str, Any]) -> bool:
    """Whether a payload of the job asked to keep files."""
    return any(payload.get("collect") for payload in job["payloads"].values())


def bring_collected(run: OpenRun, host: str, dialogue: Dialogue, say: Say) -> list[str]:
    """Bring what a host's payloads asked to keep into the open run; what is here already is not brought again.

    Returns what could not be brought, and why: one file is no reason to hold up a run. Raises `HostUnreachable` when the
    link breaks, `ArchiveError` when nothing can be written here."""
    problems: list[str] = []
    try:
        listed = [f for f in dialogue.list_files(run.run_id) if f.path.startswith(COLLECTED)]
        for _ in _bring_each(dialogue, run.run_id, listed, shelf_of(run, host), problems, say):
            pass
    except HostUnusable as error:
        problems.append(f"collected files are not brought home: {error.bare_message}")
    return problems


def bring(
    dialogue: Dialogue, run_id: str, shelf: Shelf, problems: list[str], say: Say
) -> Iterator[tuple[Path, int]]:
    """Bring every log and collected file of a host that is not here yet; (where it is now, its bytes) of each. `problems`
    takes what could not be brought, as above."""
    return _bring_each(dialogue, run_id, dialogue.list_files(run_id), shelf, problems, say)


def _bring_each(
    dialogue: Dialogue, run_id: str, files: Sequence[RemoteFile], shelf: Shelf, problems: list[str], say: Say
) -> Iterator[tuple[Path, int]]:
    wanted: dict[str, RemoteFile] = {}
    left = HOST_LIMIT_BYTES
    for file in files:
        if file.size > min(FILE_LIMIT_BYTES, left):
            problems.append(_too_large(file.path, left))
        else:
            wanted[file.path] = file
            left -= file.size
    here = {path: _copy_of(file, shelf) for path, file in wanted.items()}
    hashes = {path: None if copy is None else _sha256(copy) for path, copy in here.items()}
    left, last = HOST_LIMIT_BYTES, None
    for number, came in enumerate(_fetched(dialogue, run_id, hashes), 1):
        if last is None or time.monotonic() - last >= SAID_EVERY_S:
            last = time.monotonic()
            say(f"bringing home {number}/{len(wanted)} files")
        left -= came.size if came.content is not None else 0
        try:
            if came.is_large or left < 0:
                problems.append(_too_large(came.path, left))
            elif came.error is not None:
                problems.append(f"{came.path} is not brought home: {_reason(came)}")
            else:
                yield _keep(came, here[came.path], shelf), came.size
        except (ArchiveError, OSError) as error:
            if not _of_this_file(error):
                raise
            problems.append(f"{came.path} is not brought home: {_last_line(error)}")
        if left < 0:
            problems.append(f"{len(wanted) - number} more files are not brought home, as they come after it")
            return


def _fetched(dialogue: Dialogue, run_id: str, hashes: Mapping[str, str | None]) -> Iterator[Fetched]:
    """A large file waits in the folder for temporary files, which may have no room for it."""
    with writing(_temporary_folder()):
        yield from fetch(dialogue, run_id, hashes, FILE_LIMIT_BYTES)


def _temporary_folder() -> Path:
    try:
        return Path(tempfile.gettempdir())
    except OSError:  # not one can be written; few files are so large that they need it
        return Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - only named


def _too_large(path: str, left: int) -> str:
    alone = left >= FILE_LIMIT_BYTES
    whose, most = ("one file", FILE_LIMIT_BYTES) if alone else ("all files of a host", HOST_LIMIT_BYTES)
    return f"{path} is not brought home: it is larger than what is brought of {whose} ({most / 2**30:g} GiB)"


def _copy_of(file: RemoteFile, shelf: Shelf) -> Path | None:
    """What is here of that name and size."""
    for place in shelf.places(file.path):
        try:
            if place.is_file() and place.stat().st_size == file.size:
                return place
        except OSError:
            continue  # a name that this system cannot have
    return None


def _keep(came: Fetched, copy: Path | None, shelf: Shelf) -> Path:
    if came.content is not None:
        return shelf.save(came.path, _pieces(came.content))
    if copy is None:
        raise ArchiveError("the host says that it is here already, which it is not")
    if copy == shelf.places(came.path)[0]:
        return copy
    with reading(copy), copy.open("rb") as content:
        return shelf.save(came.path, _pieces(content))


def _of_this_file(error: Exception) -> bool:
    """Whether other files may fare better: a name is to blame, not a full disk here."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return not isinstance(cause, OSError) or cause.errno in NAME_ERRORS


def _reason(came: Fetched) -> str:
    return "its name there is not UTF-8" if "\N{REPLACEMENT CHARACTER}" in came.path else str(came.error)


def _last_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[-1].strip() if lines else type(error).__name__


def _sha256(path: Path) -> str | None:
    """None for what cannot be read: it comes again, in its place."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(1024 * 1024):
        yield piece
