"""A running command: one exec channel of a connection."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import paramiko
from paramiko.channel import Channel

from orchestrator.errors import HostUnreachable, HostUnusable
from orchestrator.transport.base import MAX_LINE_BYTES
from orchestrator.transport.session import Ending, Session

OPEN_TIMEOUT_S = 30
STDERR_TAIL_BYTES = 64 * 1024
_SLICE_S = 1.0
"""No wait inside paramiko is longer, so that our own bounds are looked at."""
_READ_BYTES = 4 * 1024 * 1024
_PACKET_BYTES = 32_000
"""Under the packet limit of every server: larger pieces would only be cut and copied again."""


class SshProcess:
    """See `base.Process`. Writing and reading may happen in two threads."""

    def __init__(self, host: str, session: Session, line: str) -> None:
        self._host = host
        self._session = session
        self._channel = _open_channel(host, session)
        self._channel.settimeout(_SLICE_S)
        self._buffer = bytearray()
        self._scanned = 0
        self._ended = False
        self._closed = False
        self._tail = bytearray()
        self._send_exec(line)
        self._ending: Ending = session.endings[self._channel.chanid]
        self._stderr = threading.Thread(target=self._drain_stderr, name=f"stderr of {host}", daemon=True)
        self._stderr.start()

    def write(self, data: bytes, timeout_s: float | None = None) -> None:
        """Send all of `data`; see `base.Process.write`."""
        view = memoryview(data)
        progress = time.monotonic()
        while view:
            try:
                sent = self._channel.send(bytes(view[:_PACKET_BYTES]))
            except TimeoutError:
                if timeout_s is not None and time.monotonic() - progress > timeout_s:
                    raise TimeoutError(f"{self._host} took no input for {timeout_s:.0f} s") from None
                continue
            except (OSError, EOFError, paramiko.SSHException):
                sent = 0
            if sent == 0:
                self._raise_if_lost()
                raise BrokenPipeError(f"{self._host}: the command takes no more input")
            view = view[sent:]
            progress = time.monotonic()

    def close_stdin(self) -> None:
        """Send end-of-file."""
        with suppress(
            OSError, EOFError, paramiko.SSHException
        ):  # a link that broke is noticed by whoever reads
            self._channel.shutdown_write()

    def readline(self, timeout_s: float | None = None, *, limit: int = MAX_LINE_BYTES) -> bytes:
        """The next line; see `base.Process.readline`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            newline = self._buffer.find(b"\n", self._scanned, limit)
            if newline >= 0:
                return self._take(newline + 1)
            if len(self._buffer) >= limit:
                return self._take(limit)
            self._scanned = len(self._buffer)
            if not self._receive(deadline):
                return self._take(len(self._buffer))

    def read_exactly(self, size: int, timeout_s: float | None = None) -> bytes:
        """`size` bytes; see `base.Process.read_exactly`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while len(self._buffer) < size:
            if not self._receive(deadline):
                raise EOFError(f"{self._host}: the output ended after {len(self._buffer)} of {size} bytes")
        return self._take(size)

    def read_some(self) -> bytes:
        """What of standard output is there, at least a byte; b"" at its end. Raises `HostUnreachable`."""
        if not self._buffer:
            self._receive(None)
        return self._take(len(self._buffer))

    def stderr_tail(self) -> bytes:
        """The last 64 KiB of standard error so far."""
        return bytes(self._tail[-STDERR_TAIL_BYTES:])

    def wait(self, timeout_s: float | None = None) -> tuple[int | None, str | None]:
        """(exit status, signal); see `base.Process.wait`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with suppress(HostUnreachable):
            while self._receive(deadline):
                self._take(len(self._buffer))
        while not self._channel.status_event.wait(_SLICE_S):
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"{self._host}: the command did not end in time")
        self._stderr.join(_SLICE_S)
        status = self._channel.exit_status
        return (status if status >= 0 else None), self._ending.signal

    @property
    def was_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Close the channel."""
        self._closed = True
        with suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.close()
        self._session.endings.pop(self._channel.chanid, None)

    def _send_exec(self, line: str) -> None:
        try:
            self._session.send_request(self._channel, "exec", line)
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise HostUnreachable(self._host, f"the link broke: {error}", step="exec") from error

    def _receive(self, deadline: float | None) -> bool:
        """Append what arrived to the buffer; False at the end of the stream. Raises `TimeoutError`, `HostUnreachable`."""
        while not self._ended:
            left = _SLICE_S if deadline is None else deadline - time.monotonic()
            self._channel.settimeout(min(_SLICE_S, max(left, 0.001)))
            try:
                data = self._channel.recv(_READ_BYTES)
            except TimeoutError:
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutError(f"{self._host}: no output in time") from None
                continue
            except (OSError, EOFError, paramiko.SSHException):  # an answer about the window could not be sent
                data = b""
            if data:
                self._buffer += data
                return True
            self._raise_if_lost()
            self._ended = True
        return False

    def _raise_if_lost(self) -> None:
        """Tell the end that the host announced from a broken link and from a refusal."""
        if self._ending.refused:
            raise HostUnusable(
                self._host, "the host does not let us run commands", step="exec",
                hint="is the account limited to file transfer, or the login shell disabled?",
            )  # fmt: skip
        if not (self._ending.eof or self._ending.closed or self._closed):
            reason = self._session.farewell or self._session.get_exception() or "the connection was closed"
            raise HostUnreachable(self._host, f"the link broke: {reason}", step="exec")

    def _take(self, size: int) -> bytes:
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._scanned = 0
        return data

    def _drain_stderr(self) -> None:
        while True:
            try:
                data = self._channel.recv_stderr(_READ_BYTES)
            except TimeoutError:
                continue
            except (OSError, EOFError, paramiko.SSHException):
                return
            if not data:
                return
            self._tail += data
            if len(self._tail) > 2 * STDERR_TAIL_BYTES:
                del self._tail[:-STDERR_TAIL_BYTES]


def _open_channel(host: str, session: Session) -> Channel:
    try:
        return session.open_session(timeout=OPEN_TIMEOUT_S)
    except paramiko.ChannelException as error:
        raise HostUnusable(
            host, f"the host refuses another command on this connection: {error}", step="exec",
            hint="sshd's MaxSessions limits them",
        ) from error  # fmt: skip
    except Exception as error:  # paramiko raises here whatever ended its reading thread, of any type
        raise HostUnreachable(
            host, f"the link broke: {session.farewell or error or 'closed'}", step="exec"
        ) from error
