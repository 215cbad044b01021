"""What will be measured where: cases × backends × hosts, checked against the payloads before anything connects."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator import rendering
from orchestrator.errors import FileError, NothingToDo, UsageError
from orchestrator.inventory import HostSpec
from orchestrator.model import Case, Placement
from orchestrator.rendering import Catalogue, Header, Template
from orchestrator.sweep import Part, ScriptPayload, Sweep
from orchestrator.yamlfile import refusal, suggestion

Faults = list[tuple[int | None, str]]


@dataclass(frozen=True, eq=False)
class Plan:
    """A sweep over hosts. `sweep.parts` hold only the selected cases, with every backend by name.

    `templates` are the templates used, by payload; `commands` the argument lists of script payloads, by case id and
    backend; `files` the files that travel with script payloads, by payload and name on the host.
    """

    sweep: Sweep
    hosts: tuple[HostSpec, ...]
    placements: tuple[Placement, ...]
    templates: Mapping[str, Template]
    commands: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    files: Mapping[str, Mapping[str, Path]] = field(default_factory=dict)

    @property
    def cases(self) -> tuple[Case, ...]:
        """The selected cases, in the file's order."""
        return self.sweep.cases

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that have a selected case."""
        return tuple(part for part in self.sweep.parts if part.cases)

    @property
    def backends(self) -> tuple[str, ...]:
        """Every backend of every part, once."""
        return tuple(dict.fromkeys(backend for part in self.parts for backend in part.backends))

    def part_of(self, case: Case) -> Part:
        """How a case is measured."""
        return self.sweep.parts[case.part]

    def backends_of(self, case: Case) -> tuple[str, ...]:
        """The backends a case is measured with; two parts of one payload may differ in them."""
        return self.part_of(case).backends

    def cases_on(self, host: str) -> tuple[Case, ...]:
        """The cases that start on a host."""
        ids = {placement.case_id for placement in self.placements if placement.host == host}
        return tuple(case for case in self.cases if case.case_id in ids)

    def measurements(self, host: str) -> int:
        """Measurements expected of a host, under `replicate_devices` of each of its devices (or gangs)."""
        return sum(len(self.backends_of(case)) for case in self.cases_on(host))

    def to_json(self) -> dict[str, Any]:
        """What `farbench plan --json` prints."""
        return {
            "sweep": self.sweep.name,
            "cases": [
                {
                    "id": case.case_id,
                    "label": case.label,
                    "payload": case.payload,
                    "params": dict(case.params),
                }
                for case in self.cases
            ],
            "backends": list(self.backends),
            "placements": [{"case": p.case_id, "host": p.host} for p in self.placements],
        }


def make_plan(
    sweep: Sweep,
    hosts: Sequence[HostSpec],
    only: Sequence[str] = (),
    catalogue: Catalogue | None = None,
) -> Plan:
    """Select the cases whose label or id matches one of `only` (globs; all when empty), check them against their
    payloads, and place them.

    Raises `FileError` at the sweep's lines for what a payload does not know, and `NothingToDo` when no case is left.
    """
    catalogue = catalogue or Catalogue.default(Path.cwd())
    parts: list[Part] = []
    templates: dict[str, Template] = {}
    commands: dict[str, dict[str, list[str]]] = {}
    files: dict[str, dict[str, Path]] = {}
    faults: Faults = []
    for part in sweep.parts:
        if part.script is None:
            template = templates.get(part.payload) or _template(sweep, part, catalogue)
            templates[part.payload] = template
            part = dataclasses.replace(part, backends=part.backends or template.header.default_backends)
            faults += _faults(part, template.header)
        else:
            files[part.payload] = _script_files(sweep, part.script, faults)
        parts.append(dataclasses.replace(part, cases=_selected(part.cases, only)))
    if faults:
        raise refusal(sweep.path, faults)
    if not any(part.cases for part in parts):
        known = ", ".join(repr(case.label) for case in sweep.cases[:5])
        more = ", …" if len(sweep.cases) > 5 else ""
        raise NothingToDo(
            f"no case matches {', '.join(repr(glob) for glob in only)}; labels are: {known}{more}"
        )
    for part in parts:
        if part.script is not None:
            argv = part.script.command + part.script.args
            for case in part.cases:
                commands[case.case_id] = {
                    backend: [*_program(part.script), *rendering.arguments(argv, case, backend)]
                    for backend in part.backends
                }
    used = {part.payload for part in parts if part.cases}
    planned = dataclasses.replace(sweep, parts=tuple(parts))
    return Plan(
        sweep=planned,
        hosts=tuple(hosts),
        placements=_placements(planned, hosts),
        templates={name: template for name, template in templates.items() if name in used},
        commands=commands,
        files={name: paths for name, paths in files.items() if name in used},
    )


def _selected(cases: Sequence[Case], only: Sequence[str]) -> tuple[Case, ...]:
    def matches(case: Case, glob: str) -> bool:
        # a label may hold brackets, which mean something else in a glob
        return glob == case.label or any(fnmatch.fnmatchcase(t, glob) for t in (case.label, case.case_id))

    return tuple(case for case in cases if not only or any(matches(case, glob) for glob in only))


def _placements(sweep: Sweep, hosts: Sequence[HostSpec]) -> tuple[Placement, ...]:
    if sweep.placement == "shard":
        return tuple(
            Placement(c.case_id, hosts[i % len(hosts)].name) for i, c in enumerate(sweep.cases) if hosts
        )
    return tuple(Placement(case.case_id, host.name) for case in sweep.cases for host in hosts)


def _template(sweep: Sweep, part: Part, catalogue: Catalogue) -> Template:
    try:
        return catalogue.find(part.payload)
    except FileError:
        raise
    except UsageError as exc:
        beside = sweep.path.absolute().parent
        there = part.payload in Catalogue([beside / "payloads"]).names()
        hint = (
            f". One lies beside the sweep, in {beside / 'payloads'}: run farbench in {beside}"
            if there
            else ""
        )
        raise FileError(f"{exc}{hint}", path=sweep.path, line=part.lines["payload"]) from None


def _faults(part: Part, header: Header) -> Faults:
    """What a template's header says against a part."""
    faults: Faults = []
    known = list(header.backends or {})
    if not part.backends:
        faults.append(
            (part.lines["payload"], f"`backends:` is missing; payload {part.payload!r} names none itself")
        )
    for backend in part.backends:
        if not header.knows_backend(backend):
            hint = f"{suggestion(backend, known)}; it has: {', '.join(known)}"
            faults.append(
                (part.lines["backends"], f"payload {part.payload!r} has no backend {backend!r}{hint}")
            )
    if part.baseline is not None and part.backends and part.baseline not in part.backends:
        hint = f"{suggestion(part.baseline, part.backends)}; backends are: {', '.join(part.backends)}"
        faults.append((part.lines["baseline"], f"baseline {part.baseline!r} is none of the backends{hint}"))
    if header.parameters is not None:
        for case in part.cases:
            faults += [(case.line, message) for message in _parameter_faults(case, header)]
    return faults


def _parameter_faults(case: Case, header: Header) -> list[str]:
    parameters = header.parameters or {}
    payload = f"payload {case.payload!r}"
    messages = [
        f"{payload} has no parameter {name!r}{suggestion(name, parameters)}; it has: {', '.join(parameters) or 'none'}"
        for name in case.params
        if name not in parameters
    ]
    messages += [f"{payload} needs the parameter {name!r}" for name in header.missing(case.params)]
    for name, value in case.params.items():
        if name in parameters and (fault := parameters[name].fault(value)):
            messages.append(f"parameter {name!r} of {payload} {fault}")
    return messages


def _script_files(sweep: Sweep, script: ScriptPayload, faults: Faults) -> dict[str, Path]:
    """The files of a script payload by their names on the host."""
    files = {}
    for name in (*([script.script] if script.script else []), *script.files):
        path = sweep.path.parent / Path(name).expanduser()
        if not path.is_file():
            what = "is a folder, not a file" if path.is_dir() else "no such file"
            faults.append((script.line, f"{path}: {what} (paths are relative to the sweep file)"))
        elif name == script.script and not script.python and _has_dos_shebang(path):
            message = (
                f"{path}: its first line ends in CR LF, so no host can run it; save it with LF line ends"
            )
            faults.append((script.line, message))
        files[path.name] = path
    return files


def _has_dos_shebang(path: Path) -> bool:
    with path.open("rb") as file:
        first = file.readline(4096)
    return first.startswith(b"#!") and first.endswith(b"\r\n")


def _program(script: ScriptPayload) -> list[str]:
    """The first word of a script's argument list; a command brings its own."""
    return [Path(script.script).name] if script.script else []
