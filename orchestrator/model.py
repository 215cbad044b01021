"""The values that travel between the stages: cases, devices, plans, measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StrictFloat, StrictInt, model_validator

SCHEMA_VERSION = 1

Params = Mapping[str, Any]
"""Typed parameters of a case: JSON values only (str, int, float, bool, None, list, dict)."""


class Status(StrEnum):
    """How one measurement ended."""

    OK = "ok"
    INCORRECT = "incorrect"
    UNSUPPORTED = "unsupported"
    ERROR = "error"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    OOM = "oom"
    LOST = "lost"
    CANCELLED = "cancelled"

    @property
    def is_result(self) -> bool:
        """Whether this stands as a result; `lost` and `cancelled` are to be measured again."""
        return self not in (Status.LOST, Status.CANCELLED)


class Verdict(StrEnum):
    """How far the number of an `ok` measurement can be trusted."""

    VALID = "valid"
    SUSPECT = "suspect"
    INVALID = "invalid"


REASONS = ("throttled", "contended", "noisy", "few_samples", "timers_disagree", "clock_offset")


@dataclass(frozen=True)
class Case:
    """One point of a sweep of one payload. `case_id` is 16 hex digits over payload name and `params`."""

    case_id: str
    label: str
    payload: str
    params: Params
    part: int = 0
    line: int | None = None


@dataclass(frozen=True)
class Placement:
    """One case on one host. Under `shard` over several hosts `host` is where it starts, not where it must stay."""

    case_id: str
    host: str


@dataclass(frozen=True)
class RunCounts:
    """Counts over a whole run, by status and (of the ok ones) by verdict."""

    statuses: Mapping[str, int] = field(default_factory=dict)
    verdicts: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Number of measurements."""
        return sum(self.statuses.values())

    @property
    def exit_code(self) -> int:
        """0 when every measurement is ok or unsupported and at least one is ok, else 1."""
        good = self.statuses.get("ok", 0) + self.statuses.get("unsupported", 0)
        return 0 if good == self.total and self.statuses.get("ok", 0) else 1


class _Record(BaseModel):
    """Data from outside: unknown fields are kept out of the way, NaN and infinities are refused."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, frozen=True)


class Device(_Record):
    """A GPU (named by UUID; the index is for people) or a CPU slot."""

    uuid: str
    index: int
    name: str
    compute_capability: str | None = None
    kind: Literal["gpu", "cpu"] = "gpu"

    @property
    def model(self) -> str:
        """What results are grouped by: the device's product name."""
        return self.name


def hardware(model: str, ranks: int) -> str:
    """A device model, and how many of them work together where it is more than one."""
    return f"{ranks} × {model}" if model and ranks > 1 else model


class Timing(_Record):
    """Times of one call, in microseconds; `samples` is their number, `rel_error` the half-width of the
    median's interval over the median, `host_us` what an eager caller pays."""

    timer: str
    cache: str | None = None
    median_us: float = Field(gt=0)
    p20_us: float | None = None
    p80_us: float | None = None
    rel_error: float | None = None
    samples: int = 0
    calls_per_sample: int | None = None
    compile_s: float | None = None
    hot_median_us: float | None = None
    host_us: float | None = None


class Accuracy(_Record):
    """Against `reference` (the product of the dequantised operands); `float_cosine` against the float operands."""

    cosine: float | None = None
    rel_error: float | None = None
    max_abs_error: float | None = None
    reference: str | None = None
    float_cosine: float | None = None


class Telemetry(_Record):
    """What the device did while it measured."""

    sm_clock_mhz: float | None = None
    mem_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle_reasons: list[str] = Field(default_factory=list)
    foreign_pids: list[int] = Field(default_factory=list)


class Measurement(_Record):
    """One backend on one case on one device: the unit of every result (a line of `results.jsonl`)."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    host: str
    device: Device | None = None
    case_id: str
    label: str
    payload: str
    params: dict[str, JsonValue]
    row: dict[str, JsonValue] | None = None
    backend: str
    resolved_backend: str | None = None
    status: Status
    reason: str | None = None
    verdict: Verdict | None = None
    reasons: list[str] = Field(default_factory=list)
    attempt: int = 1
    started_at: str | None = None
    duration_s: float | None = None
    timing: Timing | None = None
    samples_us: list[float] | None = None
    metrics: dict[str, StrictInt | StrictFloat | None] = Field(default_factory=dict)
    extra: dict[str, JsonValue] = Field(default_factory=dict)
    accuracy: Accuracy | None = None
    telemetry: Telemetry | None = None
    environment_id: str | None = None
    log_tail: str | None = None

    @property
    def ranks(self) -> int:
        """How many devices worked on it together (`extra.ranks`)."""
        found = self.extra.get("ranks")
        return found if isinstance(found, int) and found > 1 else 1

    @property
    def hardware(self) -> str:
        """What it ran on: a device model, or several devices together (`2 × NVIDIA H200`). Empty where that is unknown."""
        return hardware(self.device.model if self.device else "", self.ranks)

    @model_validator(mode="before")
    @classmethod
    def _a_wrong_answer_has_no_time(cls, record: Any) -> Any:
        # Earlier records kept the time of an incorrect result; nobody may compare with it.
        if isinstance(record, dict) and record.get("status") == Status.INCORRECT:
            return {key: value for key, value in record.items() if key not in ("timing", "samples_us")}
        return record

    @model_validator(mode="after")
    def _status_decides_what_may_stand_beside_it(self) -> Measurement:
        if self.status is Status.OK and self.verdict is None:
            raise ValueError("an ok measurement needs a verdict")
        if self.status is not Status.OK and self.verdict is not None:
            raise ValueError(f"a measurement that is {self.status} has no verdict")
        if self.status is not Status.OK and self.timing is not None:
            raise ValueError(f"a measurement that is {self.status} has no timing")
        return self
