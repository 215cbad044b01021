"""What every transport offers: one connection to one host, on which commands run as byte streams.

A transport knows nothing of runs or agents. Arguments stay a list until `quoting.login_shell_line`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

MAX_LINE_BYTES = 64 * 1024 * 1024
"""The longest line that `Process.readline` gives back whole."""


@dataclass(frozen=True)
class Completed:
    """A remote command that ended. `exit_status` is None when it was killed by `signal`."""

    exit_status: int | None
    signal: str | None
    stdout: bytes
    stderr: bytes


class Process(Protocol):
    """A running remote command.

    Standard error is drained all the time and only its tail is kept. Standard output is read by whoever calls `readline`,
    `read_exactly` or `wait`; what nobody reads stays on the host (a full window stops the command).
    """

    def write(self, data: bytes, timeout_s: float | None = None) -> None:
        """Send all of `data` to its standard input.

        Raises `BrokenPipeError` when the command takes no more input, `TimeoutError` when it took nothing for
        `timeout_s`, `HostUnreachable` when the link is gone."""

    def close_stdin(self) -> None:
        """Send end-of-file."""

    def readline(self, timeout_s: float | None = None, *, limit: int = MAX_LINE_BYTES) -> bytes:
        """The next line of standard output with its newline; what is left at the end of the stream; b"" after it.

        A longer line comes in pieces of `limit` bytes without a newline. Raises `TimeoutError` when no whole line came
        within `timeout_s` (nothing is lost, the next call goes on), `HostUnreachable` when the link broke."""

    def read_exactly(self, size: int, timeout_s: float | None = None) -> bytes:
        """`size` bytes of standard output. Raises `EOFError` when the command's output ends before, `TimeoutError`,
        `HostUnreachable` when the link broke."""

    def stderr_tail(self) -> bytes:
        """The last 64 KiB of standard error so far."""

    def wait(self, timeout_s: float | None = None) -> tuple[int | None, str | None]:
        """(exit status, signal name as in RFC 4254: `KILL`) after the command ended; (None, None) for a lost link.

        The name is `unknown` where the transport is not told which signal it was.

        Standard output that was not read is thrown away. Raises `TimeoutError`."""

    def close(self) -> None:
        """Close the channel; what runs on the host is not waited for. Safe to call twice, from any thread."""


class Transport(Protocol):
    """One connection to one host, opened once (also when several threads ask) and reused for everything."""

    host: str

    def connect(self) -> None:
        """Open the connection if it is not open, or was lost. Raises `HostUnreachable`, `HostRefused` with the step's name."""

    def spawn(self, argv: Sequence[str], *, unread_bytes: int | None = None) -> Process:
        """Start a command on the host, through /bin/sh whatever the login shell, arguments byte for byte.

        `unread_bytes` bounds how much of its output may wait here for a reader; left out, as much as makes it fast."""

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float | None = None) -> Completed:
        """Run a command to its end, draining both streams (of standard error the tail is kept).

        Raises `TimeoutError` (the channel is closed then), `HostUnreachable` when the host did not say how it ended."""

    def close(self) -> None:
        """Close the connection."""


class OpeningTransport(Transport, Protocol):
    """A transport that tells how far it has come with its connection."""

    @property
    def opening_step(self) -> str:
        """The step that the last attempt to open the connection has reached; may be read while it goes on."""
