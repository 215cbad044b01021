"""What a host says, as typed values: checked on arrival, since a host is outside."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from orchestrator.model import Device

MAX_BLOCK_BYTES = 64 * 1024 * 1024
"""The longest line, and the longest block of raw bytes, that is taken from a host at once."""

Size = Annotated[int, Field(ge=0)]
Block = Annotated[int, Field(ge=0, le=MAX_BLOCK_BYTES)]

COMFORTABLE_BYTES = 2 * 2**30
"""With less left in the work folder, logs and what kernels compile may not fit."""


@dataclass(frozen=True)
class Hello:
    """The host is there and has a work folder. `missing` are the SHA-256 of the files it lacks; `time` is its UTC clock.

    `free_bytes` and `noexec` are those of the work folder's file system, where the system tells."""

    missing: list[str]
    workdir: str
    python: str
    version: str
    uid: int
    hostname: str
    boot_id: str
    time: float
    free_bytes: int | None = None
    noexec: bool = False

    @property
    def roomy(self) -> bool:
        """Whether nothing about the work folder's file system is worth a word."""
        return not self.noexec and (self.free_bytes is None or self.free_bytes >= COMFORTABLE_BYTES)


@dataclass(frozen=True)
class Launched:
    """The agent runs; `already` when it did before."""

    pid: int
    already: bool
    run_dir: str


@dataclass(frozen=True)
class Events:
    """Whole lines of the journal, which start at byte `offset` of it."""

    offset: int
    data: bytes


@dataclass(frozen=True)
class Alive:
    """A sign of life; `agent` tells whether the agent lives, `time` is the host's UTC clock, `behind` how many bytes of
    the journal were not sent yet, `note` what the agent's own start waits for, and `waits` whether there is no agent yet."""

    agent: bool
    time: float
    behind: Size = 0
    note: str | None = None
    waits: bool = False


@dataclass(frozen=True)
class OtherJournal:
    """The run's folder on the host is not the one that was followed before: its journal began anew."""


@dataclass(frozen=True)
class End:
    """The agent is gone, and the journal was sent up to `offset`; `dead` when it vanished without saying so.

    Of one that finished: `sealed` is false when more cases were to come, `reason` says why it could do no more. Of one that
    vanished: `why`, where that is known, and whether it is any use to start it `again`."""

    state: Literal["finished", "cancelled", "dead"]
    offset: Size
    sealed: bool = True
    reason: str | None = None
    why: str | None = None
    again: bool = True


@dataclass(frozen=True)
class RunStatus:
    """Where a run stands on a host: results by status, who holds the devices that it waits for, and what its agent waits for."""

    agent: bool
    state: str
    offset: Size
    pid: int | None = None
    counts: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, Any] = field(default_factory=dict)
    note: str | None = None


@dataclass(frozen=True)
class RemoteFile:
    """A file of a run on the host; `path` is relative to the run's folder and stays within it."""

    path: str
    size: int


@dataclass(frozen=True)
class Probe:
    """What a host has; `details` is everything that it said."""

    devices: list[Device]
    modules: dict[str, str | None]
    payload_python: Any = None
    disk_free_bytes: int | None = None
    details: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Refusal:
    """The host's own reason for not doing what was asked."""

    step: str
    path: str
    error: str
    hint: str | None = None


@dataclass(frozen=True)
class EventsHeader:
    """Announces `length` raw bytes of the journal."""

    offset: Size
    length: Block


@dataclass(frozen=True)
class FileHeader:
    """Announces `length` raw bytes of a file."""

    path: str
    size: Size
    length: Block


@dataclass(frozen=True)
class FileState:
    """Says of a file why its bytes do not follow."""

    path: str
    size: Size = 0
    error: str | None = None


@dataclass(frozen=True)
class FileList:
    """The answer to `list`."""

    files: list[tuple[str, Size]]


@dataclass(frozen=True)
class RunList:
    """The answer to `runs`."""

    runs: list[dict[str, Any]]


@dataclass(frozen=True)
class Collected:
    """What garbage collection removed (or would remove) on the host, how much room that makes, which ended runs it left
    alone and why, and what went wrong."""

    removed: list[dict[str, Any]]
    bytes: Size
    kept: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Cancelled:
    """The answer to `cancel`."""

    measurements: Size


T = TypeVar("T")
_ADAPTERS: dict[type, TypeAdapter[Any]] = {}


class NotUnderstood(ValueError):
    """A message that no right agent sends."""


def decode(line: bytes) -> dict[str, Any]:
    """One JSON object with a `type`. Raises `NotUnderstood` for anything else, however it is broken."""
    try:
        value = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise NotUnderstood(f"not JSON ({type(error).__name__})") from error
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise NotUnderstood("not a message")
    return value


def parse(kind: type[T], message: Mapping[str, Any]) -> T:
    """`message` as a `kind`; keys that it does not have are left out. Raises `NotUnderstood` naming the field."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    try:
        value: T = _ADAPTERS[kind].validate_python(
            {key: item for key, item in message.items() if key != "type"}
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise NotUnderstood(f"{message.get('type')}: {where}: {first['msg']}") from error
    return value


def printable(data: bytes | str, limit: int = 2000) -> str:
    """The end of what a host printed, fit for a terminal: no control characters, at most `limit` characters."""
    text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    text = "".join(
        char if char.isprintable() or char == "\n" else " " if char == "\t" else "" for char in text
    )
    text = text.strip()
    return text if len(text) <= limit else "…" + text[-limit:]


def _no_constant(name: str) -> None:
    raise ValueError(name)
