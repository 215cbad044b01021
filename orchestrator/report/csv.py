"""The report as CSV: a line a measurement, in the order of the run, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

from orchestrator.model import Measurement, Status
from orchestrator.report.build import Report
from orchestrator.report.ceilings import Share
from orchestrator.report.speedup import NoSpeedup, Speedup
from orchestrator.wording import visible

_FORMULA = ("=", "+", "-", "@")


def render(report: Report) -> str:
    """Every measurement with its speed-up; parameters, rows and metrics in columns `param.…`, `row.…`, `metric.…`.
    What is not measured yet has no status."""
    told = zip(report.measurements, report.speedups, report.shares, strict=True)
    lines = [_line(m, speedup, share) for m, speedup, share in told]
    lines += [{**_line(m, None, None), "status": None} for m in report.pending]
    heads = list(dict.fromkeys(name for line in lines for name in line)) if lines else list(_FIXED)
    known = {name: place for place, name in enumerate(_FIXED)}
    heads.sort(key=lambda name: known.get(name, len(known)))  # stable: the others as they came
    return grid(heads, ([line.get(head) for head in heads] for line in lines))


def grid(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """CSV of any values: null is empty, lists and mappings are JSON, text is guarded (`guarded`)."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([guarded(column) for column in columns])
    for row in rows:
        writer.writerow([_field(value) for value in row])
    return out.getvalue()


def guarded(text: str) -> str:
    """Text that no spreadsheet takes for a formula and no terminal for a command."""
    shown = visible(text)
    return f"'{shown}" if shown.lstrip().startswith(_FORMULA) else shown


def _field(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return value
    if isinstance(value, str):
        return guarded(value)
    if isinstance(value, list | dict):
        return guarded(json.dumps(value, ensure_ascii=False, default=str))
    return guarded(str(value))


_TIMING = (
    "median_us", "p20_us", "p80_us", "rel_error", "samples", "timer", "cache", "hot_median_us", "host_us", "compile_s",
)  # fmt: skip
_FIXED = (
    "run_id", "host", "device_index", "device_uuid", "device_name", "payload", "case_id", "label", "backend",
    "resolved_backend", "status", "reason", "verdict", "reasons", *_TIMING, "speedup", "speedup_note", "ceiling_fraction",
    "ceiling_bound", "cosine",
    "float_cosine", "attempt", "started_at", "duration_s", "environment_id",
)  # fmt: skip


def _line(m: Measurement, speedup: Speedup | NoSpeedup | None, share: Share | None) -> dict[str, Any]:
    line: dict[str, Any] = {
        name: getattr(m, name)
        for name in (
            "run_id",
            "host",
            "payload",
            "case_id",
            "label",
            "backend",
            "resolved_backend",
            "reason",
            "attempt",
        )
    }
    line |= {name: getattr(m, name) for name in ("started_at", "duration_s", "environment_id")}
    line |= {
        "status": m.status.value,
        "verdict": m.verdict.value if m.verdict else None,
        "reasons": " ".join(m.reasons),
    }
    for name in ("index", "uuid", "name"):
        line[f"device_{name}"] = getattr(m.device, name, None)
    for name in _TIMING:
        line[name] = getattr(m.timing, name, None)
    for name in ("cosine", "float_cosine"):
        line[name] = getattr(m.accuracy, name, None)
    line["speedup"] = speedup.value if isinstance(speedup, Speedup) else None
    line["speedup_note"] = _note(speedup) if m.status is Status.OK else ""
    if share is not None:
        line |= {"ceiling_fraction": share.fraction, "ceiling_bound": share.bound}
    for prefix, values in (
        ("param", m.params),
        ("row", m.row or {}),
        ("metric", m.metrics),
        ("extra", m.extra),
    ):
        line |= {f"{prefix}.{name}": value for name, value in values.items()}
    return line


def _note(speedup: Speedup | NoSpeedup | None) -> str:
    if isinstance(speedup, Speedup):
        return " ".join(speedup.doubts)
    return speedup.why if isinstance(speedup, NoSpeedup) else ""
