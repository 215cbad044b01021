"""The measurement record that leaves a worker: strict JSON, with the fields of `results.jsonl` that a worker knows."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from . import strictjson


def measurement(
    backend: str,
    status: str,
    reason: Optional[str] = None,
    *,
    resolved_backend: Optional[str] = None,
    verdict: Optional[str] = None,
    reasons: Sequence[str] = (),
    row: Optional[Mapping[str, Any]] = None,
    timing: Optional[Mapping[str, Any]] = None,
    samples_us: Optional[Sequence[Any]] = None,
    metrics: Optional[Mapping[str, Any]] = None,
    extra: Optional[Mapping[str, Any]] = None,
    accuracy: Optional[Mapping[str, Any]] = None,
) -> Dict[str, Any]:
    """A record. A number that is not finite becomes null and `reason` says which; where that is a time, the measurement
    is an `error` and carries no timing. A metric that is no number moves to `extra`."""
    notes: List[str] = [reason] if reason else []
    values, others = _split_metrics(metrics or {})
    clean_timing, bad_times = _clean({"timing": timing, "samples_us": samples_us})
    clean, problems = _clean(
        {"metrics": values, "extra": dict(extra or {}, **others), "accuracy": accuracy, "row": row}
    )
    if bad_times and status == "ok":
        status, verdict, reasons = "error", None, ()
    if status != "ok":
        clean_timing = {"timing": None, "samples_us": None}
    return {
        "backend": backend,
        "resolved_backend": resolved_backend,
        "status": status,
        "reason": strictjson.plain("; ".join(notes + bad_times + problems))[0] or None,
        "verdict": verdict,
        "reasons": list(reasons),
        "row": clean["row"],
        "timing": clean_timing["timing"],
        "samples_us": clean_timing["samples_us"],
        "metrics": clean["metrics"],
        "extra": clean["extra"],
        "accuracy": clean["accuracy"],
    }


def _clean(fields: Mapping[str, Any]) -> Any:
    return strictjson.plain(dict(fields))


def _split_metrics(metrics: Mapping[str, Any]) -> Any:
    numbers: Dict[str, Any] = {}
    others: Dict[str, Any] = {}
    for name, value in metrics.items():
        # Numpy and torch scalars have `item`; what they hold decides.
        held = (
            value.item()
            if callable(getattr(value, "item", None)) and getattr(value, "size", 1) == 1
            else value
        )
        is_number = isinstance(held, (int, float)) and not isinstance(held, bool)
        if is_number and isinstance(held, int) and not math.isfinite(_as_float(held)):
            is_number = False
        (numbers if is_number else others)[str(name)] = held
    return numbers, others


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def apart(extra: Optional[Mapping[str, Any]], devices: int) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """(`extra` for the record, metrics): `extra.ranks` says how many devices worked together, and nothing else. A payload's
    own number of that name (a rank of a factorisation, say) is a metric."""
    kept: Dict[str, Any] = dict(extra or {})
    own = {"ranks": kept.pop("ranks")} if isinstance(kept.get("ranks"), (int, float)) else {}
    if devices > 1:
        return {**kept, "ranks": devices}, {}
    return kept, own


def reported_times(samples_us: Any) -> List[float]:
    """What a payload measured by itself, as floats. Raises ValueError for what is no time."""
    found = []
    if samples_us is not None and not hasattr(samples_us, "__iter__"):
        raise ValueError("samples_us is {!r}: it must be a list of times".format(samples_us))
    samples_us = samples_us.tolist() if hasattr(samples_us, "tolist") else samples_us
    for index, sample in enumerate(samples_us or ()):
        try:
            time_us = float(sample)
        except (TypeError, ValueError):
            time_us = None
        if isinstance(sample, (str, bytes, bool)) or time_us is None or time_us <= 0:
            raise ValueError("samples_us[{}] is {!r}: a time is a number above zero".format(index, sample))
        found.append(time_us)
    return found


def figure(name: str, value: Any) -> Optional[float]:
    """What a payload says of one call, as a float; None where it says nothing. Raises for what is no amount."""
    if value is None:
        return None
    try:
        amount = float(value) if not isinstance(value, (str, bytes)) else None
    except OverflowError:
        amount = math.inf
    except (TypeError, ValueError, RuntimeError):
        amount = None
    if amount is None:
        raise TypeError("{} is {!r}: it must be a number".format(name, value))
    if not 0 <= amount < math.inf:
        raise ValueError("{} is {:g}: it must be finite, and not below zero".format(name, amount))
    return amount


def mapping(name: str, found: Any) -> Dict[str, Any]:
    """What one of a payload's functions gave, as a dict of its own. Raises TypeError where it is none."""
    if not isinstance(found, Mapping):
        raise TypeError("{} gave {}: it must give a dict".format(name, type(found).__name__))
    return dict(found)


def pair(name: str, found: Any) -> Tuple[Any, Any]:
    """What one of a payload's functions gave, in two. Raises TypeError where it is no pair."""
    if not isinstance(found, tuple) or len(found) != 2:
        raise TypeError(
            "{} gave {}: it must give (an objection or None, a dict)".format(name, type(found).__name__)
        )
    return found
