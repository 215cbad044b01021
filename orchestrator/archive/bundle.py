"""A run as one file that travels: `.tar.zst`, checked by hashes, the same bytes for the same run every time.

Format 1: a zstd-compressed tar whose first member, `farbench-run.json`, lists every file that follows with its size and
SHA-256: {"format": 1, "run_id", "files": [{"path", "size", "sha256"}, …]}. The others are `run/<path in the run folder>`
and, where something was said of the run, `notes.json`. `tar --zstd -xf` unpacks it; `unbundle` takes it in.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import zstandard
from pydantic import BaseModel, ConfigDict, Field

from orchestrator.archive import files, notes, tarstream
from orchestrator.archive.document import read_document
from orchestrator.archive.journals import read_results
from orchestrator.archive.paths import RunFolder
from orchestrator.archive.store import Archive
from orchestrator.errors import ArchiveError, FileError

BUNDLE_VERSION = 1
SUFFIX = ".tar.zst"
MANIFEST, NOTES, RUN = "farbench-run.json", "notes.json", "run/"
MOST_FILES = 200_000
_LEVEL = 9
_CHUNK = 1 << 20
_FOREIGN = ("scripts", "logs", "collected", "imported")
"""Folders of files whose names are not ours."""
_OF_THIS_MACHINE = ("coordinator.lock",)


class BundledFile(BaseModel):
    """A member of a bundle."""

    model_config = ConfigDict(frozen=True, strict=True)

    path: str
    size: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Manifest(BaseModel):
    """What a bundle holds, in the order in which it holds it."""

    format: int
    run_id: str
    files: list[BundledFile] = Field(max_length=MOST_FILES)


def export_run(archive: Archive, folder: RunFolder, output: Path) -> int:
    """Write a committed run to a file, which appears whole; returns its size in bytes.

    Raises `ArchiveError` for an open run and one that cannot be read, `FileError` when `output` cannot be written."""
    if not folder.is_committed:
        raise ArchiveError(
            f"run {folder.run_id} is still open, and what it lacks now it would lack for ever: "
            "follow it with `farbench attach`, or end it with `farbench cancel`, then export it"
        )
    archive.bring(folder, everything=True)
    _require_sound(folder)
    said = notes.read_notes(archive, folder.run_id)
    try:
        files.make_folder(output.parent)
    except OSError as error:
        raise FileError(f"cannot be written: {error.strerror}", path=output) from error
    try:
        manifest = _describe(folder, said)
        files.write_whole(output, _compressed(_members(folder, manifest, said)))
        return output.stat().st_size
    except (FileNotFoundError, tarstream.BadTar) as error:
        raise ArchiveError(f"{folder.path} changed while it was exported: {error}") from None
    except OSError as error:
        raise FileError(f"cannot be written: {error.strerror}", path=output) from error


def _require_sound(folder: RunFolder) -> None:
    """Damage is found here, where the run can still be mended, and not on the other machine."""
    read_document(folder.run_json)
    for _ in read_results(folder):
        pass


def digest(path: Path) -> tuple[int, str]:
    """Size and SHA-256 of a file. Raises `OSError`."""
    size, hasher = 0, hashlib.sha256()
    with files.open_plain(path) as file:
        while chunk := file.read(_CHUNK):
            size += len(chunk)
            hasher.update(chunk)
    return size, hasher.hexdigest()


def _describe(folder: RunFolder, said: notes.Notes) -> Manifest:
    listed = []
    for name in _names(folder.path):
        size, sha256 = digest(folder.path / name)
        listed.append(BundledFile(path=RUN + name, size=size, sha256=sha256))
    if said.note or said.tags:
        content = said.as_bytes()
        listed.append(BundledFile(path=NOTES, size=len(content), sha256=hashlib.sha256(content).hexdigest()))
    return Manifest(format=BUNDLE_VERSION, run_id=folder.run_id, files=listed)


def _names(root: Path) -> list[str]:
    """The plain files below a run folder, sorted, without what a killed write left and what is of this machine."""
    found = []
    for place, _, names in os.walk(root):
        for name in names:
            file = Path(place) / name
            relative = file.relative_to(root).as_posix()
            half_written = files.is_half_written(name, foreign=relative.partition("/")[0] in _FOREIGN)
            if not half_written and relative not in _OF_THIS_MACHINE and stat.S_ISREG(file.lstat().st_mode):
                found.append(relative)
    return sorted(found)


def _members(folder: RunFolder, manifest: Manifest, said: notes.Notes) -> Iterator[bytes]:
    listing = json.dumps(manifest.model_dump(), separators=(",", ":")).encode("ascii") + b"\n"
    yield from tarstream.member(MANIFEST, len(listing), io.BytesIO(listing))
    for entry in manifest.files:
        if entry.path == NOTES:
            yield from tarstream.member(NOTES, entry.size, io.BytesIO(said.as_bytes()))
        else:
            with files.open_plain(folder.path / entry.path.removeprefix(RUN)) as file:
                yield from tarstream.member(entry.path, entry.size, file)
    yield tarstream.END


def _compressed(chunks: Iterator[bytes]) -> Iterator[bytes]:
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compressobj()
    for chunk in chunks:
        if compressed := compressor.compress(chunk):
            yield compressed
    yield compressor.flush()
