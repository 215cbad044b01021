"""Measurements by a few words, and archives of whole runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.archive import Archive, RunFolder
from orchestrator.model import Measurement

GPU = {"uuid": "GPU-1", "index": 0, "name": "H200", "compute_capability": "9.0", "kind": "gpu"}
LABELS = {"c1": "m=16 n=2048", "c2": "m=256 n=2048"}


@pytest.fixture
def measured() -> Callable[..., Measurement]:
    """An ok, valid measurement whose samples lie within 0.2% of its median: `measured("c1", 12.5)`."""

    def make(case_id: str = "c1", median_us: float = 100.0, **changes: Any) -> Measurement:
        timer = changes.pop("timer", "graph")
        cache = changes.pop("cache", "cold")
        samples = changes.pop("samples_us", [median_us * (1 + 0.001 * ((i * 7) % 5 - 2)) for i in range(40)])
        base = {
            "run_id": "r", "host": "gpu1", "device": GPU, "case_id": case_id, "label": LABELS.get(case_id, case_id),
            "payload": "gemm", "params": {}, "backend": "torch", "status": "ok", "verdict": "valid",
            "timing": {"timer": timer, "cache": cache, "median_us": median_us, "samples": len(samples or [])},
            "samples_us": samples,
        }  # fmt: skip
        return Measurement.model_validate({**base, **changes})

    return make


@pytest.fixture
def failed(measured: Callable[..., Measurement]) -> Callable[..., Measurement]:
    """A measurement without a time: `failed("c1", "crashed", "signal 11")`."""

    def make(case_id: str, status: str, reason: str | None = None, **changes: Any) -> Measurement:
        gone = {"status": status, "verdict": None, "timing": None, "samples_us": None, "reason": reason}
        return measured(case_id, **{**gone, **changes})

    return make


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "archive")


@pytest.fixture
def add_run(archive: Archive) -> Callable[..., RunFolder]:
    """A committed run: `add_run("20250101T000000Z-000001", [measurements…])`."""

    def add(run_id: str, measurements: Iterable[Measurement], **document: Any) -> RunFolder:
        base = {"sweep": {"name": "gemm"}, "started_at": "2025-01-02T03:04:05Z", **document}
        mine = [m.model_copy(update={"run_id": run_id}) for m in measurements]
        return archive.create(run_id, base, {}).commit(mine, "finished", ended_at="2025-01-02T03:05:05Z")

    return add


@pytest.fixture
def add_runs(
    add_run: Callable[..., RunFolder], measured: Callable[..., Measurement]
) -> Callable[..., list[str]]:
    """A run for each time, of case c1: `add_runs([100, 101, …])` gives their ids, oldest first."""

    def add(times_us: Iterable[float], **changes: Any) -> list[str]:
        ids = []
        for number, time_us in enumerate(times_us):
            ids.append(f"20250101T{number:06d}Z-000000")
            add_run(ids[-1], [measured("c1", time_us, **changes)])
        return ids

    return add


@pytest.fixture
def farbench(archive: Archive) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("FARBENCH_")}
        environ |= {"FARBENCH_ARCHIVE": str(archive.path), "COLUMNS": "160"}
        return subprocess.run(
            [sys.executable, "-m", "orchestrator", *arguments], cwd=archive.path.parent, env=environ,
            capture_output=True, text=True, encoding="utf-8", timeout=100, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    return run
