"""What a host gets: the queue items of its cases, its job.json, and the files of its `scripts/` folder."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator import rendering
from orchestrator.errors import FileError
from orchestrator.inventory import CpuSlots, HostSpec
from orchestrator.model import SCHEMA_VERSION, Case
from orchestrator.plan import Plan
from orchestrator.sweep import Part

Item = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One host's part of a run: `job` is its job.json, `tree` its files by path in the run folder."""

    job: dict[str, Any]
    tree: Mapping[str, bytes]


def queue_items(plan: Plan) -> dict[str, Item]:
    """Everything needed to measure each case, as pure JSON, by case id and in the plan's order."""
    return {case.case_id: _item(plan, case) for case in plan.cases}


def script_tree(plan: Plan) -> Mapping[str, bytes]:
    """The files of `scripts/`, the same on every host: rendered payloads with their harness, and programs.

    Raises `FileError` for a template that does not render and a file that cannot be read.
    """
    return _script_tree(plan)


def build_job(plan: Plan, host: HostSpec, run_id: str, nonce: str) -> Job:
    """The job of one host. Its environment holds plain values only; what comes from the controller's environment
    (`inventory.resolve_environment`) travels apart and is never stored."""
    slurm = host.launcher.slurm
    job: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "run_id": run_id,
        "host": host.name,
        "nonce": nonce,
        "python": host.python,
        "activate": host.activate,
        "env": {name: value for name, value in host.env.items() if isinstance(value, str)},
        "devices": _devices(host),
        "replicate_devices": plan.sweep.placement == "replicate_devices",
        "replicate_models": plan.sweep.placement == "shard",
        "wait_for_devices": True,
        "jit_cache": host.jit_cache,
        "payloads": {part.payload: _payload(plan, part) for part in plan.parts},
    }
    if slurm is not None:
        job["launcher"] = {"slurm": list(slurm.options())}
    return Job(job, script_tree(plan))


def _item(plan: Plan, case: Case) -> Item:
    part = plan.part_of(case)
    item: Item = {
        "case_id": case.case_id,
        "label": case.label,
        "payload": case.payload,
        "params": dict(case.params),
        "backends": list(part.backends),
        "measure": part.measure.model_dump(mode="json"),
        "accuracy": _accuracy(plan, part),
        "timeout_s": plan.sweep.timeout_s,
        "compile_timeout_s": plan.sweep.compile_timeout_s,
        "devices_per_case": part.devices_per_case,
        "done": [],
    }
    if case.case_id in plan.commands:
        item["commands"] = {backend: list(argv) for backend, argv in plan.commands[case.case_id].items()}
    return item


def _accuracy(plan: Plan, part: Part) -> dict[str, float]:
    """What the sweep asks for, over what the template's header asks for."""
    template = plan.templates.get(part.payload)
    own = template.header.accuracy if template else None
    asked: dict[str, float] = own.model_dump(exclude_none=True) if own else {}
    return {**asked, **part.accuracy.model_dump(exclude_none=True)}


def _payload(plan: Plan, part: Part) -> dict[str, Any]:
    script = part.script
    if script is None:
        return {"kind": "template", "script": f"scripts/{rendering.script_name(part.payload)}"}
    return {
        "kind": "script",
        "files": {name: f"scripts/{script.name}/{name}" for name in plan.files[script.name]},
        "python": script.python,
        "collect": list(script.collect),
        "results": {"from": script.results_from, "format": script.results_format},
        "keys": list(script.keys),
    }


def _devices(host: HostSpec) -> Any:
    if isinstance(host.devices, CpuSlots):
        return {"cpu": host.devices.cpu}
    return host.devices if isinstance(host.devices, str) else list(host.devices)


@functools.lru_cache(maxsize=2)  # a plan is hashed by identity; its scripts are the same for every host
def _script_tree(plan: Plan) -> Mapping[str, bytes]:
    tree: dict[str, bytes] = {}
    items = queue_items(plan).values()
    for name, template in plan.templates.items():
        script = rendering.render(template, [item for item in items if item["payload"] == name])
        tree[f"scripts/{rendering.script_name(name)}"] = script.encode("utf-8")
    if plan.templates:
        tree.update({f"scripts/{path}": content for path, content in rendering.harness_files().items()})
    for payload, files in plan.files.items():
        for name, path in files.items():
            try:
                tree[f"scripts/{payload}/{name}"] = path.read_bytes()
            except OSError as exc:
                raise FileError(f"cannot be read: {exc.strerror}", path=path) from None
    return tree
