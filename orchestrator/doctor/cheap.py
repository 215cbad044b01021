"""What can be told from a host's greeting alone, without any further question: for `run` to say before it begins."""

from __future__ import annotations

from orchestrator.launch.messages import Hello

from .check import Check, ok, warning

CLOCK_OFF_S = 2.0
_OLD_PYTHON = (3, 9)


def cheap_checks(hello: Hello, *, sent_at_s: float, received_at_s: float) -> list[Check]:
    """Clock and Python of a host. `sent_at_s` and `received_at_s`: UTC seconds here, around the request and the greeting.

    The host said its time somewhere between them, so the offset is known only up to that span."""
    earliest = hello.time - received_at_s
    latest = hello.time - sent_at_s
    nearest = 0.0 if earliest <= 0 <= latest else min(earliest, latest, key=abs)
    return [clock_check(nearest, (received_at_s - sent_at_s) / 2), python_check(hello)]


def clock_check(offset_s: float, uncertainty_s: float) -> Check:
    """How far the host's clock is from ours; positive: it is ahead."""
    text = f"{offset_s:+.3f} s (± {uncertainty_s:.3f} s)"
    if abs(offset_s) - uncertainty_s > CLOCK_OFF_S:
        ahead = "ahead of" if offset_s > 0 else "behind"
        return warning(
            "clock",
            f"{abs(offset_s):.1f} s {ahead} this machine's clock",
            "start time synchronisation on the host (`timedatectl set-ntp true`), or mend this machine's clock; durations "
            "are right all the same, `started_at` is the host's",
        )
    return ok("clock", text)


def python_check(hello: Hello) -> Check:
    """The interpreter that runs the agent."""
    found = f"{hello.version} ({hello.python})"
    version = tuple(int(part) for part in hello.version.split(".")[:2] if part.isdigit())
    if version and version < _OLD_PYTHON:
        return ok("python", f"{found}: the oldest that works")
    return ok("python", found)
