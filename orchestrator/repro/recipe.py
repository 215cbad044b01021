"""Everything that one measurement was made with, gathered from a run's folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.archive import (
    Archive,
    RunDocument,
    RunFolder,
    fold_run,
    read_document,
    read_measurements,
    read_results,
)
from orchestrator.archive.files import open_plain
from orchestrator.errors import ArchiveError, UsageError
from orchestrator.events.journal import BadLine, CaseChanged, JournalLines, parse_line
from orchestrator.inventory import HostSpec
from orchestrator.model import Measurement
from orchestrator.run import launchfile

_LISTED = 10
_HARNESS_MAIN = re.compile(r"^\s*(from harness(\.worker)? import|import harness\b)", re.MULTILINE)


@dataclass(frozen=True)
class Recipe:
    """How to measure one backend of one case again.

    `files` are the program's, by path in the folder it runs in; `argv` is its command line after the interpreter (if
    `interpreter` is not None, a Python on the host; else `argv[0]` is a program of the host or one of `files`).
    `devices` are UUIDs, empty for a CPU. `secrets` are names of variables that the host must have set."""

    measurement: Measurement
    spec: HostSpec
    job: Mapping[str, Any]
    item: Mapping[str, Any]
    files: Mapping[str, bytes]
    argv: Sequence[str]
    interpreter: str | None
    devices: Sequence[str]
    variables: Mapping[str, str]
    secrets: Sequence[str]
    environment: Mapping[str, Any]
    document: RunDocument

    @property
    def is_script(self) -> bool:
        """Whether the payload is a program of the user's, and no template of farbench."""
        return bool(self.job["payloads"][self.measurement.payload]["kind"] == "script")


def find(
    archive: Archive, run: str, case: str, *, backend: str | None = None, host: str | None = None
) -> Recipe:
    """The recipe of the measurement that `case` (an id, the beginning of one, or a label), `backend` and `host` name.

    Where several are left, the first ok one stands for them if they differ in device or row only. Raises `UsageError` for
    none or an ambiguous one, `ArchiveError` for a run that cannot be repeated (it was measured elsewhere and imported)."""
    folder = archive.find(run)
    document = read_document(folder.run_json)
    measurement = _chosen(_measurements(folder, document), document, case, backend, host)
    if not (folder.path / launchfile.NAME).exists():
        raise ArchiveError(
            f"run {folder.run_id} cannot be repeated: it has no {launchfile.NAME}, so farbench did not measure it"
        )
    launch = launchfile.read(folder.path)
    try:
        spec = launch.hosts[measurement.host]
        job, item = launch.jobs[measurement.host], launch.items[measurement.case_id]
        payload = job["payloads"][measurement.payload]
        asked = _asked_backend(measurement, item)
        files = dict(_files(folder, measurement.payload, payload))
        argv = _argv(measurement, payload, item, asked, files)
    except (KeyError, TypeError) as error:
        raise ArchiveError(
            f"{folder.path}: does not say how this was measured ({error} is missing)"
        ) from None
    needs_python = payload["kind"] != "script" or bool(payload.get("python"))
    agent_python = (document.hosts[measurement.host].agent or {}).get("python") if measurement.host in document.hosts else None  # fmt: skip
    return Recipe(
        measurement=measurement,
        spec=spec,
        job=job,
        item={**item, "backends": [asked]},
        files=files,
        argv=argv,
        interpreter=str(job.get("python") or agent_python or "python3") if needs_python else None,
        devices=_devices(folder, measurement, int(item.get("devices_per_case") or 1)),
        variables={str(k): str(v) for k, v in (job.get("env") or {}).items()},
        secrets=sorted(name for name, value in spec.env.items() if not isinstance(value, str)),
        environment=document.environments.get(measurement.environment_id or "", {}),
        document=document,
    )


def _measurements(folder: RunFolder, document: RunDocument) -> Iterator[Measurement]:
    if folder.is_committed:
        return read_results(folder)
    return read_measurements(folder, fold_run(folder, document), document)


def _chosen(
    measurements: Iterator[Measurement],
    document: RunDocument,
    case: str,
    backend: str | None,
    host: str | None,
) -> Measurement:
    by_id = [c for c in document.plan.cases if case and c.id.startswith(case)]
    cases = [c for c in by_id if c.id == case] or by_id or [c for c in document.plan.cases if c.label == case]
    if len(cases) != 1:
        known = cases or document.plan.cases
        listed = "\n".join(f"  {c.id}  {c.label}" for c in known[:_LISTED])
        more = f"\n  … and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
        what = f"{case!r} names {len(cases)} cases" if cases else f"there is no case {case!r} in this run"
        raise UsageError(f"{what}; these are:\n{listed}{more}")
    found = [m for m in measurements if m.case_id == cases[0].id]
    label = cases[0].label
    backends = list(dict.fromkeys(m.backend for m in found))
    if backend is None and len(backends) > 1:
        raise UsageError(
            f"case {label!r} has several backends; name one with --backend: {', '.join(backends)}"
        )
    if backend is not None and backend not in backends:
        raise UsageError(
            f"case {label!r} has no backend {backend!r}; it has: {', '.join(backends) or 'none'}"
        )
    hosts = list(dict.fromkeys(m.host for m in found))
    if host is not None and host not in hosts:
        raise UsageError(f"case {label!r} was not measured on {host!r}, but on: {', '.join(hosts) or 'none'}")
    found = [m for m in found if backend in (None, m.backend) and host in (None, m.host)]
    if not found:
        raise UsageError(f"case {cases[0].label!r} has no measurement yet")
    return next((m for m in found if m.status == "ok"), found[0])


def _asked_backend(m: Measurement, item: Mapping[str, Any]) -> str:
    """The backend of the plan: a program may name another one in what it prints."""
    asked = [str(name) for name in item["backends"]]
    return m.backend if m.backend in asked or len(asked) != 1 else asked[0]


def _files(folder: RunFolder, name: str, payload: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """The program's files as they ran, by their path in its working folder."""
    if payload["kind"] == "script":
        for path, source in payload["files"].items():
            yield path, _read(folder, str(source))
        return
    yield Path(str(payload["script"])).name, _read(folder, str(payload["script"]))
    for path in sorted((folder.scripts / "harness").rglob("*.py")):
        yield path.relative_to(folder.scripts).as_posix(), _read_whole(path)


def _read(folder: RunFolder, source: str) -> bytes:
    path = folder.path / source
    if not path.resolve().is_relative_to(folder.scripts.resolve()):
        raise ArchiveError(f"{folder.path}: {source!r} is no file of its scripts")
    return _read_whole(path)


def _read_whole(path: Path) -> bytes:
    try:
        with open_plain(path) as file:
            return file.read()
    except OSError as error:
        raise ArchiveError(f"{path}: cannot be read: {error.strerror}") from None


def _argv(
    m: Measurement,
    payload: Mapping[str, Any],
    item: Mapping[str, Any],
    backend: str,
    files: Mapping[str, bytes],
) -> list[str]:
    if payload["kind"] == "script":
        return [str(argument) for argument in item["commands"][backend]]
    script = Path(str(payload["script"])).name
    if _HARNESS_MAIN.search(files[script].decode("utf-8", "replace")):
        return [script, "--case", m.case_id, "--backend", backend]
    return [script]  # a template that stands on its own feet: it measures all its cases


def _devices(folder: RunFolder, m: Measurement, count: int) -> list[str]:
    """The UUIDs of the GPUs that measured it: of a gang, as the journal tells."""
    if m.device is None or m.device.kind != "gpu":
        return []
    if count < 2:
        return [m.device.uuid]
    lines = JournalLines()
    found: list[str] = [m.device.uuid]
    for _, line in lines.feed(_read_whole(folder.events(m.host))):
        if line is None or b'"case_started"' not in line:
            continue
        try:
            event = parse_line(line)
        except BadLine:
            continue
        if isinstance(event, CaseChanged) and event.case_id == m.case_id and event.type == "case_started":
            found = event.devices or found
    return found


def parameters(recipe: Recipe) -> str:
    """The queue item as JSON, for people and for programs."""
    return json.dumps(dict(recipe.item), indent=1, allow_nan=False) + "\n"
