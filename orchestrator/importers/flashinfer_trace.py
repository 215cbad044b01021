"""flashinfer-bench traces (JSON lines): a definition is a payload, a workload a case, a solution a backend.

`latency_ms` is a mean. A line without evaluation is a workload that nobody measured; it is passed over.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import Field

from orchestrator.importers.reading import Found, Reading, Time, Wishes, gpu, number, utc, without_none
from orchestrator.importers.source import Foreign, Source
from orchestrator.model import Accuracy, Status

TOOL = "flashinfer-bench"
_STATUS = {
    "PASSED": Status.OK, "INCORRECT_SHAPE": Status.INCORRECT, "INCORRECT_NUMERICAL": Status.INCORRECT,
    "INCORRECT_DTYPE": Status.INCORRECT, "RUNTIME_ERROR": Status.ERROR, "COMPILE_ERROR": Status.ERROR,
    "TIMEOUT": Status.TIMEOUT,
}  # fmt: skip
_SAID = {
    "INCORRECT_SHAPE": "the output has another shape", "INCORRECT_NUMERICAL": "the output differs from the reference",
    "INCORRECT_DTYPE": "the output has another type", "RUNTIME_ERROR": "it failed while it ran",
    "COMPILE_ERROR": "it could not be built", "TIMEOUT": "it took too long",
}  # fmt: skip


class _Workload(Foreign):
    axes: dict[str, int]
    inputs: dict[str, dict[str, Any]] = Field(default_factory=dict)
    uuid: str


class _Performance(Foreign):
    latency_ms: float
    reference_latency_ms: float | None = None
    speedup_factor: float | None = None


class _Environment(Foreign):
    hardware: str | None = None
    libs: dict[str, str] = Field(default_factory=dict)


class _Evaluation(Foreign):
    status: str
    environment: _Environment = _Environment()
    timestamp: str | None = None
    log: str | None = None
    correctness: dict[str, Any] | None = None
    performance: _Performance | None = None


class _Trace(Foreign):
    definition: str
    workload: _Workload
    solution: str | None = None
    evaluation: _Evaluation | None = None


def fits(source: Source) -> bool:
    """Whether its first line is a trace."""
    first = next((line for line in source.lines if line.strip()), "")
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and {"definition", "workload"} <= value.keys()


def read(source: Source, wishes: Wishes) -> Found:
    """Every trace with an evaluation. Raises `FileError`."""
    readings = []
    unmeasured = 0
    for line, text in enumerate(source.lines, 1):
        if not text.strip():
            continue
        trace = source.checked(_Trace, source.json_of(text, line), line=line)
        if trace.evaluation is None or trace.solution is None:
            unmeasured += 1
            continue
        if trace.evaluation.status == "PASSED" and trace.evaluation.performance is None:
            raise source.wrong("evaluation.performance is missing from one that PASSED", line)
        readings.append(_reading(trace, trace.solution, trace.evaluation))
    remarks = [f"{unmeasured} traces hold no evaluation and were passed over"] if unmeasured else []
    return Found(TOOL, readings, remarks=remarks)


def _reading(trace: _Trace, solution: str, evaluation: _Evaluation) -> Reading:
    told, scalars = evaluation.performance, trace.workload.inputs.items()
    status = _STATUS.get(evaluation.status, Status.ERROR)  # a newer version may know more ways to fail
    correctness = evaluation.correctness or {}
    hardware = evaluation.environment.hardware
    return Reading(
        payload=trace.definition,
        # The same axes may come with other contents (page tables, lengths): the workload's id is part of the case.
        params={
            **trace.workload.axes,
            **{name: given.get("value") for name, given in scalars if given.get("type") == "scalar"},
            "workload": trace.workload.uuid,
        },
        backend=solution,
        time=Time(TOOL, told.latency_ms * 1e3, is_mean=True)
        if told is not None and status is Status.OK
        else None,
        status=status,
        reason=None
        if status is Status.OK
        else _SAID.get(evaluation.status, f"it ended as {evaluation.status}"),
        metrics=without_none(
            reference_us=_us(told.reference_latency_ms) if told else None,
            speedup_over_reference=number(told.speedup_factor) if told else None,
        ),
        extra={"evaluation": evaluation.status}
        | without_none(
            max_relative_error=number(correctness.get("max_relative_error")),
            timestamp=evaluation.timestamp if utc(evaluation.timestamp) is None else None,
        ),
        accuracy=Accuracy(
            max_abs_error=number(correctness.get("max_absolute_error")),
            reference="flashinfer-bench definition",
        )
        if correctness
        else None,
        device=gpu(hardware.replace("_", " ")) if hardware else None,
        started_at=utc(evaluation.timestamp),
        log_tail=evaluation.log or None,
        environment={"hardware": hardware, **evaluation.environment.libs}
        if hardware
        else evaluation.environment.libs,
    )


def _us(milliseconds: float | None) -> float | None:
    found = number(milliseconds)
    return None if not found else found * 1e3
