"""The formats that can be imported, and how one is told from another by its content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.errors import FileError, UsageError
from orchestrator.importers import (
    flashinfer_csv,
    flashinfer_trace,
    google_benchmark,
    nccl_tests,
    nvbench,
    pyperf,
    triton_csv,
    vllm,
)
from orchestrator.importers.reading import Found, Wishes
from orchestrator.importers.source import Source


@dataclass(frozen=True)
class Format:
    """A format: whether a file is of it, and everything that a file of it holds."""

    fits: Callable[[Source], bool]
    read: Callable[[Source, Wishes], Found]


FORMATS = {
    "nvbench": Format(nvbench.fits, nvbench.read),
    "google-benchmark": Format(google_benchmark.fits, google_benchmark.read),
    "pyperf": Format(pyperf.fits, pyperf.read),
    "vllm": Format(vllm.fits, vllm.read),
    "flashinfer-trace": Format(flashinfer_trace.fits, flashinfer_trace.read),
    "flashinfer-csv": Format(flashinfer_csv.fits, flashinfer_csv.read),
    "nccl-tests": Format(nccl_tests.fits, nccl_tests.read),
    "triton-csv": Format(triton_csv.fits, triton_csv.read),
}


def read(source: Source, format: str, wishes: Wishes) -> tuple[str, Found]:
    """The format of a file, and what it holds. Raises `FileError`, with the line where one is known; `UsageError` for
    a format that does not exist."""
    name = detect(source) if format == "auto" else format
    if name not in FORMATS:
        raise UsageError(f"there is no format {format!r:.40}; there are auto, {', '.join(FORMATS)}")
    found = FORMATS[name].read(source, wishes)
    if not found.readings:
        raise source.wrong(f"holds no result that {name} knows")
    return name, found


def detect(source: Source) -> str:
    """The format of a file. Raises `FileError` when it is none of them."""
    if not source.content.strip():
        raise source.wrong("is empty")
    damage: FileError | None = None
    for name, format in FORMATS.items():
        try:
            if format.fits(source):
                return name
        except FileError as error:
            damage = damage or error  # JSON that is damaged fits nothing; where it is damaged is what helps
    if damage is not None and source.text.lstrip()[:1] in ("{", "["):
        raise damage
    raise source.wrong(f"is none of the formats known ({', '.join(FORMATS)}); --format says which it is")
