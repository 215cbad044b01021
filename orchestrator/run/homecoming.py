"""Bringing files of a run home from a host: what script payloads asked to keep, and the workers' logs."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

from orchestrator.archive import OpenRun
from orchestrator.errors import ArchiveError, HostUnusable
from orchestrator.launch.dialogue import Dialogue, RemoteFile

PIECE_BYTES = 8 * 1024 * 1024
FILE_LIMIT_BYTES = 2 * 2**30
HOST_LIMIT_BYTES = 16 * 2**30
"""The most that is brought of one file, and of all files of a host in one go: a host says how much there is, and a file
full of holes costs it nothing."""
COLLECTED = "collected/"
NAME_ERRORS = (errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)

Save = Callable[[str, Iterator[bytes]], Path]
"""Keeps a file, named as the host lists it, and says where."""


def collects(job: Mapping[str, Any]) -> bool:
    """Whether a payload of the job asked to keep files."""
    return any(payload.get("collect") for payload in job["payloads"].values())


def bring_collected(run: OpenRun, host: str, dialogue: Dialogue) -> list[str]:
    """Bring what a host's payloads asked to keep into the open run; what is here already is not brought again.

    Returns what could not be brought, and why: one file is no reason to hold up a run. Raises `HostUnreachable` when the
    link breaks, `ArchiveError` when nothing can be written here."""
    try:
        listed = dialogue.list_files(run.run_id)
    except HostUnusable as error:
        return [f"collected files are not brought home: {error.bare_message}"]
    problems: list[str] = []
    lacking = [f for f in listed if f.path.startswith(COLLECTED) and _size(run, host, f) != f.size]
    for _ in _bring_each(dialogue, run.run_id, lacking, partial(run.save_file, host), problems):
        pass
    return problems


def bring(dialogue: Dialogue, run_id: str, save: Save, problems: list[str]) -> Iterator[tuple[Path, int]]:
    """Bring every log and collected file of a host; (where it is now, its bytes) of each. `problems` takes what could not
    be brought, as above."""
    return _bring_each(dialogue, run_id, dialogue.list_files(run_id), save, problems)


def _bring_each(
    dialogue: Dialogue, run_id: str, files: Sequence[RemoteFile], save: Save, problems: list[str]
) -> Iterator[tuple[Path, int]]:
    left = HOST_LIMIT_BYTES
    for file in files:
        limit = min(FILE_LIMIT_BYTES, left)
        try:
            path, size = _bring(dialogue, run_id, file, save, limit)
            left -= size
            yield path, size
        except _TooLarge:
            whose = "one file" if limit == FILE_LIMIT_BYTES else "all files of a host"
            most = FILE_LIMIT_BYTES if limit == FILE_LIMIT_BYTES else HOST_LIMIT_BYTES
            problems.append(
                f"{file.path} is not brought home: it is larger than what is brought of {whose} ({most / 2**30:g} GiB)"
            )
        except (HostUnusable, ArchiveError, OSError) as error:
            if not _of_this_file(error):
                raise
            problems.append(f"{file.path} is not brought home: {_reason(file, error)}")


def _of_this_file(error: Exception) -> bool:
    """Whether other files may fare better: the host or a name is to blame, not the link or a full disk here."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(error, HostUnusable) or not isinstance(cause, OSError) or cause.errno in NAME_ERRORS


def _reason(file: RemoteFile, error: Exception) -> str:
    if "\N{REPLACEMENT CHARACTER}" in file.path and isinstance(error, HostUnusable):
        return "its name there is not UTF-8"
    lines = (error.bare_message if isinstance(error, HostUnusable) else str(error)).splitlines()
    return lines[-1].strip() if lines else type(error).__name__


class _TooLarge(Exception):
    pass


def _bring(dialogue: Dialogue, run_id: str, file: RemoteFile, save: Save, limit: int) -> tuple[Path, int]:
    """Fetched first and saved then: who saves may hold up everybody else meanwhile. Raises `_TooLarge` also where a host
    sends more than it announced."""
    if file.size > limit:
        raise _TooLarge
    with tempfile.TemporaryFile() as held:
        size = 0
        while True:
            part = dialogue.read(run_id, file.path, size, PIECE_BYTES)
            held.write(part.data)
            size += len(part.data)
            if size > limit:
                raise _TooLarge
            if not part.data or size >= part.size:
                break
        held.seek(0)
        return save(file.path, _pieces(held)), size


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(1024 * 1024):
        yield piece


def _size(run: OpenRun, host: str, file: RemoteFile) -> int | None:
    path = run.folder.collected(host) / file.path.removeprefix(COLLECTED)
    return path.stat().st_size if path.is_file() else None
