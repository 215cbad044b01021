"""Runs that come from elsewhere: made whole in a hidden folder of the archive, then moved in by one rename.

A kill at any moment leaves the archive without the run, or with all of it; what lay half made is removed by the next
command that brings a run in or takes one out.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.archive import files, lock
from orchestrator.archive.paths import COMMITTED, OPEN, RunFolder
from orchestrator.archive.store import Archive
from orchestrator.errors import ArchiveError

HIDDEN = ".moving"
_LOCK = "lock"


@contextmanager
def workshop(archive: Archive) -> Iterator[Archive]:
    """A small archive of its own on the same file system, to make a run in; gone with whatever is left in it.

    Raises `ArchiveError` where the archive cannot be written."""
    archive.require_folder()
    try:
        folder, held = _own_folder(archive)
    except OSError as error:
        raise ArchiveError(f"{archive.path}: nothing can be written there: {error.strerror}") from error
    try:
        yield Archive(folder)
    except OSError as error:
        raise ArchiveError(f"{archive.path} could not be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def require_new(archive: Archive, run_id: str) -> None:
    """Raises `ArchiveError` when the archive has a run by that id."""
    for kind in (OPEN, COMMITTED):
        if (archive.path / kind / run_id).exists():
            raise ArchiveError(f"there is a run {run_id} in {archive.path} already")


def move_in(archive: Archive, made: RunFolder) -> RunFolder:
    """Put a complete run in its place. Raises `ArchiveError` when the archive has one by that id."""
    require_new(archive, made.run_id)
    goal = RunFolder(archive.path / COMMITTED / made.run_id)
    files.make_folder(goal.path.parent)
    files.sync_folder(made.path)
    try:
        made.path.rename(goal.path)
    except OSError:
        require_new(archive, made.run_id)  # another import was first
        raise
    files.sync_folder(goal.path.parent)
    return goal


def sweep(archive: Archive) -> None:
    """Remove what killed commands left half made."""
    for entry in _entries(archive.path / HIDDEN):
        if not (entry / _LOCK).exists() or lock.is_held(entry / _LOCK):
            continue
        try:
            held = lock.take(entry / _LOCK)
        except OSError:
            continue  # its owner was just done with it
        if held is not None:  # whoever made it in this very moment finds it gone, and makes another
            shutil.rmtree(entry, ignore_errors=True)
            os.close(held)


def _own_folder(archive: Archive) -> tuple[Path, int]:
    """A new folder and the descriptor of its lock, which tells others that somebody is at work in it."""
    parent = archive.path / HIDDEN
    files.make_folder(parent)
    sweep(archive)
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent))
        try:
            held = lock.take(folder / _LOCK)
        except FileNotFoundError:
            held = None
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if held is not None:
            return folder, held


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
