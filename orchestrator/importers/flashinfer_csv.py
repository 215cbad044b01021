"""The CSV of flashinfer's `benchmarks/flashinfer_benchmark.py --output_path FILE`: a backend of a case a row.

`median_time` and `std_time` are milliseconds. The columns differ from version to version and some appear twice; those that
are empty in a row do not belong to its routine. A backend that fails writes no row.
"""

from __future__ import annotations

from typing import Any

from orchestrator.importers import table
from orchestrator.importers.reading import Found, Reading, Time, Wishes, number, scalar, without_none
from orchestrator.importers.source import Source

TOOL = "flashinfer"
_NEEDED = ("routine", "median_time", "std_time", "tflops", "tb_per_sec", "backend")
# How it was measured or what came of it; everything else says what was measured.
_NOT_PARAMETERS = {
    *_NEEDED, "resolved_backend", "refcheck", "no_cuda_graph", "use_cupti", "use_cuda_events", "allow_output_mismatch",
    "random_seed", "case_tag", "generate_repro_command", "repro_command", "avg_actual_seq_len", "sm_count",
    "kda_variant", "kda_variant_policy",
}  # fmt: skip
_KEPT = (
    "refcheck", "allow_output_mismatch", "random_seed", "avg_actual_seq_len", "case_tag", "no_cuda_graph", "use_cupti",
    "sm_count", "kda_variant", "kda_variant_policy", "repro_command",
)  # fmt: skip


def fits(source: Source) -> bool:
    """Whether it is such a table."""
    return {"routine", "median_time", "backend"} <= set(table.header(source))


def read(source: Source, wishes: Wishes) -> Found:
    """Every row. Raises `FileError`."""
    names = table.header(source)
    for name in _NEEDED:
        if name not in names:
            raise source.wrong(f"has no column {name}", 1)
    readings = []
    for line, fields in table.rows(source, len(names), rest_in_last=names[-1] == "repro_command"):
        readings.append(_reading(source, line, _values(names, fields)))
    if not readings:
        raise source.wrong("has no row below its header (was it cut off?)", len(source.lines))
    return Found(TOOL, readings)


def _values(names: list[str], fields: list[str]) -> dict[str, Any]:
    """The row by column; of a column that appears twice, the one that says something."""
    values: dict[str, Any] = {}
    for name, field in zip(names, fields, strict=True):
        value = scalar(field)
        if value is not None:
            values.setdefault(name, value)
    return values


def _reading(source: Source, line: int, values: dict[str, Any]) -> Reading:
    for name in ("routine", "backend"):
        if not isinstance(values.get(name), str):
            raise source.wrong(f"{name} is missing", line)
    milliseconds = values.get("median_time", float("nan"))
    if isinstance(milliseconds, str | bool):
        raise source.wrong(f"median_time is {milliseconds!r:.40}, not a number of milliseconds", line)
    clock = "graph" if values.get("no_cuda_graph") is False else "eager"
    source_of_time = "cupti" if values.get("use_cupti") is True else "events"
    std, bandwidth = number(values.get("std_time")), number(values.get("tb_per_sec"))
    tag = values.get("case_tag")
    return Reading(
        payload=values["routine"],
        params={k: _plain(v) for k, v in values.items() if k not in _NOT_PARAMETERS},
        backend=values["backend"],
        resolved_backend=values["resolved_backend"]
        if isinstance(values.get("resolved_backend"), str)
        else None,
        label=str(tag) if tag is not None else "",
        time=Time(f"{TOOL}:{source_of_time}:{clock}", milliseconds * 1e3),
        metrics=without_none(
            tflops=number(values.get("tflops")),
            gbps=None if bandwidth is None else bandwidth * 1e3,
            std_us=None if std is None else std * 1e3,
        ),
        extra={name: values[name] for name in _KEPT if name in values},
    )


def _plain(value: Any) -> Any:
    """`torch.bfloat16` and `bfloat16` are one type: versions write it either way."""
    return value.removeprefix("torch.") if isinstance(value, str) else value
