"""Results as curves: cases that differ in one number only (M, where there is one) are a family, and each backend a curve."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.model import Measurement, Status, Verdict
from orchestrator.report.build import Report
from orchestrator.wording import assignments

_USUAL_AXES = ("m", "M", "tokens", "batch", "batch_size", "n")
"""Parameters that a curve runs over, in order of preference."""


@dataclass(frozen=True)
class Point:
    """A backend at one `x`: the median over the devices that measured it, and the range of their times.

    `low` and `high` span the 20th to 80th percentiles of every device; `devices` is how many there are."""

    x: float
    value: float
    low: float
    high: float
    devices: int
    doubtful: bool


@dataclass(frozen=True)
class Family:
    """Curves by backend over parameter `axis`; `name` says what all its cases have in common."""

    name: str
    axis: str
    curves: Mapping[str, Sequence[Point]]


def families(report: Report, metric: str = "time") -> list[Family]:
    """The families of a run, in the order of its plan. `metric` is `time` (µs), `tflops` or `gbps`.

    Only ok measurements that are not `invalid` count; a case without any number among its parameters is in no family."""
    grouped: dict[tuple[str, str, str, str], dict[str, dict[float, list[Measurement]]]] = {}
    axes = _axes(report.measurements)
    several_payloads = len({table.payload for table in report.tables}) > 1
    several_models = len({table.device_model for table in report.tables}) > 1
    for m in report.measurements:
        axis = axes.get(m.payload)
        if axis is None or m.status is not Status.OK or m.verdict is Verdict.INVALID:
            continue
        params = _params(m)
        x = _number(params.get(axis))
        if x is None or _value(m, metric) is None:
            continue
        rest = assignments({name: value for name, value in params.items() if name != axis})
        model = m.device.model if m.device else ""
        parts = [m.payload if several_payloads else "", rest, model if several_models else ""]
        name = " · ".join(part for part in parts if part) or m.payload
        curves = grouped.setdefault((m.payload, rest, model, name), {})
        curves.setdefault(m.backend, {}).setdefault(x, []).append(m)
    return [
        Family(name, axes[payload] or "", _curves(curves, metric))
        for (payload, _, _, name), curves in grouped.items()
    ]


def _curves(curves: Mapping[str, Mapping[float, list[Measurement]]], metric: str) -> dict[str, list[Point]]:
    return {
        backend: [_point(x, members, metric) for x, members in sorted(points.items())]
        for backend, points in curves.items()
    }


def _point(x: float, members: Sequence[Measurement], metric: str) -> Point:
    values = [value for m in members if (value := _value(m, metric)) is not None]
    edges = [edge for m in members for edge in _edges(m, metric)]
    return Point(
        x=x,
        value=statistics.median(values),
        low=min([*values, *edges]),
        high=max([*values, *edges]),
        devices=len({(m.host, m.device.uuid if m.device else "") for m in members}),
        doubtful=any(m.verdict is not Verdict.VALID for m in members),
    )


def _value(m: Measurement, metric: str) -> float | None:
    value = (m.timing.median_us if m.timing else None) if metric == "time" else m.metrics.get(metric)
    return value if value is not None and value > 0 else None


def _edges(m: Measurement, metric: str) -> list[float]:
    """The 20th and 80th percentile of the metric: of a rate, from those of the time it is inverse to."""
    timing, value = m.timing, _value(m, metric)
    if timing is None or value is None:
        return []
    times = [t for t in (timing.p20_us, timing.p80_us) if t is not None and t > 0]
    return times if metric == "time" else [value * timing.median_us / t for t in times]


def _axes(measurements: Iterable[Measurement]) -> dict[str, str | None]:
    """The parameter that each payload's curves run over: a usual one, else the number with the most values."""
    seen: dict[str, dict[str, set[Any]]] = {}
    for m in measurements:
        values = seen.setdefault(m.payload, {})
        for name, value in _params(m).items():
            if _number(value) is not None:
                values.setdefault(name, set()).add(value)
    return {payload: _axis(values) for payload, values in seen.items()}


def _axis(values: Mapping[str, set[Any]]) -> str | None:
    varying = {name: found for name, found in values.items() if len(found) > 1} or values
    for name in _USUAL_AXES:
        if name in varying:
            return name
    return max(varying, key=lambda name: len(varying[name]), default=None)


def _params(m: Measurement) -> dict[str, Any]:
    return {**m.params, **(m.row or {})}


def _number(value: object) -> float | None:
    """A parameter as a place on an axis."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300:
        return float(value)
    return None
