"""What can be told from a host's greeting alone, without any further question: `run` looks at these first."""

from __future__ import annotations

from orchestrator.launch.messages import Hello

from .check import Check, ok, warning
from .host import space

CLOCK_OFF_S = 2.0
_OLD_PYTHON = (3, 9)


def room_checks(hello: Hello) -> list[Check]:
    """What the work folder's file system gives reason to tell of."""
    checks = []
    if hello.free_bytes is not None:
        checks.append(space(hello.workdir, {"free_bytes": hello.free_bytes}))
    if hello.noexec:
        checks.append(
            warning(
                "workdir",
                f"{hello.workdir} is mounted noexec: what payloads compile there cannot be loaded",
                "set `workdir:` to a folder on a file system without noexec",
            )
        )
    return checks


def clock_check(offset_s: float, uncertainty_s: float) -> Check:
    """How far the host's clock is from ours; positive: it is ahead."""
    text = f"{offset_s:+.3f} s (± {uncertainty_s:.3f} s)"
    if abs(offset_s) - uncertainty_s > CLOCK_OFF_S:
        ahead = "ahead of" if offset_s > 0 else "behind"
        return warning(
            "clock",
            f"{abs(offset_s):.1f} s {ahead} this machine's clock",
            "start time synchronisation on the host (`timedatectl set-ntp true`), or fix this machine's clock; durations "
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
