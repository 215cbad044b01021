"""From the bytes of a journal to checked events. What a host sends is never trusted and never fatal."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError

from orchestrator.model import SCHEMA_VERSION, Device, Measurement

MAX_LINE_BYTES = 256 * 1024 * 1024
"""A longer line is skipped, so that a broken host cannot fill the controller's memory."""

MAX_DEPTH = 64
"""Deeper JSON is refused: the libraries that write it again stop at a few hundred levels."""

_INT64 = range(-(2**63), 2**63)
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


class BadLine(ValueError):
    """A line of a journal that is no strict JSON object, or an object that is not what it says."""


class JournalLines:
    r"""Whole lines out of chunks of any size, each with the offset of its first byte.

    Only b"\n" ends a line: U+2028 and its kind are ordinary characters of a JSON string."""

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[bytes] = []
        self._pending = 0
        self._overlong = False

    @property
    def torn(self) -> bool:
        """Whether what was fed ends within a line."""
        return self._pending > 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes | None]]:
        """(offset, line without its newline) of every line that `data` completes; None for one that was too long."""
        start = self.size
        self.size += len(data)
        position = 0
        while (end := data.find(b"\n", position)) >= 0:
            offset = start + position - self._pending
            if self._overlong:
                line = None
            else:
                line = b"".join((*self._pieces, data[position:end]))
            self._pieces, self._pending, self._overlong = [], 0, False
            position = end + 1
            yield offset, line
        rest = data[position:]
        if rest:
            self._pending += len(rest)
            if self._pending > MAX_LINE_BYTES:
                self._pieces, self._overlong = [], True
            if not self._overlong:
                self._pieces.append(rest)


class _Event(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, frozen=True, coerce_numbers_to_str=True)

    t: float = 0.0
    mono: float | None = None


class AgentStarted(_Event):
    """An agent took the run up; a second one follows when the first died. `offset` is where this line begins in the
    host's journal: other than here when that journal began anew (a host that lost the run's folder)."""

    type: Literal["agent_started"]
    offset: int | None = None
    pid: int | None = None
    boot_id: str | None = None
    python: str | None = None
    version: str | None = None
    hostname: str | None = None
    agent_version: str | None = None


class Devices(_Event):
    """What the host measures on."""

    type: Literal["devices"]
    devices: list[Device]


class Queued(_Event):
    """A batch of cases was taken in; `id` is the one it was sent with, `device_model` the only one it is for."""

    type: Literal["queued"]
    case_ids: list[str]
    sealed: bool = False
    id: str | None = None
    device_model: str | None = None


class LeaseWait(_Event):
    """A device is held by somebody else."""

    type: Literal["lease_wait"]
    device: str
    holder: Any = None


class WorkerChanged(_Event):
    """A worker process starts, or is ready to take cases."""

    type: Literal["worker_starting", "worker_ready"]
    worker: str
    devices: list[str] = Field(default_factory=list)
    payload: str | None = None
    environment_id: str | None = None
    environment: dict[str, JsonValue] | None = None


class WorkerExited(_Event):
    """A worker process is gone."""

    type: Literal["worker_exited"]
    worker: str
    exit_code: int | None = None
    signal: int | str | None = None
    reason: str | None = None


class CaseChanged(_Event):
    """A worker begins or ends a case."""

    type: Literal["case_started", "case_finished"]
    case_id: str
    worker: str
    devices: list[str] = Field(default_factory=list)
    attempt: int = 1


class Phase(_Event):
    """What a worker is about to do, and for which backend."""

    type: Literal["phase"]
    case_id: str
    worker: str
    backend: str
    phase: str


class Measured(_Event):
    """A result; the record itself is checked by `parse_measurement`. `asked` is the backend it was made for."""

    type: Literal["measurement"]
    measurement: dict[str, Any]
    asked: str | None = None


class Released(_Event):
    """Cases the host gave back: it will not measure them. With a `reason`, it can measure nothing more at all."""

    type: Literal["released"]
    case_ids: list[str]
    device_model: str | None = None
    reason: str | None = None


class AgentFinished(_Event):
    """The agent ended in order; `reason` says why it could do no more."""

    type: Literal["agent_finished"]
    state: Literal["finished", "cancelled"]
    reason: str | None = None


class Problem(_Event):
    """Something a person should know."""

    type: Literal["problem"]
    message: str


Event = (
    AgentStarted
    | Devices
    | Queued
    | LeaseWait
    | WorkerChanged
    | WorkerExited
    | CaseChanged
    | Phase
    | Measured
    | Released
    | AgentFinished
    | Problem
)
_EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="type")])


def parse_line(line: bytes) -> Event | None:
    """The event on a line; None for a kind this version does not know. Raises `BadLine`."""
    raw = _strict_object(line)
    try:
        return _EVENT.validate_python(raw)
    except ValidationError as error:
        if any(
            e["type"] == "union_tag_invalid" for e in error.errors(include_input=False, include_url=False)
        ):
            return None
        raise BadLine(f"a {raw.get('type', 'nameless')!s:.40} event that is none: {_first(error)}") from None


def parse_measurement(record: dict[str, Any], *, host: str | None = None) -> Measurement:
    """A checked record. `host` replaces the name in it: a host speaks only for itself. Raises `BadLine`."""
    try:
        measurement = Measurement.model_validate(record if host is None else {**record, "host": host})
    except ValidationError as error:
        raise BadLine(f"a record that is no measurement: {_first(error)}") from None
    if measurement.schema_version > SCHEMA_VERSION:
        raise BadLine(f"a record of format {measurement.schema_version}, newer than this farbench reads")
    device, timing, telemetry = measurement.device, measurement.timing, measurement.telemetry
    whole = [measurement.schema_version, measurement.attempt, *(telemetry.foreign_pids if telemetry else ())]
    whole += [device.index] if device else []
    whole += [timing.samples, timing.calls_per_sample or 0] if timing else []
    if any(number not in _INT64 for number in whole):
        raise BadLine("a record with a count beyond 64 bits")  # no typed column could hold it
    return measurement


def measurement_line(measurement: Measurement) -> bytes:
    """The line of `results.jsonl`: strict ASCII JSON with its newline."""
    record = measurement.model_dump(mode="json")
    return json.dumps(record, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


def _strict_object(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadLine(f"no JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadLine("no JSON object")
    if line.count(b"[") + line.count(b"{") > MAX_DEPTH and _too_deep(value):
        raise BadLine(f"a line nested deeper than {MAX_DEPTH} levels")
    if _SURROGATE_ESCAPE.search(line):
        return {_encodable(k): _encodable(v) for k, v in value.items()}
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no strict JSON")


def _too_deep(value: dict[str, Any]) -> bool:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)
            if isinstance(item, dict | list) and item
        ]
        if not level:
            return False
    return True


def _encodable(value: Any) -> Any:
    """Replace lone surrogates, which JSON can spell but no file, terminal or database can hold."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return value


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"[:300]
