"""Samples of every format: made by the tools where they run here (pyperf, google-benchmark, Triton's perf_report on a
CPU function), else written after their documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.archive import Archive
from orchestrator.importers import formats
from orchestrator.importers.measurements import Said, measurements_of
from orchestrator.importers.reading import Wishes
from orchestrator.importers.source import Source
from orchestrator.model import Measurement
from tests.exchange.conftest import farbench

__all__ = ["farbench"]

DATA = Path(__file__).parent / "data"
FORMAT_OF = {
    "nvbench.json": "nvbench", "google-benchmark.json": "google-benchmark", "pyperf.json": "pyperf",
    "vllm-latency.json": "vllm", "vllm-throughput.json": "vllm", "vllm-serve.json": "vllm",
    "vllm-serve-appended.json": "vllm", "trace.jsonl": "flashinfer-trace", "flashinfer.csv": "flashinfer-csv",
    "all_reduce.txt": "nccl-tests", "softmax.csv": "triton-csv", "add-ms.csv": "triton-csv",
}  # fmt: skip


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "archive")


def read(file: Path, format: str = "auto", said: Said | None = None, **wishes: object) -> list[Measurement]:
    """The measurements of a file, as its run would hold them."""
    said = said or Said()
    source = Source.read(file)
    _, found = formats.read(source, format, Wishes(**wishes))
    return list(measurements_of(source, found, said, "r", said.host or found.host or "imported", {}))


def numbers(measurements: list[Measurement]) -> list[tuple[object, ...]]:
    """Backend, status, timer, median and number of samples of each."""
    return [
        (m.backend, m.status.value, m.timing and m.timing.timer, m.timing and round(m.timing.median_us, 4), m.timing and m.timing.samples)
        for m in measurements
    ]  # fmt: skip
