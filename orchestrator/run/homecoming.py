"""Bringing files of a run home from a host: what script payloads asked to keep, and the workers' logs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from orchestrator.archive import OpenRun
from orchestrator.launch.dialogue import Dialogue, RemoteFile

PIECE_BYTES = 8 * 1024 * 1024
COLLECTED = "collected/"

Save = Callable[[str, Iterator[bytes]], Path]
"""Keeps a file, named as the host lists it, and says where."""


def collects(job: Mapping[str, Any]) -> bool:
    """Whether a payload of the job asked to keep files."""
    return any(payload.get("collect") for payload in job["payloads"].values())


def bring_collected(run: OpenRun, host: str, dialogue: Dialogue) -> None:
    """Bring what a host's payloads asked to keep into the open run; what is here already is not brought again."""
    for file in dialogue.list_files(run.run_id):
        if file.path.startswith(COLLECTED) and _size(run, host, file) != file.size:
            _bring(dialogue, run.run_id, file, lambda path, pieces: run.save_file(host, path, pieces))


def bring(dialogue: Dialogue, run_id: str, save: Save) -> Iterator[tuple[Path, int]]:
    """Bring every log and collected file of a host; (where it is now, its bytes) of each."""
    for file in dialogue.list_files(run_id):
        yield _bring(dialogue, run_id, file, save)


def _bring(dialogue: Dialogue, run_id: str, file: RemoteFile, save: Save) -> tuple[Path, int]:
    """Fetched first and saved then: who saves may hold up everybody else meanwhile."""
    with tempfile.TemporaryFile() as held:
        size = 0
        while True:
            part = dialogue.read(run_id, file.path, size, PIECE_BYTES)
            held.write(part.data)
            size += len(part.data)
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
