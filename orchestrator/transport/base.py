"""What every transport offers: one connection to one host, on which commands run as byte streams.

A transport knows nothing of runs or agents. Arguments stay a list until `quoting.login_shell_line`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Completed:
    """A remote command that ended. `exit_status` is None when it was killed by `signal` or the link was lost."""

    exit_status: int | None
    signal: str | None
    stdout: bytes
    stderr: bytes


class Process(Protocol):
    """A running remote command; both output streams are drained side by side and never block each other."""

    def write(self, data: bytes) -> None:
        """Send all of `data` to its standard input. Raises `HostUnreachable` when the link is gone."""

    def close_stdin(self) -> None:
        """Send end-of-file."""

    def readline(self, timeout_s: float | None = None) -> bytes:
        """The next line of standard output with its newline; what is left at the end of the stream; b"" after it.

        Raises `TimeoutError` when no whole line came within `timeout_s`, `HostUnreachable` when the link broke."""

    def read_exactly(self, size: int, timeout_s: float | None = None) -> bytes:
        """`size` bytes of standard output. Raises `HostUnreachable` when it ends before, `TimeoutError`."""

    def stderr_tail(self) -> bytes:
        """The last 64 KiB of standard error so far."""

    def wait(self, timeout_s: float | None = None) -> tuple[int | None, str | None]:
        """(exit status, signal name) after the command ended, output drained; (None, None) for a lost link."""

    def close(self) -> None:
        """Close the channel; what runs on the host is not waited for. Safe to call twice, from any thread."""


class Transport(Protocol):
    """One connection to one host, opened once (also when several threads ask) and reused for everything."""

    host: str

    def connect(self) -> None:
        """Open the connection if it is not open. Raises `HostUnreachable`, `HostRefused` with the step's name."""

    def spawn(self, argv: Sequence[str]) -> Process:
        """Start a command on the host, through /bin/sh whatever the login shell, arguments byte for byte."""

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float | None = None) -> Completed:
        """Run a command to its end, draining both streams. Raises `TimeoutError` (the channel is closed then)."""

    def close(self) -> None:
        """Close the connection."""
