"""A running command: one `ssh` that goes through a master's control socket."""

from __future__ import annotations

import itertools
import os
import re
import select
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from orchestrator.errors import HostUnreachable, HostUnusable
from orchestrator.transport.channels import NoRoom
from orchestrator.transport.openssh_log import words_of
from orchestrator.transport.openssh_master import Master
from orchestrator.transport.output import Output, Tail

OPEN_TIMEOUT_S = 30.0
END_TIMEOUT_S = 10.0
"""Between the end of a command's output and the end of its `ssh`."""
UNKNOWN_SIGNAL = "unknown"
"""ssh does not tell which signal ended a command."""
_READ_BYTES = 1024 * 1024
_SLICE_S = 1.0
_LONGEST_POLL_S = 0.05
_OPENED = re.compile(r"master session id: ", re.IGNORECASE)
_STATUS = re.compile(r"received exit status from master", re.IGNORECASE)
_NUMBERS = itertools.count(1)


class OpenSshProcess(Output):
    """See `base.Process`. Writing and reading may happen in two threads.

    ssh's own messages go to a file (`-E`): they tell a status 255 of the command from one of ssh."""

    def __init__(self, host: str, master: Master, line: str, on_end: Callable[[bool], None]) -> None:
        """`on_end` is told whether the host has closed what it opened (and not: its `ssh` was ended here).

        Raises `NoRoom`, `HostUnreachable`, `HostUnusable`."""
        super().__init__(host)
        self._master = master
        self._on_end = on_end
        self._closed = False
        self._cut_off = False
        self._tail = Tail()
        self._messages = master.log.with_name(f"c{next(_NUMBERS)}")
        self._said: str | None = None
        self._reading, self._writing = threading.Lock(), threading.Lock()
        try:
            self._process = subprocess.Popen(
                [*master.client_command(), "-o", "LogLevel=DEBUG2", "-E", str(self._messages), "--", "host", line],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, env=master.environ,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise HostUnreachable(host, f"ssh could not be started: {error}", step="exec") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)
        self._draining = threading.Thread(target=self._drain_stderr, name=f"stderr of {host}", daemon=True)
        self._draining.start()
        self._wait_until_opened()

    def write(self, data: bytes, timeout_s: float | None = None) -> None:
        """Send all of `data`; see `base.Process.write`."""
        view = memoryview(data)
        progress = time.monotonic()
        while view:
            try:
                with self._writing:
                    sent = os.write(self._stdin.fileno(), view[:_READ_BYTES])
            except BlockingIOError:
                sent = 0
                with suppress(ValueError, OSError):  # it was closed meanwhile
                    select.select([], [self._stdin], [], _SLICE_S)
            except (OSError, ValueError) as error:  # ValueError: it was closed
                self._raise_if_lost()
                raise BrokenPipeError(f"{self._host}: the command takes no more input") from error
            if sent:
                view = view[sent:]
                progress = time.monotonic()
            elif timeout_s is not None and time.monotonic() - progress > timeout_s:
                raise TimeoutError(f"{self._host} took no input for {timeout_s:.0f} s")

    def close_stdin(self) -> None:
        """Send end-of-file."""
        with self._writing, suppress(OSError):
            self._stdin.close()

    def stderr_tail(self) -> bytes:
        """The last 64 KiB of standard error so far."""
        return self._tail.get()

    def wait(self, timeout_s: float | None = None) -> tuple[int | None, str | None]:
        """(exit status, signal); see `base.Process.wait`. The signal's name is `unknown`."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._drain(deadline)
        try:
            status = self._process.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{self._host}: the command did not end in time") from None
        if self._closed:
            return None, None
        self._draining.join(_SLICE_S)
        if status >= 0 and (status != 255 or self._told_status()):
            return status, None
        return None, (UNKNOWN_SIGNAL if status == 255 and self._master.is_alive() else None)

    @property
    def was_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """End the `ssh`; what runs on the host sees its streams closed."""
        self._closed = True
        if self._process.poll() is None:
            self._cut_off = True
            self._process.terminate()
        self.close_stdin()
        if self._reading.acquire(blocking=False):  # else its reader closes it
            self._stdout.close()
            self._reading.release()

    def _receive(self, deadline: float | None) -> bool:
        """Append what arrived to the buffer; False at the end of the stream. Raises `TimeoutError`, `HostUnreachable`."""
        with self._reading:
            try:
                data = self._read(deadline)
            finally:
                if self._closed:
                    self._stdout.close()
        if not data:
            self._raise_if_lost()
        self._buffer += data
        return bool(data)

    def _read(self, deadline: float | None) -> bytes:
        """Some bytes, or none at the end."""
        while not self._stdout.closed:
            left = _SLICE_S if deadline is None else min(_SLICE_S, max(0.0, deadline - time.monotonic()))
            if select.select([self._stdout], [], [], left)[0]:
                return os.read(self._stdout.fileno(), _READ_BYTES)
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"{self._host}: no output in time")
        return b""

    def _raise_if_lost(self) -> None:
        """Tell the end of the command from a broken link; its `ssh` ends in both cases."""
        if self._closed:
            return
        try:
            status = self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return
        if (status == 255 and not self._told_status() and not self._master.is_alive()) or status < 0:
            reason = words_of(self._master_log()) or "the connection was closed"
            raise HostUnreachable(self._host, f"the link broke: {reason.splitlines()[-1]}", step="exec")

    def _wait_until_opened(self) -> None:
        """The master asks the host for a session first, and says so."""
        deadline = time.monotonic() + OPEN_TIMEOUT_S
        pause_s = 0.001
        while not _OPENED.search(self._hear()):
            if self._process.poll() is not None:
                break
            if time.monotonic() > deadline:
                self.close()
                raise HostUnreachable(self._host, "no answer to a new command in time", step="exec")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_POLL_S)
        said = self._hear()
        if _OPENED.search(said):
            return
        self.close()
        if "refused by peer" in said:
            raise NoRoom(f"{self._host}: session open refused")
        if self._master.is_alive():
            raise HostUnusable(self._host, words_of(said) or "ssh gave no reason", step="exec")
        raise HostUnreachable(self._host, "the link broke: the connection was closed", step="exec")

    def _hear(self) -> str:
        """What the `ssh` of this command has said."""
        if self._said is not None:
            return self._said
        try:
            return self._messages.read_text("utf-8", "replace")
        except OSError:  # not there yet, or taken away at this moment, and then it was kept
            return self._said or ""

    def _told_status(self) -> bool:
        self._draining.join(END_TIMEOUT_S)
        return _STATUS.search(self._hear()) is not None

    def _master_log(self) -> str:
        try:
            return self._master.log.read_text("utf-8", "replace")
        except OSError:
            return ""

    def _drain_stderr(self) -> None:
        """Until the command's end, or ours; then keep what its `ssh` said, and make room for another command."""
        assert self._process.stderr is not None
        with self._process.stderr as stderr:
            # After `close` the master may hold the other end for as long as the command runs on.
            while not (self._closed and self._process.poll() is not None):
                if not select.select([stderr], [], [], _SLICE_S)[0]:
                    continue
                if not (data := stderr.read(_READ_BYTES)):
                    break
                self._tail.add(data)
        self._process.wait()
        self._said = self._hear()
        self._messages.unlink(missing_ok=True)
        self._on_end(_OPENED.search(self._said) is not None and not self._cut_off)
