"""An archive in a temporary folder, and records to put in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.archive import Archive
from orchestrator.model import Measurement

GPU = {"uuid": "GPU-1", "index": 0, "name": "B200", "compute_capability": "10.0", "kind": "gpu"}


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "my [archive]* 'x'")


@pytest.fixture
def record() -> Callable[..., dict[str, Any]]:
    def make(run_id: str = "r1", **changes: Any) -> dict[str, Any]:
        base = {
            "schema_version": 1, "run_id": run_id, "host": "gpu1", "device": GPU, "case_id": "c1", "label": "m=16",
            "payload": "gemm", "params": {"m": 16}, "backend": "torch", "status": "ok", "verdict": "valid",
            "started_at": "2025-01-02T03:04:05.250Z", "duration_s": 1.5,
            "timing": {"timer": "graph", "cache": "cold", "median_us": 12.5, "samples": 2},
            "samples_us": [12.0, 13.0], "metrics": {"tflops": 99.5}, "environment_id": "e1",
        }  # fmt: skip
        return {**base, **changes}

    return make


@pytest.fixture
def measurement(record: Callable[..., dict[str, Any]]) -> Callable[..., Measurement]:
    return lambda *args, **changes: Measurement.model_validate(record(*args, **changes))


@pytest.fixture
def line(record: Callable[..., dict[str, Any]]) -> Callable[..., bytes]:
    """A journal's line that holds a measurement."""

    def make(*args: Any, **changes: Any) -> bytes:
        event = {"t": 1.0, "mono": 1.0, "type": "measurement", "measurement": record(*args, **changes)}
        return json.dumps(event).encode() + b"\n"

    return make


@pytest.fixture
def document() -> Callable[..., dict[str, Any]]:
    def make(**changes: Any) -> dict[str, Any]:
        base: Mapping[str, Any] = {
            "sweep": {"name": "fp4", "path": "fp4.yaml", "source": "name: fp4\n", "sha256": "00"},
            "plan": {
                "cases": [{"id": "c1", "label": "m=16", "payload": "gemm", "params": {"m": 16}}],
                "backends": ["torch", "cutlass"],
                "placements": [{"case": "c1", "host": "gpu1"}],
                "expected": 2,
            },
            "hosts": {"gpu1": {"state": "ok", "error": None}},
            "environments": {"e1": {"torch": "2.9"}},
            "started_at": "2025-01-02T03:04:05Z",
        }
        return {**base, **changes}

    return make
