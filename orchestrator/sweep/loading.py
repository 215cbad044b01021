"""Reading a sweep file."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from orchestrator import identity, yamlfile
from orchestrator.errors import FileError, NothingToDo
from orchestrator.inventory import HostFilter
from orchestrator.model import Case
from orchestrator.yamlfile import Document, Fault, Loc

from .axes import Axes, Axis
from .definition import Argument, Part, ScriptPayload, Sweep
from .overrides import apply_sets
from .schema import SECTION_KEYS, Accuracy, Measure, PartSpec, ResultFile, RunSpec, ScriptSpec

INHERITED = ("backends", "baseline", "measure", "accuracy", "devices_per_case")
"""What parts take from the top of the file where they do not say it themselves."""

_PAYLOAD_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_BACKEND = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:+-]*")
_RESERVED_PAYLOADS = ("harness",)
_FORMAT_OF_SUFFIX = {".csv": "csv", ".jsonl": "json_lines", ".ndjson": "json_lines"}


def load_sweep(path: Path | str, sets: Sequence[str] = ()) -> Sweep:
    """Read a sweep file, with `--set` settings (`axis=value`) applied.

    Raises `FileError` that names every fault with its line, `UsageError` for a setting, and `NothingToDo` when the
    file leaves no case.
    """
    path = Path(path)
    document = yamlfile.load(path, "sweep file")
    data = copy.deepcopy(document.mapping("a sweep"))
    sections = _sections(document, data)
    for section, loc in sections:
        _keep_arguments_as_written(document, section, loc)
    apply_sets([section for section, _ in sections], sets)
    run_data = {key: value for key, value in data.items() if key in RunSpec.model_fields}
    faults = [*_unknown_keys(data), *_faults(RunSpec, run_data, ())]
    for section, loc in sections:
        faults += _faults(PartSpec, section, loc)
    if faults:
        raise document.errors(_without_repeats(faults, data))
    run = RunSpec.model_validate(run_data)
    parts = tuple(
        _part(document, PartSpec.model_validate(section), section, loc, index)
        for index, (section, loc) in enumerate(sections)
    )
    _refuse_conflicts(document, parts)
    return Sweep(
        name=run.name or path.stem,
        path=path,
        parts=parts,
        placement=run.placement,
        timeout_s=run.timeout_s,
        compile_timeout_s=run.compile_timeout_s,
        steal_after_s=run.steal_after_s,
        hosts=HostFilter(
            tuple(run.hosts.names) if run.hosts else (),
            tuple(run.hosts.tags) if run.hosts else (),
            path,
            document.line("hosts"),
        ),
        sets=tuple(sets),
        source=document.text,
        warnings=tuple(document.warnings(below=SECTION_KEYS)),
    )


def _unknown_keys(data: Mapping[str, Any]) -> list[Fault]:
    known = [*PartSpec.model_fields, *RunSpec.model_fields, "parts"]
    everything = f"; known are {', '.join(known)}"
    return [
        Fault(f"unknown key {key!r}{yamlfile.suggestion(key, known) or everything}", (key,))
        for key in data
        if key not in known
    ]


def _sections(document: Document, data: Mapping[str, Any]) -> list[tuple[dict[str, Any], Loc]]:
    """The parts of the file, with what they inherit; a file without `parts` is one part."""
    part_keys = list(PartSpec.model_fields)
    if "parts" not in data:
        return [({key: value for key, value in data.items() if key in part_keys}, ())]
    parts = data["parts"]
    if not isinstance(parts, list) or not parts:
        raise document.error(f"parts is a list of parts, not {yamlfile.kind(parts)}", "parts")
    faults = [
        Fault(f"{key!r} stands in each of the parts, not beside them", (key,))
        for key in data
        if key in part_keys and key not in INHERITED
    ]
    faults += [
        Fault(f"a part is a mapping (`payload: …`), not {yamlfile.kind(part)}", ("parts", i))
        for i, part in enumerate(parts)
        if not isinstance(part, dict)
    ]
    if faults:
        raise document.errors(faults)
    return [(_inheriting(data, part), ("parts", i)) for i, part in enumerate(parts)]


def _inheriting(data: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    out = {**{key: copy.deepcopy(data[key]) for key in INHERITED if key in data}, **part}
    for key in ("measure", "accuracy"):
        if isinstance(data.get(key), dict) and isinstance(part.get(key), dict):
            out[key] = {**data[key], **part[key]}
    return out


def _keep_arguments_as_written(document: Document, section: Mapping[str, Any], loc: Loc) -> None:
    """`args: [--eps, 0.10]` means the text 0.10; a number would lose its last digit."""
    payload = section.get("payload")
    for key in ("args", "command"):
        words = payload.get(key) if isinstance(payload, dict) else None
        for i, word in enumerate(words if isinstance(words, list) else []):
            source = document.source(*loc, "payload", key, i)
            if isinstance(words, list) and word is not None and source is not None:
                words[i] = source


def _faults(model: type[BaseModel], data: Mapping[str, Any], loc: Loc) -> list[Fault]:
    try:
        model.model_validate(data)
    except ValidationError as exc:
        return yamlfile.faults_of(exc, model, data, loc)
    return []


def _without_repeats(faults: Iterable[Fault], data: Mapping[str, Any]) -> list[Fault]:
    """What parts inherit is wrong once, where it is written."""
    out = []
    for fault in faults:
        match fault.loc:
            case ("parts", int(i), str(key), *rest) if key in INHERITED and key not in data["parts"][i]:
                out.append(Fault(fault.message, (key, *rest)))
            case _:
                out.append(fault)
    return out


def _part(document: Document, spec: PartSpec, section: Mapping[str, Any], loc: Loc, index: int) -> Part:
    script = _script(document, spec.payload, loc) if isinstance(spec.payload, ScriptSpec) else None
    payload = script.name if script else str(spec.payload)
    if not _PAYLOAD_NAME.fullmatch(payload) or payload.endswith(".py") or payload in _RESERVED_PAYLOADS:
        why = (
            "is reserved"
            if payload in _RESERVED_PAYLOADS
            else "is no name for one (letters, digits, `.`, `_`, `-`, no .py)"
        )
        raise document.error(f"payload {payload!r} {why}; give it another with `name:`", *loc, "payload")
    backends = _backends(document, spec, payload, script, loc)
    axes = Axes(document)
    axes.read(section, loc)
    if spec.model is not None:
        from .model_shapes import model_points

        axes.axes.insert(
            0, Axis("model", model_points(document, spec.model, (*loc, "model")), (*loc, "model"))
        )
    points = axes.points(loc)
    if not points:
        where = "the sweep" if not loc else f"the part on line {document.line(*loc)}"
        raise NothingToDo(f"{document.path}: {where} leaves no case: all are excluded")
    if script and spec.backends:
        for point in points:
            if "backend" in point.params:
                message = "`backend` is what `backends:` gives a program; call the parameter otherwise"
                raise document.error(message, *loc, "payload")
    cases = tuple(
        Case(
            identity.case_id(payload, p.params),
            p.label or payload,
            payload,
            dict(p.params),
            index,
            p.line or document.line(*loc),
        )
        for p in points
    )
    lines = {key: document.line(*((*loc, key) if key in section else loc)) for key in PartSpec.model_fields}
    for key in INHERITED:
        if loc and key in document.data and key not in document.data["parts"][index]:
            lines[key] = document.line(key)
    return Part(
        payload=payload,
        script=script,
        cases=cases,
        backends=backends,
        baseline=spec.baseline,
        measure=Measure.model_validate(spec.measure),
        accuracy=Accuracy.model_validate(spec.accuracy),
        devices_per_case=spec.devices_per_case,
        lines=lines,
    )


def _backends(
    document: Document, spec: PartSpec, payload: str, script: ScriptPayload | None, loc: Loc
) -> tuple[str, ...]:
    backends = tuple(spec.backends or ([payload] if script else ()))
    for i, backend in enumerate(backends):
        if not _BACKEND.fullmatch(backend):
            message = f"{backend!r} is no name of a backend (letters, digits, `_ . : + -`)"
            raise document.error(message, *loc, "backends", i)
        if backend in backends[:i]:
            raise document.error(f"backend {backend!r} is given twice", *loc, "backends", i)
    # A program without `backends:` names those of its rows itself; which, nobody knows before it ran.
    named = backends if spec.backends else ()
    if spec.baseline is not None and named and spec.baseline not in named:
        hint = f"{yamlfile.suggestion(spec.baseline, backends)}; backends are: {', '.join(backends)}"
        raise document.error(f"baseline {spec.baseline!r} is none of the backends{hint}", *loc, "baseline")
    return backends


def _script(document: Document, spec: ScriptSpec, loc: Loc) -> ScriptPayload:
    here = (*loc, "payload")

    def arguments(key: str, words: Iterable[str]) -> tuple[Argument, ...]:
        path = Path(document.path)
        return tuple(Argument(word, path, document.line(*here, key, i)) for i, word in enumerate(words))

    names = [Path(file).name for file in (*([spec.script] if spec.script else []), *spec.files)]
    if twice := next((name for i, name in enumerate(names) if name in names[:i]), None):
        raise document.error(f"two files are called {twice!r}; they lie side by side on the host", *here)
    results_from, results_format = "stdout", str(spec.results)
    if isinstance(spec.results, ResultFile):
        results_from = spec.results.file
        if results_from.startswith(("/", "~")) or ".." in results_from.split("/"):
            raise document.error(f"{results_from!r} leaves the case's working folder", *here, "results")
        guessed = _FORMAT_OF_SUFFIX.get(Path(results_from).suffix.lower(), "json")
        results_format = spec.results.format or guessed
    program = spec.script or (spec.command or [""])[0]
    return ScriptPayload(
        name=spec.name or Path(program).stem,
        script=spec.script,
        command=arguments("command", spec.command or ()),
        args=arguments("args", spec.args),
        files=tuple(spec.files),
        collect=tuple(spec.collect),
        results_from=results_from,
        results_format=results_format,
        keys=tuple(spec.keys),
        line=document.line(*here),
    )


def _refuse_conflicts(document: Document, parts: Sequence[Part]) -> None:
    """The same case twice, and two different payloads of one name."""
    seen: dict[str, tuple[Case, Part]] = {}
    programs: dict[str, Part] = {}
    for part in parts:
        other = programs.setdefault(part.payload, part)
        if (other.script is None) != (part.script is None) or (
            part.script and not _same(part.script, other.script)
        ):
            line = part.lines["payload"]
            message = f"payload {part.payload!r} is something else on line {other.lines['payload']}; give one a `name:`"
            raise FileError(message, path=document.path, line=line)
        for case in part.cases:
            first, its_part = seen.setdefault(case.case_id, (case, part))
            if first is not case:
                message = f"case {case.label!r} is the same as {first.label!r} on line {first.line}"
                if part.devices_per_case != its_part.devices_per_case:
                    message += "; the same on another number of devices belongs in a sweep of its own"
                raise FileError(message, path=document.path, line=case.line)


def _same(script: ScriptPayload, other: ScriptPayload | None) -> bool:
    """Whether two parts run one program; only their arguments may differ."""

    def files(s: ScriptPayload) -> tuple[object, ...]:
        return (s.script, s.files, s.collect, s.results_from, s.results_format, s.keys)

    return other is not None and files(script) == files(other)
