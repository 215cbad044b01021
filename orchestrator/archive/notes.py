"""What people say about runs: a note and tags, kept beside the run folders, which never change.

`archive/notes/<run id>.json`, format 1: {"schema_version": 1, "run_id", "note": text, "tags": [name, …]}.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from orchestrator.archive import files, lock
from orchestrator.archive.store import Archive
from orchestrator.errors import ArchiveError, UsageError

FOLDER = "notes"
NOTES_VERSION = 1
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LONGEST_NOTE = 64 * 1024


class Notes(BaseModel):
    """The note and the tags of one run; empty where nobody said anything."""

    model_config = ConfigDict(frozen=True, extra="allow")

    schema_version: int = NOTES_VERSION
    run_id: str
    note: str = ""
    tags: tuple[str, ...] = Field(default=())

    @field_validator("note")
    @classmethod
    def _short(cls, note: str) -> str:
        if len(note.encode("utf-8", "replace")) > _LONGEST_NOTE:
            raise ValueError(f"a note may have {_LONGEST_NOTE // 1024} KiB at most")
        return note

    @field_validator("tags")
    @classmethod
    def _names(cls, tags: tuple[str, ...]) -> tuple[str, ...]:
        for tag in tags:
            if not _TAG.fullmatch(tag):
                raise ValueError(f"{tag!r:.80} cannot be a tag: letters, digits and . _ - (64 at most)")
        return tuple(sorted(set(tags)))

    def as_bytes(self) -> bytes:
        """The file's content."""
        return json.dumps(self.model_dump(mode="json"), indent=1).encode("ascii") + b"\n"


def path_of(archive: Archive, run_id: str) -> Path:
    """Where the notes of a run are kept."""
    return archive.path / FOLDER / f"{run_id}.json"


def read_notes(archive: Archive, run_id: str) -> Notes:
    """The notes of a run. Raises `ArchiveError` for a damaged file."""
    path = path_of(archive, run_id)
    try:
        with files.open_plain(path) as file:
            return parse(file.read(), run_id, str(path))
    except FileNotFoundError:
        return Notes(run_id=run_id)
    except OSError as error:
        raise ArchiveError(f"{path}: cannot be read: {error.strerror}") from None


def parse(content: bytes, run_id: str, where: str) -> Notes:
    """Notes of this or an earlier format. Raises `ArchiveError` that begins with `where`."""
    try:
        notes = Notes.model_validate({**_mapping(content), "run_id": run_id})
    except ValidationError as error:
        raise ArchiveError(f"{where}: are no notes of farbench: {error.errors()[0]['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise ArchiveError(f"{where}: is damaged: {error}") from None
    if notes.schema_version > NOTES_VERSION:
        raise ArchiveError(f"{where}: was written by a newer farbench (format {notes.schema_version})")
    return notes


def annotate(
    archive: Archive,
    run_id: str,
    *,
    note: str | None = None,
    add: Iterable[str] = (),
    remove: Iterable[str] = (),
) -> Notes:
    """Change what is said of a run; a `note` replaces the old one, an empty one removes it.

    Raises `UsageError` for a tag that cannot be one, `ArchiveError` where the archive cannot be written."""
    archive.require_folder()
    folder = archive.path / FOLDER
    try:
        files.make_folder(folder)
        with lock.held(folder / ".lock"):
            before = read_notes(archive, run_id)
            changed = _changed(before, note, tuple(add), frozenset(remove))
            if not changed.note and not changed.tags:
                path_of(archive, run_id).unlink(missing_ok=True)
            elif changed != before:
                files.write_whole(path_of(archive, run_id), [changed.as_bytes()])
            return changed
    except OSError as error:
        raise ArchiveError(f"{folder} cannot be written: {error.strerror}") from error


def forget(archive: Archive, run_id: str) -> None:
    """Remove what was said of a run that is gone."""
    path_of(archive, run_id).unlink(missing_ok=True)


def with_tag(archive: Archive, tag: str) -> list[str]:
    """The ids of the runs that carry a tag, newest first; damaged notes carry none."""
    found = []
    archive.refresh()
    try:
        names = [entry.name for entry in (archive.path / FOLDER).iterdir()]
    except OSError:
        return []
    for name in sorted(names, reverse=True):
        run_id = name.removesuffix(".json")
        if name.startswith(".") or run_id == name:
            continue
        try:
            if tag in read_notes(archive, run_id).tags:
                found.append(run_id)
        except ArchiveError:
            continue
    return found


def _changed(before: Notes, note: str | None, add: tuple[str, ...], remove: frozenset[str]) -> Notes:
    tags = [tag for tag in (*before.tags, *add) if tag not in remove]
    told = before.model_dump() | {"tags": tags}
    if note is not None:
        told["note"] = _storable(note).strip()
    try:
        return Notes.model_validate(told)
    except ValidationError as error:
        raise UsageError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None


def _storable(text: str) -> str:
    """Bytes of a command line that are no UTF-8 arrive as lone surrogates, which no file can hold."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _mapping(content: bytes) -> dict[str, Any]:
    value = json.loads(content)
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value
