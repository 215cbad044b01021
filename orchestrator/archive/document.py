"""`run.json`: what was run, where and with what. Versioned; unknown keys are kept as they are.

Format 1, with every key but the first three optional:

    schema_version  1
    run_id          "20250102T030405Z-abcdef"
    sweep           {name, path, source (the YAML as it was read), sha256}
    placement       "shard" | "replicate" | "replicate_devices"
    plan            {cases: [{id, label, payload, params, backends, baseline}], backends, baselines: {payload: backend},
                     placements: [{case, host, backends}] (none: every case on every host),
                     expected: number of measurements, null while it depends on the hosts' devices}
    hosts           {name: {state, error, devices, agent, problems, clock_offset_s, busy_fraction, begun}}
    versions        {"farbench": …, "python": …, …}
    environments    {environment id: {…}}
    state           "running" | "finished" | "cancelled" | "lost"
    started_at      UTC, ISO 8601 with a Z
    ended_at        UTC, null while the run is open
    resumes         the run whose missing measurements this one takes up, or null
    argv            the command line
    counts          {status: n}, verdicts {verdict: n}; written when the run is committed
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.archive import files
from orchestrator.archive.faults import reading
from orchestrator.errors import ArchiveError
from orchestrator.model import Device

DOCUMENT_VERSION = 1

# How `write_document` lays a document out: a line for each key, and no string holds a newline.
_READ_BYTES = 16 * 1024
_PLAN = b'\n"plan": {'
_PLAN_ENDS = re.compile(rb'"expected": (null|\d+)},\n"hosts": ')


class _Part(BaseModel):
    model_config = ConfigDict(extra="allow", allow_inf_nan=False)


class SweepRecord(_Part):
    """The sweep file as it was when the run began."""

    name: str
    path: str | None = None
    source: str = ""
    sha256: str | None = None


class CaseRecord(_Part):
    """A case of the plan; `backends` are those it is measured with (none named: the plan's), `baseline` the one its
    speed-ups are against (none named: the plan's for its payload)."""

    id: str
    label: str
    payload: str
    params: dict[str, Any] = Field(default_factory=dict)
    backends: list[str] = Field(default_factory=list)
    baseline: str | None = None


class PlacementRecord(_Part):
    """A case (by id) on a host; `backends` where not all of the case's are measured there (a resumed run)."""

    case: str
    host: str
    backends: list[str] = Field(default_factory=list)


class PlanRecord(_Part):
    """What was to be measured; `expected` is the number of measurements, None in an open run whose hosts' devices
    decide it (see `archive.planned`)."""

    cases: list[CaseRecord] = Field(default_factory=list)
    backends: list[str] = Field(default_factory=list)
    baselines: dict[str, str | None] = Field(default_factory=dict)
    placements: list[PlacementRecord] = Field(default_factory=list)
    expected: int | None = None


class HostRecord(_Part):
    """How a host of the run fared: `problems` are what its journal told, `clock_offset_s` by how much its clock was ahead
    of the controller's, `busy_fraction` how much of the time its devices were at work, `begun` whether it may have been
    given its part, None where that is not known."""

    state: str | None = None
    error: str | None = None
    devices: list[Device] = Field(default_factory=list)
    agent: dict[str, Any] | None = None
    problems: list[str] = Field(default_factory=list)
    clock_offset_s: float | None = None
    busy_fraction: float | None = None
    begun: bool | None = None


class RunDocument(_Part):
    """The content of `run.json`; see the module's docstring."""

    schema_version: int = DOCUMENT_VERSION
    run_id: str
    sweep: SweepRecord
    placement: str = "shard"
    plan: PlanRecord = Field(default_factory=PlanRecord)
    hosts: dict[str, HostRecord] = Field(default_factory=dict)
    versions: dict[str, Any] = Field(default_factory=dict)
    environments: dict[str, dict[str, Any]] = Field(default_factory=dict)
    state: str = "running"
    started_at: str | None = None
    ended_at: str | None = None
    resumes: str | None = None
    argv: list[str] = Field(default_factory=list)
    counts: dict[str, int] = Field(default_factory=dict)
    verdicts: dict[str, int] = Field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The document as JSON values."""
        return self.model_dump(mode="json")


def write_document(path: Path, document: RunDocument) -> None:
    """Write a `run.json`, whole: a line for each key, since indenting the cases takes longer than measuring some."""
    lines = [f"{json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in document.as_json().items()]
    files.write_whole(path, [("{\n" + ",\n".join(lines) + "\n}\n").encode("ascii")])


def read_document(path: Path) -> RunDocument:
    """Read a `run.json` of this or an earlier format. Raises `ArchiveError`; `FileNotFoundError` if there is none."""
    return _read(path, _whole)


def read_outline(path: Path) -> RunDocument:
    """As `read_document`, but the plan may be without its cases and placements: a fiftieth of the time for a long one."""
    return _read(path, _without_plan)


def _whole(file: BinaryIO) -> bytes:
    return file.read()


def _without_plan(file: BinaryIO) -> bytes:
    """A `run.json` whose plan says no more than how much is expected; the whole where it is not laid out as we do."""
    size = os.fstat(file.fileno()).st_size
    if size < 4 * _READ_BYTES:
        return file.read()
    head = os.pread(file.fileno(), _READ_BYTES, 0)
    tail = os.pread(file.fileno(), _READ_BYTES, size - _READ_BYTES)
    start, end = head.find(_PLAN), _PLAN_ENDS.search(tail)
    if start < 0 or end is None:
        return file.read()
    return head[:start] + _PLAN + tail[end.start() :]


def _read(path: Path, bytes_of: Callable[[BinaryIO], bytes]) -> RunDocument:
    try:
        with reading(path, absent=False), files.open_plain(path) as file:
            content = bytes_of(file)
        document = RunDocument.model_validate(json.loads(content))
    except FileNotFoundError:
        raise
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise ArchiveError(f"{path}: is no run.json of farbench: {where}: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise ArchiveError(f"{path}: is damaged: {error}") from None
    if document.schema_version > DOCUMENT_VERSION:
        raise ArchiveError(
            f"{path}: was written by a newer farbench (format {document.schema_version}, "
            f"this one reads up to {DOCUMENT_VERSION}); upgrade farbench to read it"
        )
    if document.run_id != path.parent.name:  # its results say so too, and would count twice
        raise ArchiveError(
            f"{path}: is of another run, {document.run_id!r:.80}: a copied folder under another name is no run"
        )
    return document
