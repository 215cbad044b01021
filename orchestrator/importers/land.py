"""From what a reader found to a run of the archive, which appears whole or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from orchestrator import __version__
from orchestrator.archive import Archive, RunFolder, files, read_outline, safe_name
from orchestrator.archive.incoming import move_in, workshop
from orchestrator.errors import ArchiveError
from orchestrator.identity import canonical_json
from orchestrator.importers import formats
from orchestrator.importers.measurements import Said, measurements_of
from orchestrator.importers.reading import Found, jsonable
from orchestrator.importers.source import Source
from orchestrator.model import Device, Measurement

_LOG_CHARACTERS = 2 * 1024 * 1024
_MIN_SAMPLES = 6


@dataclass(frozen=True)
class Landed:
    """The run that a file became; `already_here` when the same file was imported in the same way before."""

    folder: RunFolder
    format: str
    measurements: int
    already_here: bool = False
    remarks: Sequence[str] = ()


def import_file(
    archive: Archive,
    source: Source,
    format: str,
    said: Said,
    *,
    clock: Callable[[], float],
    argv: Sequence[str] = (),
) -> Landed:
    """Read a file of another tool and commit it as a run. `clock` gives UTC seconds.

    Raises `FileError` for a file that is wrong, `ArchiveError` where the archive cannot be written."""
    name, found = formats.read(source, format, said.wishes)
    said = replace(
        said,
        device=_storable(said.device),
        host=_storable(said.host),
        backend=_storable(said.backend),
        label=_storable(said.label),
    )
    fingerprint = _fingerprint(source, name, said, found)
    present = _imported_before(archive, fingerprint)
    if present is not None:
        return Landed(present, name, sum(read_outline(present.run_json).counts.values()), already_here=True)
    run_id = f"{datetime.fromtimestamp(clock(), UTC):%Y%m%dT%H%M%SZ}-{fingerprint[:6]}"
    host = said.host or _storable(found.host) or "imported"
    environments: dict[str, dict[str, Any]] = {}
    measurements = list(measurements_of(source, found, said, run_id, host, environments))
    moments = sorted(m.started_at for m in measurements if m.started_at)
    began = moments[0] if moments else _utc(source.path.stat().st_mtime)
    document = {
        "run_id": run_id,
        "sweep": {"name": said.label or source.name, "path": str(source.path), "sha256": source.sha256},
        "plan": _plan(measurements),
        "hosts": {host: {"state": "ok", "devices": _devices(measurements)}},
        "versions": {"farbench": __version__},
        "environments": environments,
        "started_at": began,
        "argv": list(argv),
        "imported": {
            "format": name, "file": source.name, "fingerprint": fingerprint, "at": _utc(clock()),
            "dated_by": "the file" if moments else "the file's modification time",
        },
    }  # fmt: skip
    with workshop(archive) as made:
        run = made.create(run_id, document, {})
        with run:
            files.make_folder(run.folder.imported)
            files.write_foreign(run.folder.imported / safe_name(source.name), [source.content])
            committed = run.commit(measurements, "finished", ended_at=moments[-1] if moments else began)
        folder = move_in(archive, committed)
    return Landed(folder, name, len(measurements), remarks=found.remarks)


def _storable(text: str | None) -> str | None:
    """Bytes of a command line that are no UTF-8 arrive as lone surrogates, which no file can hold."""
    return None if text is None else str(jsonable(text))


def _fingerprint(source: Source, format: str, said: Said, found: Found) -> str:
    """What makes two imports the same: the content, the samples beside it, and what was said of it."""
    samples = sum(len(reading.time.samples_us) for reading in found.readings if reading.time is not None)
    told = [
        source.sha256, format, source.name, said.device, said.host, said.backend, said.label, dict(said.params),
        said.wishes.unit, list(said.wishes.keys), samples,
    ]  # fmt: skip
    return hashlib.sha256(canonical_json(jsonable(told)).encode("ascii")).hexdigest()


def _imported_before(archive: Archive, fingerprint: str) -> RunFolder | None:
    """The run of the same import; its id ends as the fingerprint begins, so that few documents are read."""
    for folder in archive.runs():
        if not folder.run_id.endswith(fingerprint[:6]) or not folder.is_committed:
            continue
        try:
            told = getattr(read_outline(folder.run_json), "imported", None)
        except (ArchiveError, FileNotFoundError):
            continue
        if isinstance(told, Mapping) and told.get("fingerprint") == fingerprint:
            return folder
    return None


def _plan(measurements: Sequence[Measurement]) -> dict[str, Any]:
    cases: dict[str, dict[str, Any]] = {}
    for m in measurements:
        case = cases.setdefault(
            m.case_id,
            {"id": m.case_id, "label": m.label, "payload": m.payload, "params": m.params, "backends": []},
        )
        if m.backend not in case["backends"]:
            case["backends"].append(m.backend)
    return {
        "cases": list(cases.values()),
        "backends": list(dict.fromkeys(m.backend for m in measurements)),
        "placements": [
            {"case": m.case_id, "host": m.host} for m in {m.case_id: m for m in measurements}.values()
        ],
        "expected": len(measurements),
    }


def _devices(measurements: Sequence[Measurement]) -> list[Device]:
    return list({m.device.uuid: m.device for m in measurements if m.device is not None}.values())


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
