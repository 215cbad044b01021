"""Taking a run in from a bundle (`bundle`), of which nothing is believed that was not checked.

It is unpacked beside the archive's runs as plain files of known names and sizes, each compared with its hash, and moved in
by one rename. A kill leaves the archive without the run, or with all of it.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import zstandard
from pydantic import ValidationError

from orchestrator.archive import files, incoming, notes, tarstream
from orchestrator.archive.bundle import BUNDLE_VERSION, MANIFEST, NOTES, RUN, BundledFile, Manifest, digest
from orchestrator.archive.document import read_document
from orchestrator.archive.paths import COMMITTED, RUN_ID, RunFolder
from orchestrator.archive.store import Archive
from orchestrator.errors import ArchiveError, FileError

MAGIC = b"\x28\xb5\x2f\xfd"
MOST_BYTES = 16 * 1024**3
_MOST_MANIFEST = 64 * 1024**2
_MOST_WINDOW = 128 * 1024**2  # what every zstd reads without being asked to
_LEFT_FREE = 256 * 1024**2
_LONGEST_NAME, _DEEPEST = 255, 32
_NEEDED = {RUN + "run.json", RUN + "results.jsonl"}


@dataclass(frozen=True)
class Imported:
    """A run that was taken in; `already_here` when the archive had the very same one."""

    folder: RunFolder
    already_here: bool = False


class _Wrong(ValueError):
    """What is the matter with a bundle."""


def is_bundle(path: Path) -> bool:
    """Whether a file begins as zstd does. Raises `OSError`."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def import_run(archive: Archive, path: Path, *, most_bytes: int = MOST_BYTES) -> Imported:
    """Take a run in. The very same run is no error and changes nothing.

    Raises `FileError` for a file that is damaged, not ours, or unpacks to more than `most_bytes`; `ArchiveError` when
    another run has its id, or the archive cannot be written."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise FileError(f"cannot be read: {error.strerror}", path=path) from None
    with file:
        try:
            return _import(archive, file, most_bytes)
        except (_Wrong, tarstream.BadTar) as error:
            raise FileError(f"is damaged, or not a bundle of a run: {error}", path=path) from None
        except zstandard.ZstdError as error:
            raise FileError(f"is damaged, or not a bundle of a run: {error}", path=path) from None


def _import(archive: Archive, file: BinaryIO, most_bytes: int) -> Imported:
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW)
    members = tarstream.read(decompressor.stream_reader(file))
    manifest = _manifest(members)
    total = sum(entry.size for entry in manifest.files)
    if total > most_bytes:
        raise _Wrong(
            f"it unpacks to {total / 1024**3:.2f} GiB, more than {most_bytes / 1024**3:g} (--max-gib)"
        )
    if (present := _present(archive, manifest)) is not None:
        return present
    with incoming.workshop(archive) as made:
        free = shutil.disk_usage(made.path).free
        if total + _LEFT_FREE > free:
            raise ArchiveError(f"{archive.path}: {total / 1024**3:.2f} GiB are needed, too few are free")
        folder = RunFolder(made.path / COMMITTED / manifest.run_id)
        _unpack(members, manifest, made.path)
        _require_run(folder)
        _take_notes(archive, made.path / NOTES, manifest.run_id)
        return Imported(incoming.move_in(archive, folder))


def _manifest(members: Iterator[tarstream.Member]) -> Manifest:
    first = next(members, None)
    if first is None or first.name != MANIFEST:
        raise _Wrong(f"it does not begin with {MANIFEST}")
    if first.size > _MOST_MANIFEST:
        raise _Wrong("its list of files is too long")
    try:
        manifest = Manifest.model_validate_json(b"".join(first.chunks))
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        raise _Wrong(f"{MANIFEST}: {'.'.join(map(str, found['loc']))}: {found['msg']}") from None
    if manifest.format > BUNDLE_VERSION:
        raise _Wrong(f"it was written by a newer farbench (format {manifest.format})")
    if not RUN_ID.fullmatch(manifest.run_id):
        raise _Wrong(f"{manifest.run_id!r:.80} cannot be the id of a run")
    names = {entry.path for entry in manifest.files}
    if len(names) < len(manifest.files):
        raise _Wrong("it lists a file twice")
    if missing := sorted(_NEEDED - names):
        raise _Wrong(f"it has no {missing[0].removeprefix(RUN)}")
    for name in names - {NOTES}:
        _require_plain(name)
    return manifest


def _require_plain(name: str) -> None:
    """A path below `run/` that stays there."""
    parts = name.split("/")
    if parts[0] != RUN.rstrip("/") or not 1 < len(parts) <= _DEEPEST:
        raise _Wrong(f"it holds a file outside of the run: {name!r:.80}")
    for part in parts:
        if part in ("", ".", "..") or "\0" in part or len(part.encode("utf-8", "replace")) > _LONGEST_NAME:
            raise _Wrong(f"it holds a file by a name that cannot be kept: {name!r:.80}")


def _present(archive: Archive, manifest: Manifest) -> Imported | None:
    """The run, when the archive has the very same one; raises `ArchiveError` when it has another by that id."""
    folder = RunFolder(archive.path / COMMITTED / manifest.run_id)
    if not folder.path.exists():
        incoming.require_new(archive, manifest.run_id)
        return None
    differing = [
        entry.path for entry in manifest.files if entry.path != NOTES and not _is_same(folder, entry)
    ]
    if differing:
        first = differing[0].removeprefix(RUN)
        raise ArchiveError(
            f"there is another run {manifest.run_id} in {archive.path} already: {len(differing)} of "
            f"{len(manifest.files)} files differ, {first} for one; nothing was changed"
        )
    return Imported(folder, already_here=True)


def _is_same(folder: RunFolder, entry: BundledFile) -> bool:
    try:
        return digest(folder.path / entry.path.removeprefix(RUN)) == (entry.size, entry.sha256)
    except OSError:
        return False


def _unpack(members: Iterable[tarstream.Member], manifest: Manifest, root: Path) -> None:
    expected = iter(manifest.files)
    for member in members:
        entry = next(expected, None)
        if entry is None or (member.name, member.size) != (entry.path, entry.size):
            raise _Wrong(f"{member.name!r:.80} is not what its list of files says")
        hasher = hashlib.sha256()
        relative = entry.path.removeprefix(RUN)
        inside = relative if entry.path == NOTES else f"{COMMITTED}/{manifest.run_id}/{relative}"
        try:
            files.make_folder((root / inside).parent)
            if (root / inside).exists():
                raise FileExistsError
            files.write_foreign(root / inside, _hashed(member.chunks, hasher.update))
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            raise _Wrong(f"{relative!r:.80} and another of its files have one name here") from None
        if hasher.hexdigest() != entry.sha256:
            raise _Wrong(f"{relative} is damaged: its hash is not the one listed")
    if (missing := next(expected, None)) is not None:
        raise _Wrong(f"{missing.path.removeprefix(RUN)} is missing from it")


def _hashed(chunks: Iterable[bytes], update: Callable[[bytes], object]) -> Iterator[bytes]:
    for chunk in chunks:
        update(chunk)
        yield chunk


def _require_run(folder: RunFolder) -> None:
    try:
        read_document(folder.run_json)
    except ArchiveError as error:
        raise _Wrong(str(error).replace(f"{folder.path}/", "its ")) from None


def _take_notes(archive: Archive, file: Path, run_id: str) -> None:
    """What is said of the run here stays; what was said elsewhere is taken where nothing is."""
    if not file.exists():
        return
    try:
        brought = notes.parse(file.read_bytes(), run_id, NOTES)
        said = notes.read_notes(archive, run_id)
    except ArchiveError as error:
        raise _Wrong(str(error)) from None
    if not said.note and not said.tags:
        notes.annotate(archive, run_id, note=brought.note, add=brought.tags)
