"""A comparison, or a history, as one JSON document. Changes are in per cent."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from orchestrator.compare.trend import History, Series
from orchestrator.compare.values import Comparison, LeftOut, Pair, Subject, Timed


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """`{"a", "b", "threshold_percent", "counts", "pairs", "left_out", "differences"}`."""
    return {
        "a": asdict(comparison.a),
        "b": asdict(comparison.b),
        "threshold_percent": _percent(comparison.threshold),
        "counts": dict(comparison.counts),
        "pairs": [_pair(pair) for pair in comparison.pairs],
        "left_out": [_left_out(missing) for missing in comparison.left_out],
        "differences": [asdict(difference) for difference in comparison.differences],
    }


def history_document(history: History) -> dict[str, Any]:
    """`{"series": [{…, "points", "changes", "level_us"}]}`, points oldest first."""
    return {"series": [_series(series) for series in history.series]}


def _pair(pair: Pair) -> dict[str, Any]:
    match = pair.match
    return {
        **_subject(match.subject),
        "label": match.label,
        "payload": match.payload,
        "a": _side(match.a),
        "b": _side(match.b),
        "change_percent": _percent(pair.change),
        "interval_percent": None if pair.low is None else [_percent(pair.low), _percent(pair.high)],
        "floor_percent": _percent(pair.floor),
        "verdict": pair.outcome.value,
        "why": pair.why or None,
        "notes": list(pair.notes),
        "p_value": pair.p_value,
        "noise": {"from": pair.noise, "runs": pair.noise_runs, "freaks": pair.freaks},
    }


def _subject(subject: Subject) -> dict[str, Any]:
    return {
        "case_id": subject.case_id,
        "row": _row(subject.row),
        "backend": subject.backend,
        "device_model": subject.device_model,
        "cache": subject.cache,
        "timer": subject.timer,
    }


def _side(side: Timed) -> dict[str, Any]:
    return {
        "run_id": side.run_id,
        "host": side.host,
        "device_uuid": side.device_uuid or None,
        "median_us": side.median_us,
        "valid": side.is_valid,
        "reasons": list(side.reasons),
        "sm_clock_mhz": side.sm_clock_mhz,
        "runs": side.runs,
    }


def _left_out(missing: LeftOut) -> dict[str, Any]:
    return {**asdict(missing), "row": _row(missing.row)}


def _series(series: Series) -> dict[str, Any]:
    return {
        **_subject(series.subject),
        "label": series.label,
        "payload": series.payload,
        "host": series.host,
        "device_uuid": series.device_uuid or None,
        "level_us": series.level_us,
        "spread_percent": _percent(series.spread),
        "points": [
            {
                "run_id": point.run_id,
                "started_at": point.started_at,
                "median_us": point.median_us,
                "valid": point.is_valid,
            }
            for point in series.points
        ],
        "changes": [
            {
                "run_id": change.run_id,
                "started_at": change.started_at,
                "before_us": change.before_us,
                "after_us": change.after_us,
                "change_percent": _percent(change.change),
            }
            for change in series.changes
        ],
    }


def _row(text: str) -> Any:
    return json.loads(text) if text else None


def _percent(fraction: float | None) -> float | None:
    return None if fraction is None else 100 * fraction


def document_text(document: dict[str, Any]) -> str:
    """Strict ASCII JSON."""
    return json.dumps(document, allow_nan=False, indent=2) + "\n"
