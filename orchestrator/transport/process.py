"""A running command: one exec channel of a connection."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import paramiko
from paramiko.channel import Channel

from orchestrator.errors import HostUnreachable, HostUnusable
from orchestrator.transport.channels import NoRoom
from orchestrator.transport.ordering import Ending
from orchestrator.transport.output import Output, Tail
from orchestrator.transport.session import Session

OPEN_TIMEOUT_S = 30
_SLICE_S = 1.0
"""No wait inside paramiko is longer, so that our own bounds are looked at."""
_READ_BYTES = 4 * 1024 * 1024
_PACKET_BYTES = 32_000
"""Under the packet limit of every server: larger pieces would only be cut and copied again."""


class SshProcess(Output):
    """See `base.Process`. Writing and reading may happen in two threads."""

    def __init__(self, host: str, session: Session, line: str, *, unread_bytes: int | None = None) -> None:
        """`session` has counted the command (`Session.turns`)."""
        super().__init__(host)
        self._session = session
        try:
            self._channel = session.channels.open(lambda: _open_channel(host, session, unread_bytes))
        except BaseException:
            session.turns.give_back()
            raise
        self._channel.settimeout(_SLICE_S)
        self._ended = False
        self._closed = False
        self._tail = Tail()
        self._ending = self._send_exec(line)
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

    def stderr_tail(self) -> bytes:
        """The last 64 KiB of standard error so far."""
        return self._tail.get()

    def wait(self, timeout_s: float | None = None) -> tuple[int | None, str | None]:
        """(exit status, signal); see `base.Process.wait`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._drain(deadline)
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

    def _send_exec(self, line: str) -> Ending:
        try:
            return self._session.send_request(self._channel, "exec", line)
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise HostUnreachable(
                self._host, f"the link broke: {self._session.why_broken(error)}", step="exec"
            ) from error

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
                self._ending.answered = True
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
        if self._closed:
            return
        if not (self._ending.eof or self._ending.closed):
            reason = self._session.why_broken()
            raise HostUnreachable(self._host, f"the link broke: {reason}", step="exec")
        if not self._ending.answered:
            raise HostUnreachable(
                self._host, "the host ended the command without a word on whether it ran", step="exec"
            )

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
            self._ending.answered = True
            self._tail.add(data)


def _open_channel(host: str, session: Session, window_bytes: int | None) -> Channel:
    """Raises `NoRoom`, `HostUnreachable`."""
    try:
        return session.open_session(window_size=window_bytes, timeout=OPEN_TIMEOUT_S)
    except Exception as error:  # paramiko raises here whatever ended its reading thread, of any type
        # It keeps the reason of one refusal only: of several at once, the others come as errors without one.
        if isinstance(error, paramiko.SSHException) and session.is_active() and "imeout" not in str(error):
            raise NoRoom(str(error)) from error
        raise HostUnreachable(host, f"the link broke: {session.why_broken(error)}", step="exec") from error
