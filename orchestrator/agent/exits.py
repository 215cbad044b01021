"""How a process ended, in words; and whether the kernel's out-of-memory killer had a hand in it."""

from __future__ import annotations

import re
import signal
from typing import Optional

from .logs import printable

_EXCEPTION = re.compile(r"[^\W\d][\w.]*(: |:?$)")
_LONGEST_EXCEPTION = 500
_PROC = "/proc"
_CGROUP = "/sys/fs/cgroup"


def describe(returncode: int) -> str:
    """`killed by signal 9 (SIGKILL)` or `exit code 1`, from what `Popen.returncode` says."""
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"killed by signal {-returncode} ({signal.Signals(-returncode).name})"
    except ValueError:
        return f"killed by signal {-returncode}"


def ended(returncode: int) -> str:
    """The same as a predicate: `ended with exit code 1`, `was killed by signal 11 (SIGSEGV)`."""
    return f"ended with {describe(returncode)}" if returncode >= 0 else f"was {describe(returncode)}"


def raised(log_tail: str) -> Optional[str]:
    """The exception that a log's last traceback ends with (`ModuleNotFoundError: No module named 'x'`), or None."""
    _, found, after = log_tail.rpartition("Traceback (most recent call last):")
    lines = [line for line in after.splitlines() if _EXCEPTION.match(line)]
    return lines[0].strip()[:_LONGEST_EXCEPTION] if found and lines else None


def last_words(log_tail: str) -> Optional[str]:
    """What a process that ended by itself printed last (a loader's complaint, a library's), or None. The harness's own lines
    say nothing about the end."""
    lines = [line.strip() for line in log_tail.splitlines()]
    said = [line for line in lines if line and not line.startswith("farbench: ")]
    return said[-1][:_LONGEST_EXCEPTION] if said else None


class MemoryKills:
    """Counts of the out-of-memory killer at one moment: of our control group, which tells of our own processes whatever
    memory was short; of the whole host only where there is no such count."""

    def __init__(self) -> None:
        self._group = oom_kills()
        self._host = _host_kills() if self._group is None else None

    def verdict(self, returncode: int) -> Optional[str]:
        """A reason if a process that ended like this since then was (probably) killed for want of memory, else None."""
        if returncode != -signal.SIGKILL:
            return None
        if _grown(self._group, oom_kills()):
            return f"{describe(returncode)}: out of host memory (the kernel ended a process of its control group for it)"
        if _grown(self._host, _host_kills()):
            return f"{describe(returncode)}: probably out of host memory (the kernel ended a process for it meanwhile)"
        return None


def oom_kills() -> Optional[int]:
    """How many processes the kernel's out-of-memory killer has ended in this process's cgroup since it exists.

    A count that grew while a worker died of SIGKILL makes it a probable out-of-memory kill. None where unknown."""
    try:
        with open(f"{_PROC}/self/cgroup", encoding="utf-8") as file:
            entries = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return None
    for _, controllers, path in (entry for entry in entries if len(entry) == 3):
        for name in (
            f"{_CGROUP}{path}/memory.events",
            f"{_CGROUP}/memory{path}/memory.oom_control",
        ):
            if controllers and "memory" not in controllers.split(","):
                continue
            try:
                with open(name, encoding="ascii") as file:
                    counts = dict(line.split() for line in file if len(line.split()) == 2)
                return int(counts["oom_kill"])
            except (OSError, KeyError, ValueError):
                continue
    return None


def _grown(before: Optional[int], now: Optional[int]) -> bool:
    return before is not None and now is not None and now > before


def _host_kills() -> Optional[int]:
    try:
        with open(f"{_PROC}/vmstat", encoding="ascii") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), None)
    except (OSError, ValueError):
        return None


def words_of(complaints: bytearray, output: bytearray) -> Optional[str]:
    """Why it ended, in its own words: its exception, else its last line on standard error, else on standard output, where
    a row of results is no word."""
    said, printed = printable(bytes(complaints)), printable(bytes(output))
    chatter = "\n".join(line for line in printed.splitlines() if not line.lstrip().startswith("{"))
    return raised(said) or last_words(said) or last_words(chatter)
