"""From what a reader found to measurements, as if farbench had made them."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from orchestrator.events.journal import BadLine, parse_measurement
from orchestrator.identity import canonical_json, case_id
from orchestrator.importers.reading import Found, Reading, Wishes, cpu, gpu, jsonable
from orchestrator.importers.source import Source
from orchestrator.model import Device, Measurement, Status
from orchestrator.wording import assignments

_LOG_CHARACTERS = 2 * 1024 * 1024
_MIN_SAMPLES = 6


@dataclass(frozen=True)
class Said:
    """What the person says of a file: where its numbers come from, and what the run is called. `params` are added to
    every case (typed values)."""

    device: str | None = None
    host: str | None = None
    backend: str | None = None
    label: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    wishes: Wishes = field(default_factory=Wishes)


def measurements_of(
    source: Source, found: Found, said: Said, run_id: str, host: str, environments: dict[str, dict[str, Any]]
) -> Iterator[Measurement]:
    """The measurements of a file, in its order; `environments` is filled by id. Raises `FileError`."""
    label_of = _Labels(found.readings, said)
    seen: Counter[str] = Counter()
    for reading in found.readings:
        params = _params(reading, said)
        backend = reading.backend or said.backend or found.tool
        payload = str(jsonable(reading.payload))
        identifier = case_id(payload, params)
        row = dict(jsonable(reading.row)) if reading.row else None
        key = canonical_json([identifier, backend, row, reading.device.uuid if reading.device else None])
        seen[key] += 1
        if seen[key] > 1:  # the file measures it again: told apart, as compare and report need it
            row = {**(row or {}), "repeat": seen[key]}
        record = {
            "run_id": run_id, "host": host, "device": _device(reading.device, said.device, found.on_cpu), "case_id": identifier,
            "label": label_of(reading), "payload": payload, "params": params, "row": row, "backend": str(jsonable(backend)),
            "resolved_backend": reading.resolved_backend, "extra": jsonable(reading.extra),
            "metrics": {name: jsonable(value) for name, value in reading.metrics.items()},
            "accuracy": reading.accuracy, "telemetry": reading.telemetry, "started_at": reading.started_at,
            "duration_s": reading.duration_s, "environment_id": _environment(reading, environments),
            "log_tail": _tail(reading.log_tail), **_outcome(reading),
        }  # fmt: skip
        try:
            yield parse_measurement(record)
        except (BadLine, ValidationError) as error:
            raise source.wrong(f"a result of {reading.payload!r:.60} cannot be kept: {error}") from None


def _outcome(reading: Reading) -> dict[str, Any]:
    """Status, verdict and times. What claims to be a time and is none makes an error of the measurement."""
    if reading.status is not Status.OK:
        return {"status": reading.status, "reason": _visible_reason(reading.reason)}
    time = reading.time
    if time is None:
        return {"status": Status.OK, "verdict": "valid", "reason": reading.reason}
    if not time.is_one:
        return {
            "status": Status.ERROR,
            "reason": f"its time is no positive number of microseconds: {time.us}",
        }
    timing = {
        "timer": time.timer, "cache": time.cache, "median_us": time.us, "p20_us": time.p20_us, "p80_us": time.p80_us,
        "samples": time.samples or len(time.samples_us), "calls_per_sample": time.calls_per_sample,
        "rel_error": relative_error(time.samples_us),
    }  # fmt: skip
    return {
        "status": Status.OK, "verdict": "valid", "reason": reading.reason, "timing": timing,
        "samples_us": list(time.samples_us) or None,
    }  # fmt: skip


def relative_error(samples: Sequence[float]) -> float | None:
    """Half the width of the median's 95% interval over the median; None for fewer than 6 samples.

    The interval lies between two order statistics, as the payloads' own (`harness/stats.py`): ranks from the
    binomial(n, 1/2) distribution up to 50 samples, from its normal approximation beyond."""
    n = len(samples)
    if n < _MIN_SAMPLES:
        return None
    ordered = sorted(samples)
    if n > 50:
        rank = max(1, math.floor((n - 1.96 * math.sqrt(n)) / 2))
    else:
        tail, rank = 0.0, 0
        while rank <= n // 2 and (tail := tail + math.comb(n, rank) / 2.0**n) <= 0.025:
            rank += 1
        rank = max(1, rank)
    middle = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    return (ordered[n - rank] - ordered[rank - 1]) / 2 / middle


class _Labels:
    """Names of cases: what the file calls them, and the parameters in which the cases of a payload differ."""

    def __init__(self, readings: Sequence[Reading], said: Said) -> None:
        self._said = said
        values: dict[str, dict[str, set[str]]] = {}
        for reading in readings:
            of_payload = values.setdefault(reading.payload, {})
            for name, value in _params(reading, said).items():
                of_payload.setdefault(name, set()).add(canonical_json(value))
        self._varying = {
            payload: {name for name, found in names.items() if len(found) > 1}
            for payload, names in values.items()
        }

    def __call__(self, reading: Reading) -> str:
        if reading.name:
            return str(jsonable(reading.name))
        params = _params(reading, self._said)
        varying = self._varying[reading.payload]
        shown = {name: value for name, value in params.items() if name in varying} or (
            {} if reading.label else params
        )
        text = " ".join(part for part in (reading.label, assignments(shown)) if part) or reading.payload
        return str(jsonable(text))


def _params(reading: Reading, said: Said) -> dict[str, Any]:
    return dict(jsonable({**reading.params, **said.params}))


def _device(device: Device | None, name: str | None, on_cpu: bool) -> Device | None:
    """The device under the name that the person gave it; a file that names none gets one only so."""
    if name is None:
        return device
    return (
        (cpu(name) if on_cpu else gpu(name)) if device is None else device.model_copy(update={"name": name})
    )


def _environment(reading: Reading, environments: dict[str, dict[str, Any]]) -> str | None:
    told = jsonable(reading.environment)
    if not told:
        return None
    identifier = hashlib.sha256(canonical_json(told).encode("ascii")).hexdigest()[:16]
    environments[identifier] = told
    return identifier


def _tail(log: str | None) -> str | None:
    return None if log is None else jsonable(log)[-_LOG_CHARACTERS:]


def _visible_reason(reason: str | None) -> str | None:
    return None if reason is None else str(jsonable(reason))
