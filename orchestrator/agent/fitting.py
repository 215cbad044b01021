"""Results that fit into one message: a time is never lost for what stands beside it."""

from __future__ import annotations

from typing import Any, Dict, Sequence

from .wire import dump

_MOST_SAMPLES = 100_000
_MOST_TOLD = 3


def fitting(measurement: Dict[str, Any], most: int) -> Dict[str, Any]:
    """The measurement in at most `most` bytes: fewer of its samples (what they say was found out from all of them), then
    without the largest of its other values, which `reason` names."""
    size = len(dump(measurement))
    samples = measurement.get("samples_us")
    if size > most and isinstance(samples, list) and len(samples) > _MOST_SAMPLES:
        kept = [samples[i * len(samples) // _MOST_SAMPLES] for i in range(_MOST_SAMPLES)]
        extra = {**measurement["extra"], "samples_kept": len(kept)}
        measurement = {**measurement, "samples_us": kept, "extra": extra}
        size = len(dump(measurement))
    while size > most:
        parts = [
            (len(dump(v)), part, k)
            for part in ("extra", "metrics")
            for k, v in (measurement.get(part) or {}).items()
        ]
        if not parts:
            reason = f"it printed a result of {size} bytes, and no more than {most} are kept"
            return {"backend": measurement["backend"], "row": None, "status": "error", "reason": reason}
        length, part, key = max(parts)
        left = {name: value for name, value in measurement[part].items() if name != key}
        reasons = [measurement.get("reason"), f"{part}.{key:.80} is left out: it has {length} bytes"]
        measurement = {**measurement, part: left, "reason": "; ".join(filter(None, reasons))}
        size = len(dump(measurement))
    return measurement


def some(problems: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    more = len(problems) - _MOST_TOLD
    return "; ".join([*problems[:_MOST_TOLD], *([f"{more} more"] if more > 0 else [])])
