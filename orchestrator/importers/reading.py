"""What a reader found in a file, in farbench's words and units, before it is a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from orchestrator.model import Accuracy, Device, Status, Telemetry

MOST_SAMPLES = 2000
MEAN = ":mean"
US = {"ns": 1e-3, "us": 1.0, "µs": 1.0, "μs": 1.0, "ms": 1e3, "s": 1e6, "sec": 1e6, "seconds": 1e6}
"""Microseconds in each unit of time."""


@dataclass(frozen=True)
class Time:
    """How long one call took. `clock` says who measured it how; a mean is marked, so that it never meets a median.

    `us` may be whatever the file says; what is no time becomes a measurement without one."""

    clock: str
    us: float
    is_mean: bool = False
    samples_us: Sequence[float] = ()
    samples: int = 0
    p20_us: float | None = None
    p80_us: float | None = None
    calls_per_sample: int | None = None
    cache: str | None = None

    @classmethod
    def of_samples(
        cls,
        clock: str,
        samples_us: Sequence[float],
        calls_per_sample: int | None = None,
        cache: str | None = None,
    ) -> Time:
        """The median of samples, and their 20th and 80th percentile by linear interpolation."""
        if not samples_us or not all(map(math.isfinite, samples_us)):
            return cls(clock, math.nan)
        low, middle, high = (float(q) for q in np.quantile(np.asarray(samples_us), (0.2, 0.5, 0.8)))
        count = len(samples_us)
        kept = samples_us
        if count > MOST_SAMPLES:
            kept = [samples_us[i * count // MOST_SAMPLES] for i in range(MOST_SAMPLES)]
        return cls(
            clock, middle, samples_us=kept, samples=count, p20_us=low, p80_us=high,
            calls_per_sample=calls_per_sample, cache=cache,
        )  # fmt: skip

    @property
    def timer(self) -> str:
        """The name under which times may be compared."""
        return self.clock + (MEAN if self.is_mean else "")

    @property
    def is_one(self) -> bool:
        """Whether the number can be a time."""
        return math.isfinite(self.us) and self.us > 0


@dataclass(frozen=True)
class Reading:
    """One result of a file. `backend` is None where the format has no such thing; `label` precedes the parameters in
    the case's label, `name` is all of it."""

    payload: str
    params: Mapping[str, Any]
    backend: str | None = None
    resolved_backend: str | None = None
    row: Mapping[str, Any] | None = None
    label: str = ""
    name: str | None = None
    time: Time | None = None
    status: Status = Status.OK
    reason: str | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    accuracy: Accuracy | None = None
    telemetry: Telemetry | None = None
    device: Device | None = None
    started_at: str | None = None
    duration_s: float | None = None
    log_tail: str | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Found:
    """Everything a file holds. `tool` is the implementation measured where no reading says which; `remarks` are for
    the person who imports it; `on_cpu` whether the tool measures processors."""

    tool: str
    readings: Sequence[Reading]
    host: str | None = None
    on_cpu: bool = False
    remarks: Sequence[str] = ()


@dataclass(frozen=True)
class Wishes:
    """What the person said who imports a file, for what the file leaves open; `names_case` when they gave parameters,
    so that the file's name need not stand for the case."""

    unit: str | None = None
    keys: tuple[str, ...] = ()
    names_case: bool = False


def number(value: Any) -> float | None:
    """A finite number out of a number or a text; None for everything else, booleans too."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def scalar(text: str) -> Any:
    """A field of a table, typed: true, false, whole numbers (also as `16.0`), numbers, text; None for none.

    Whole numbers stay exact whatever their size."""
    text = text.strip()
    if text in ("", "None", "null", "nan", "NaN"):
        return None
    if text in ("True", "true", "False", "false"):
        return text in ("True", "true")
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) < 1000:
        return int(text)
    value = number(text)
    if value is None:
        return text
    whole = value.is_integer() and abs(value) < 2**53 and "e" not in text.lower()
    return int(value) if whole else value


def jsonable(value: Any) -> Any:
    """A value of JSON with what strict JSON lacks (NaN, infinities, lone surrogates) replaced."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {str(jsonable(key)): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    return value


def utc(text: str | None) -> str | None:
    """A moment that says its offset, as UTC with a Z; None for one that does not: nobody knows when that was."""
    try:
        moment = datetime.fromisoformat((text or "").strip())
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def gpu(name: str, index: int = 0, compute_capability: str | None = None) -> Device:
    """A GPU of which the file says no UUID."""
    return Device(uuid=f"unknown-{index}", index=index, name=name, compute_capability=compute_capability)


def cpu(name: str) -> Device:
    """The processor of a host."""
    return Device(uuid="cpu-0", index=0, name=name, kind="cpu")


def without_none(**values: Any) -> dict[str, Any]:
    """Those that have a value."""
    return {name: value for name, value in values.items() if value is not None}
