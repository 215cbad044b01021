"""Runs to report on: a document, and measurements by a few words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.archive import Archive, RunDocument
from orchestrator.model import Measurement
from orchestrator.report import Report, lay_out

GPU = {"uuid": "GPU-1", "index": 0, "name": "RTX PRO 6000", "compute_capability": "12.0", "kind": "gpu"}
CASES = {"c1": ("Expert batch=16 (decode)", {"m": 16}), "c2": ("Expert batch=256", {"m": 256})}


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "archive")


@pytest.fixture
def document() -> Callable[..., RunDocument]:
    def make(**changes: Any) -> RunDocument:
        base: dict[str, Any] = {
            "run_id": "20250102T030405Z-abcdef",
            "sweep": {"name": "fp4-gemm-glm5", "source": "name: fp4-gemm-glm5\n"},
            "plan": {
                "cases": [
                    {"id": id_, "label": label, "payload": "gemm_fp4", "params": params}
                    for id_, (label, params) in CASES.items()
                ],
                "backends": ["sgl_kernel", "flashinfer:cutlass", "torch"],
                "baselines": {"gemm_fp4": "flashinfer:cutlass"},
                "expected": 6,
            },
            "hosts": {"blackwell": {"state": "ok", "devices": [GPU]}},
            "state": "finished",
            "started_at": "2025-01-02T03:04:05Z",
        }
        return RunDocument.model_validate({**base, **changes})

    return make


@pytest.fixture
def ok() -> Callable[..., Measurement]:
    """An ok, valid, checked measurement: `ok("c1", "torch", 12.5)`."""

    def make(case_id: str, backend: str, median_us: float | None, **changes: Any) -> Measurement:
        label, params = CASES.get(case_id, (case_id, {}))
        timing = (
            None
            if median_us is None
            else {"timer": "graph", "cache": "cold", "median_us": median_us, "samples": 9}
        )
        base = {
            "run_id": "20250102T030405Z-abcdef", "host": "blackwell", "device": GPU, "case_id": case_id, "label": label,
            "payload": "gemm_fp4", "params": params, "backend": backend, "status": "ok", "verdict": "valid",
            "timing": timing, "accuracy": {"cosine": 0.9999},
        }  # fmt: skip
        return Measurement.model_validate({**base, **changes})

    return make


@pytest.fixture
def bad(ok: Callable[..., Measurement]) -> Callable[..., Measurement]:
    """A measurement without a number: `bad("c1", "torch", "error", "why")`."""

    def make(
        case_id: str, backend: str, status: str, reason: str | None = None, **changes: Any
    ) -> Measurement:
        return ok(
            case_id,
            backend,
            None,
            **{"status": status, "verdict": None, "accuracy": None, "reason": reason, **changes},
        )

    return make


@pytest.fixture
def report(document: Callable[..., RunDocument]) -> Callable[..., Report]:
    def make(*measurements: Measurement, state: str = "finished", **changes: Any) -> Report:
        return lay_out(document(**changes), state, measurements)

    return make
