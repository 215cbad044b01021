"""The CSV that Triton's `perf_report(...).run(save_path=…)` writes: an implementation a column, a case a row.

Columns are `NAME (UNIT)`, where the unit is the `ylabel` of the benchmark; those before them are the case's parameters.
A `ylabel` may also be words with the unit in brackets: `NAME (Time (ms))`. Older versions write no unit, then `--unit` (and `--keys`) must say it. A unit of time gives times, any other gives metrics.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from orchestrator.importers import table
from orchestrator.importers.reading import US, Found, Reading, Time, Wishes, scalar
from orchestrator.importers.source import Source
from orchestrator.model import Status

TOOL = "triton"
_HEAD = re.compile(r"(.*\S)\s*\((?:[^()]*\(([^()]*)\)\s*|([^()]*))\)")
_RATES = {"gb/s": "gbps", "gbps": "gbps", "tflops": "tflops", "tflop/s": "tflops", "tflops/s": "tflops"}
_FACTORS = {"tb/s": ("gbps", 1e3), "gflops": ("tflops", 1e-3), "gflop/s": ("tflops", 1e-3)}


@dataclass(frozen=True)
class _Column:
    name: str
    unit: str | None  # None: a parameter


def fits(source: Source) -> bool:
    """Whether some column of a table names its unit, and there are rows of numbers."""
    names = table.header(source)
    return len(names) > 1 and any(_HEAD.fullmatch(name) for name in names) and len(source.lines) > 1


def read(source: Source, wishes: Wishes) -> Found:
    """Every number of the table. Raises `FileError`."""
    columns = _columns(source, wishes)
    readings = []
    for line, fields in table.rows(source, len(columns)):
        told = [(column, field) for column, field in zip(columns, fields, strict=True) if column is not None]
        params = {column.name: scalar(field) for column, field in told if column.unit is None}
        for column, field in told:
            if column.unit is not None:
                readings.append(_reading(source, line, params, column.name, column.unit, field))
    if not readings:
        raise source.wrong("has no row below its header (was it cut off?)", len(source.lines))
    return Found(TOOL, readings)


def _columns(source: Source, wishes: Wishes) -> list[_Column | None]:
    """What each column is; None for the difference of two others, which `diff_col=True` adds."""
    names = table.header(source)
    if not names:
        raise source.wrong("has no line of column names", 1)
    if len(set(names)) < len(names) or "" in names:
        raise source.wrong("has two columns of one name, or one without", 1)
    if missing := [key for key in wishes.keys if key not in names]:
        raise source.wrong(f"has no column {missing[0]} (--keys)", 1)
    found: list[_Column | None] = []
    told = any(_HEAD.fullmatch(name) for name in names)
    keys = wishes.keys or (() if told else names[:1])
    for name in names:
        head = _HEAD.fullmatch(name)
        if name == "Diff" and name not in keys:
            found.append(None)
            continue
        if name in keys or (head is None and told and not wishes.keys):
            found.append(_Column(name, None))
            continue
        unit = wishes.unit or ((head[2] or head[3] or "").strip() if head else "")
        if not unit:
            raise source.wrong(
                f"column {name!r:.60} does not say its unit: give --unit ms, GB/s, TFLOPS …", 1
            )
        found.append(_Column(head[1] if head else name, unit))
    if not any(column is not None and column.unit is not None for column in found):
        raise source.wrong("has no column of results", 1)
    return found


def _reading(
    source: Source, line: int, params: dict[str, object], backend: str, unit: str, field: str
) -> Reading:
    payload = source.name.removesuffix(".csv") or TOOL
    text = field.strip()
    try:
        value = float(text or "nan")
    except ValueError:
        raise source.wrong(f"{backend}: {text!r:.40} is no number", line) from None
    if not math.isfinite(value):
        return Reading(
            payload,
            params,
            backend,
            status=Status.ERROR,
            reason=f"the table has no number, but {text or 'nothing'}",
        )
    if unit.lower() in US:
        return Reading(payload, params, backend, time=Time(f"{TOOL}:perf_report", value * US[unit.lower()]))
    metric, factor = _FACTORS.get(unit.lower(), (_RATES.get(unit.lower()), 1.0))
    metric = metric or re.sub(r"\W+", "_", unit).strip("_").lower() or "value"
    return Reading(payload, params, backend, metrics={metric: value * factor})
