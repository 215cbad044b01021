"""A sweep as the rest of the program sees it: every case expanded, every default filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.inventory import HostFilter
from orchestrator.model import Case

from .schema import Accuracy, Measure


@dataclass(frozen=True)
class Argument:
    """One argument of a script payload: a Jinja template, and where it is written."""

    text: str
    path: Path
    line: int | None = None


@dataclass(frozen=True)
class ScriptPayload:
    """An existing program as a benchmark. Either `script`, a file beside the sweep that travels to the host, or
    `command`, a program the host has.

    `results_from` is `stdout` or the name of a file that the program writes; `line` is where the sweep says all this.
    """

    name: str
    script: str | None = None
    command: tuple[Argument, ...] = ()
    args: tuple[Argument, ...] = ()
    files: tuple[str, ...] = ()
    collect: tuple[str, ...] = ()
    results_from: str = "stdout"
    results_format: str = "json_lines"
    keys: tuple[str, ...] = ()
    line: int | None = None

    @property
    def python(self) -> bool:
        """Whether the host's payload interpreter runs it."""
        return self.script is not None and self.script.endswith(".py")


@dataclass(frozen=True)
class Part:
    """One payload of a sweep with its cases. `backends` is empty where every backend of a template is meant."""

    payload: str
    script: ScriptPayload | None
    cases: tuple[Case, ...]
    backends: tuple[str, ...]
    baseline: str | None
    measure: Measure
    accuracy: Accuracy
    devices_per_case: int
    lines: Mapping[str, int]
    """Lines of the sweep file, by key (`payload`, `backends`, `baseline`, …)."""


@dataclass(frozen=True)
class Sweep:
    """A sweep file after `--set`. `warnings` are lines for a person; `source` is the file's text."""

    name: str
    path: Path
    parts: tuple[Part, ...]
    placement: str
    timeout_s: float
    compile_timeout_s: float
    steal_after_s: float
    hosts: HostFilter
    sets: tuple[str, ...] = ()
    source: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def cases(self) -> tuple[Case, ...]:
        """The cases of all parts, in the file's order."""
        return tuple(case for part in self.parts for case in part.cases)

    def to_json(self) -> dict[str, Any]:
        """What a run's record keeps of it: how it was measured, and the file as it was."""
        return {
            "name": self.name,
            "path": str(self.path),
            "source": self.source,
            "sets": list(self.sets),
            "placement": self.placement,
            "timeout_s": self.timeout_s,
            "compile_timeout_s": self.compile_timeout_s,
            "steal_after_s": self.steal_after_s,
            "hosts": {"names": list(self.hosts.names), "tags": list(self.hosts.tags)},
            "parts": [
                {
                    "payload": part.payload,
                    "script": None if part.script is None else _script_json(part.script),
                    "backends": list(part.backends),
                    "baseline": part.baseline,
                    "measure": part.measure.model_dump(),
                    "accuracy": part.accuracy.model_dump(exclude_none=True),
                    "devices_per_case": part.devices_per_case,
                }
                for part in self.parts
            ],
        }


def _script_json(script: ScriptPayload) -> dict[str, Any]:
    return {
        **{key: value for key, value in asdict(script).items() if key != "line"},
        "command": [argument.text for argument in script.command],
        "args": [argument.text for argument in script.args],
    }
