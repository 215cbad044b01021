"""What a run's `run.json` says."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from orchestrator import __version__
from orchestrator.events import Fold
from orchestrator.plan import Plan

LIBRARIES = ("fabric", "paramiko", "pydantic", "ruamel.yaml", "jinja2", "duckdb", "numpy")


def utc(seconds: float) -> str:
    """UTC with a Z, to the millisecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def versions() -> dict[str, str]:
    """farbench, the controller's Python and its libraries."""
    return {
        "farbench": __version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in LIBRARIES},
    }


def document(plan: Plan, run_id: str, *, now_s: float, argv: Sequence[str]) -> dict[str, Any]:
    """The content of `run.json` as a run begins."""
    described = plan.sweep.to_json()
    backends = {case.case_id: len(plan.backends_of(case)) for case in plan.cases}
    return {
        "schema_version": 1,
        "run_id": run_id,
        "sweep": {**described, "sha256": hashlib.sha256(plan.sweep.source.encode("utf-8")).hexdigest()},
        "placement": plan.sweep.placement,
        "plan": {
            "cases": [
                {
                    "id": case.case_id,
                    "label": case.label,
                    "payload": case.payload,
                    "params": dict(case.params),
                    "backends": list(plan.backends_of(case)),
                    "baseline": plan.part_of(case).baseline,
                }
                for case in plan.cases
            ],
            "backends": plan.to_json()["backends"],
            "baselines": {part.payload: part.baseline for part in plan.parts},
            "placements": _placements(plan),
            "expected": known_beforehand(
                plan.sweep.placement, sum(backends[placement.case_id] for placement in plan.placements)
            ),
        },
        "hosts": {host.name: {} for host in plan.hosts},
        "versions": versions(),
        "state": "running",
        "started_at": utc(now_s),
        "resumes": None,
        "argv": list(argv),
    }


def known_beforehand(placement: str, measurements: int) -> int | None:
    """How much there is to measure, of so many `measurements` by case, backend and host, before a host has answered.
    Under every other placement the devices decide: a sharded case is measured once on each model of them."""
    return measurements if placement == "replicate" else None


def _placements(plan: Plan) -> list[dict[str, str]]:
    """Where cases are measured; nothing where that is every case on every host: with many hosts it would be most of
    the document."""
    if plan.sweep.placement != "shard" and len(plan.placements) == len(plan.cases) * len(plan.hosts):
        return []
    return [{"case": p.case_id, "host": p.host} for p in plan.placements]


def host_records(
    fold: Fold, states: Mapping[str, tuple[str, str | None]], clock_offsets: Mapping[str, float]
) -> dict[str, dict[str, Any]]:
    """The `hosts` of `run.json` from (state, error) by host, what their journals told, and the seconds by which their
    clocks were ahead of ours."""
    return {
        name: {
            "state": state,
            "error": error,
            "devices": [d.model_dump() for d in fold.host(name).devices],
            "agent": fold.host(name).identity,
            "problems": list(fold.host(name).problems),
            "clock_offset_s": clock_offsets.get(name),
            "busy_fraction": fold.host(name).busy_fraction,
        }
        for name, (state, error) in states.items()
    }
