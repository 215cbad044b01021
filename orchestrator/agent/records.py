"""A worker's measurement made into a whole record: strict JSON, and only what its status allows.

Workers are other people's programs, so nothing they send is taken on trust: what cannot stand in a result becomes
null or an `error`, and the reason says what was wrong.
"""

from __future__ import annotations

import json
import math
from datetime import datetime, timezone
from typing import Any, Dict, List, Mapping, Optional, Sequence

from .logs import Redactor
from .wire import finite, name_of

SCHEMA_VERSION = 1
STATUSES = ("ok", "incorrect", "unsupported", "error", "crashed", "timeout", "oom", "lost", "cancelled")
VERDICTS = ("valid", "suspect", "invalid")
REASONS = ("throttled", "contended", "noisy", "few_samples", "timers_disagree", "clock_offset")
_FAILED = ("error", "crashed", "timeout", "oom")
_REQUIRED_TIMES = ("median_us",)
_OTHER_TIMES = ("p20_us", "p80_us", "rel_error", "compile_s", "hot_median_us", "host_us")
_ACCURACY = ("cosine", "rel_error", "max_abs_error", "float_cosine")
_LONGEST_REASON = 4000


class Fault(Exception):
    """A measurement that claims to be a result and cannot be one."""


def utc(timestamp: float) -> str:
    """UTC with milliseconds: 2026-01-31T12:00:00.123Z."""
    text = datetime.fromtimestamp(timestamp, timezone.utc).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def failure(backend: str, status: str, reason: str) -> Dict[str, Any]:
    """What stands for a backend that did not report itself."""
    return {"backend": backend, "status": status, "reason": reason}


def complete(
    measurement: Mapping[str, Any],
    facts: Mapping[str, Any],
    redactor: Redactor,
    telemetry: Optional[Mapping[str, Any]] = None,
    telemetry_reasons: Sequence[str] = (),
    log_tail: str = "",
) -> Dict[str, Any]:
    """A whole record out of what a worker sent and what the agent knows (`facts`), without secret values.

    Reasons of the telemetry make a valid result suspect. The log's tail is kept with failures only."""
    sent, problems = finite(dict(measurement))
    record = _checked(sent, measurement, problems)
    if record["status"] == "ok":
        wanted = [reason for reason in (*record["reasons"], *telemetry_reasons) if reason in REASONS]
        record["reasons"] = list(dict.fromkeys(wanted))
        if telemetry_reasons and record["verdict"] == "valid":
            record["verdict"] = "suspect"
    record["telemetry"] = finite(dict(telemetry))[0] if telemetry else None
    record["log_tail"] = log_tail or None if record["status"] in _FAILED else None
    cleaned = redactor.clean(record)
    assert isinstance(cleaned, dict)
    return {"schema_version": SCHEMA_VERSION, **cleaned, **facts}


def _checked(sent: Dict[str, Any], original: Mapping[str, Any], problems: List[str]) -> Dict[str, Any]:
    record: Dict[str, Any] = {
        "row": _mapping(sent.get("row")) or None,
        "backend": str(sent.get("backend")),
        "resolved_backend": _text(sent.get("resolved_backend")),
        "status": sent.get("status"),
        "reason": _text(sent.get("reason")),
        "verdict": None,
        "reasons": [],
        "timing": None,
        "samples_us": None,
        "metrics": {},
        "extra": _mapping(sent.get("extra")),
        "accuracy": None,
    }
    _split_metrics(_mapping(sent.get("metrics")), record)
    try:
        if record["status"] not in STATUSES:
            raise Fault(f"the payload reported an unknown status: {record['status']!r:.80}")
        if record["status"] == "ok":
            record["timing"] = _timing(sent.get("timing"), original.get("timing"))
            record["samples_us"] = _samples(sent.get("samples_us"), original.get("samples_us"))
        record["accuracy"] = _numbers(sent.get("accuracy"), _ACCURACY, ("reference",))
        if record["status"] == "ok":
            _check_ok(record, sent, problems)
    except Fault as fault:
        record.update(status="error", verdict=None, reasons=[], timing=None, samples_us=None)
        problems.insert(0, str(fault))
    record["reason"] = _reason(record["reason"], problems)
    return record


def _check_ok(record: Dict[str, Any], sent: Mapping[str, Any], problems: Sequence[str]) -> None:
    verdict = sent.get("verdict")
    record["verdict"] = verdict if verdict in VERDICTS else "valid"
    reasons = sent.get("reasons")
    record["reasons"] = [str(reason) for reason in reasons] if isinstance(reasons, list) else []
    if record["timing"] is not None and record["samples_us"] == []:
        # A time that no sample stands behind is no measurement.
        record.update(verdict="invalid", reasons=[*record["reasons"], "few_samples"], samples_us=None)
    if any(problem.startswith("accuracy.") for problem in problems):
        # A kernel whose error is not a number is not known to be right.
        record.update(status="incorrect", verdict=None, reasons=[], timing=None, samples_us=None)


def _timing(timing: Any, original: Any) -> Optional[Dict[str, Any]]:
    if timing is None:
        return None
    if not isinstance(timing, dict) or not isinstance(original, dict):
        raise Fault("timing is no object")
    median = original.get("median_us")
    if not isinstance(median, (int, float)) or isinstance(median, bool):
        raise Fault("timing.median_us is no number")
    if not math.isfinite(median):
        raise Fault(f"timing.median_us is {name_of(median)}")
    if median <= 0:
        raise Fault(f"timing.median_us is {median:g}: a time must be positive")
    checked = _numbers(timing, (*_REQUIRED_TIMES, *_OTHER_TIMES), ("timer", "cache")) or {}
    checked["timer"] = checked["timer"] or "unknown"
    checked["samples"] = _count(timing.get("samples")) or 0
    checked["calls_per_sample"] = _count(timing.get("calls_per_sample"))
    return checked


def _samples(samples: Any, original: Any) -> Optional[List[float]]:
    if samples is None:
        return None
    if not isinstance(samples, list) or not all(_is_number(sample) or sample is None for sample in samples):
        raise Fault("samples_us is no list of numbers")
    wrong = [sample for sample in original if not _is_number(sample) or not math.isfinite(sample)]
    if wrong:
        raise Fault(f"samples_us holds {len(wrong)} values that are no finite numbers")
    return [float(sample) for sample in samples]


def _split_metrics(metrics: Mapping[str, Any], record: Dict[str, Any]) -> None:
    for name, value in metrics.items():
        if value is None or (_is_number(value) and abs(value) < 1e308):
            record["metrics"][name] = value
        else:
            record["extra"].setdefault(name, value)


def _numbers(value: Any, numbers: Sequence[str], texts: Sequence[str]) -> Optional[Dict[str, Any]]:
    if not isinstance(value, dict):
        return None
    checked: Dict[str, Any] = {
        name: value.get(name) if _is_number(value.get(name)) else None for name in numbers
    }
    checked.update((name, _text(value.get(name))) for name in texts)
    return checked


def _reason(reason: Optional[str], problems: Sequence[str]) -> Optional[str]:
    shown = list(problems[:8])
    if len(problems) > len(shown):
        shown.append(f"and {len(problems) - len(shown)} more values that are not finite")
    text = "; ".join(([reason] if reason else []) + shown)
    return text[:_LONGEST_REASON] or None


def _mapping(value: Any) -> Dict[str, Any]:
    return dict(value) if isinstance(value, dict) else {}


def _text(value: Any) -> Optional[str]:
    if value is None:
        return None
    return value if isinstance(value, str) else json.dumps(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _count(value: Any) -> Optional[int]:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
