"""The outcome of one check, and of all checks of a host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class State(StrEnum):
    """How a check ended. `skipped`: it could not be made, or has no meaning on this host."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Check:
    """What was found, and how to fix it. `blocking`: with this failed, the host cannot measure anything."""

    name: str
    state: State
    found: str
    fix: str | None = None
    blocking: bool = False

    def to_json(self) -> dict[str, Any]:
        """An entry of `checks` in `doctor --json`."""
        return {"name": self.name, "state": self.state.value, "found": self.found, "fix": self.fix}


def ok(name: str, found: str) -> Check:
    """All is well."""
    return Check(name, State.OK, found)


def warning(name: str, found: str, fix: str | None = None) -> Check:
    """It works, but numbers or comfort may suffer."""
    return Check(name, State.WARNING, found, fix)


def failed(name: str, found: str, fix: str | None = None, *, blocking: bool = False) -> Check:
    """It does not work."""
    return Check(name, State.FAILED, found, fix, blocking)


def skipped(name: str, found: str) -> Check:
    """Not looked at, and why."""
    return Check(name, State.SKIPPED, found)


@dataclass(frozen=True)
class HostHealth:
    """Every check of one host, in the order in which they depend on each other."""

    host: str
    checks: Sequence[Check]
    elapsed_s: float

    @property
    def usable(self) -> bool:
        """Whether a run could measure something here."""
        return not any(check.state is State.FAILED and check.blocking for check in self.checks)

    @property
    def failed(self) -> bool:
        """Whether any check failed."""
        return any(check.state is State.FAILED for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """The host's entry in `doctor --json`."""
        return {
            "usable": self.usable,
            "elapsed_s": round(self.elapsed_s, 3),
            "checks": [check.to_json() for check in self.checks],
        }
