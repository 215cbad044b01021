"""One dialogue with the stub on a host: the request out, answers back, whatever else the host prints left aside."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Mapping
from typing import Any, TypeVar

from orchestrator.errors import FileError, HostError, HostUnreachable, HostUnusable
from orchestrator.launch.files import FileSet
from orchestrator.launch.hiding import Hiding
from orchestrator.launch.messages import (
    MAX_BLOCK_BYTES,
    Hello,
    NotUnderstood,
    Refusal,
    decode,
    parse,
    printable,
)
from orchestrator.launch.python import NO_PYTHON_STATUS, found_versions
from orchestrator.transport.base import Process

HELLO_TIMEOUT_S = 90.0
"""Home folders on a network file system and a cold Python take their time."""
STALL_TIMEOUT_S = 120.0
MAX_NOISE_BYTES = 4 * 1024 * 1024
"""What login scripts may print before the host counts as broken."""
_GREETING_BYTES = 1024 * 1024
_TAIL_BYTES = 2000

T = TypeVar("T")


class Exchange:
    """Lines of the stub start with a nonce that only this request knows; everything else on standard output is noise."""

    def __init__(self, process: Process, host: str, nonce: str | None = None) -> None:
        self.host = host
        self.nonce = nonce or secrets.token_hex(16)
        self._mark = self.nonce.encode("ascii") + b" "
        self._process = process
        self._writing = threading.Lock()
        self._noise = 0
        self._noise_tail = b""
        self._hiding = Hiding()
        self._greeted = False

    def begin(self, stub: bytes | None, request: Mapping[str, Any], files: FileSet) -> Hello:
        """Send the stub (None: it is there) and the request in one go, wait for the answer, and send the files that the
        host lacks.

        Raises `HostUnusable` with what the host printed when there is no answer."""
        command = request.get("command")
        self._hiding = Hiding((command.get("secrets") or {}).values() if isinstance(command, Mapping) else ())
        self._send_request(stub, request)
        hello = self.answer(Hello, "hello", HELLO_TIMEOUT_S)
        self._greeted = True
        unknown = [sha256 for sha256 in hello.missing if sha256 not in files]
        if unknown or len(set(hello.missing)) != len(hello.missing):
            raise self.broken("it asks for files that it was not offered")
        self._upload(hello.missing, files)
        return hello

    def _send_request(self, stub: bytes | None, request: Mapping[str, Any]) -> None:
        """Nothing of the text is kept: there may be many hosts, and thousands of cases for each."""
        before = b"" if stub is None else b"%d\n%b" % (len(stub), stub)
        line = json.dumps({"nonce": self.nonce, **request}, default=_as_json).encode("ascii")
        try:
            self._process.write(b"%b%b\n" % (before, line), STALL_TIMEOUT_S)
        except (BrokenPipeError, TimeoutError):
            pass  # why it took no more is in what it printed

    def answer(self, kind: type[T], name: str, timeout_s: float) -> T:
        """The next message, which must be a `name`."""
        message = self.next_message(timeout_s)
        if message is None:
            raise self._ended_early()
        if message["type"] != name:
            raise self.broken(f"{printable(message['type'], 40)!r} where {name!r} was due")
        return self.parsed(kind, message)

    def parsed(self, kind: type[T], message: Mapping[str, Any]) -> T:
        """`message` as a `kind`. Raises `HostUnusable`."""
        try:
            return parse(kind, message)
        except NotUnderstood as error:
            raise self.broken(printable(str(error), 300)) from error

    def next_message(self, timeout_s: float) -> dict[str, Any] | None:
        """The next message of the stub, None at the end of its output.

        Raises `HostUnusable` for the stub's own refusal, for nonsense, and for no word within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                line = self._process.readline(
                    max(0.0, deadline - time.monotonic()),
                    limit=MAX_BLOCK_BYTES if self._greeted else _GREETING_BYTES,
                )
            except TimeoutError:
                raise self._silent(timeout_s) from None
            if not line:
                return None
            start = line.find(self._mark)
            if start < 0:
                self._hear_noise(line)
                continue
            if not line.endswith(b"\n"):
                raise self.broken("a message without an end")
            return self._understood(line[start + len(self._mark) :])

    def raw(self, size: int) -> bytes:
        """Exactly `size` raw bytes, which a message announced."""
        try:
            return self._process.read_exactly(size, STALL_TIMEOUT_S)
        except (EOFError, TimeoutError) as error:
            raise HostUnreachable(self.host, f"the answer broke off: {error}", step="read") from error

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one JSON line. Raises `HostUnreachable` when nobody takes it any more."""
        line = json.dumps(message, default=_as_json).encode("ascii") + b"\n"
        try:
            with self._writing:
                self._process.write(line, STALL_TIMEOUT_S)
        except (BrokenPipeError, TimeoutError) as error:
            raise HostUnreachable(self.host, f"the dialogue is over: {error}", step="control") from error

    @property
    def noise(self) -> tuple[int, str]:
        """How many bytes were no answers (login scripts print), and their end, fit for a terminal."""
        return self._noise, printable(self._noise_tail)

    def close(self) -> None:
        """End the dialogue; the agent goes on."""
        self._process.close()

    def broken(self, what: str) -> HostUnusable:
        """The error for answers that make no sense."""
        return HostUnusable(self.host, f"its answer makes no sense: {what}{self._heard()}", step="dialogue")

    def _understood(self, body: bytes) -> dict[str, Any]:
        try:
            message = decode(body)
        except NotUnderstood as error:
            raise self.broken(str(error)) from error
        if message["type"] == "refused":
            refusal = self.parsed(Refusal, message)
            reason = printable(f"{refusal.path}: {refusal.error}" if refusal.path else refusal.error)
            hint = printable(refusal.hint) if refusal.hint else None
            raise HostUnusable(self.host, reason, step=printable(refusal.step, 100), hint=hint)
        return message

    def _upload(self, missing: list[str], files: FileSet) -> None:
        try:
            for sha256 in missing:
                for piece in files.read(sha256):
                    self._process.write(piece, STALL_TIMEOUT_S)
        except TimeoutError as error:
            raise HostUnusable(self.host, str(error), step="upload") from error
        except BrokenPipeError:
            # It stopped taking bytes before it had all: its reason is on the way, or already here.
            if self.next_message(STALL_TIMEOUT_S) is None:
                raise self._ended_early() from None
            raise self.broken("it goes on without the files that it asked for") from None
        except FileError:
            self.close()
            raise

    def _hear_noise(self, line: bytes) -> None:
        self._noise += len(line)
        self._noise_tail = self._hiding.hide(self._noise_tail + line)[-_TAIL_BYTES:]
        if self._noise > MAX_NOISE_BYTES:
            raise HostUnusable(
                self.host, f"it prints without end{self._heard()}", step="dialogue",
                hint="does a login script (.bashrc, .profile) loop?",
            )  # fmt: skip

    def _silent(self, timeout_s: float) -> HostError:
        if self._greeted:
            return HostUnreachable(self.host, f"no word from it for {timeout_s:.0f} s", step="dialogue")
        return HostUnusable(
            self.host, f"it did not start our program within {timeout_s:.0f} s{self._heard()}", step="start",
            hint="does a login script (.bashrc, .profile) wait for input?",
        )  # fmt: skip

    def _ended_early(self) -> HostUnusable:
        """Why there is no answer: from the exit status and from what was printed."""
        try:
            status, signal = self._process.wait(STALL_TIMEOUT_S)
        except TimeoutError:
            status, signal = None, None
        if status == NO_PYTHON_STATUS:
            found = "; ".join(printable(text, 200) for text in found_versions(self._process.stderr_tail()))
            return HostUnusable(
                self.host, f"no Python 3.8 or later ({found or 'none found'})", step="start",
                hint="name one with `agent_python:` in hosts.yaml",
            )  # fmt: skip
        end = (
            f"signal {printable(signal, 20)}"
            if signal
            else f"exit status {status}"
            if status is not None
            else "no status"
        )
        return HostUnusable(
            self.host, f"our program there ended without an answer ({end}){self._heard()}", step="start"
        )

    def _heard(self) -> str:
        said = self._hiding.hide(self._process.stderr_tail())
        parts = [printable(self._noise_tail), printable(said, _TAIL_BYTES)]
        text = "\n".join(part for part in parts if part)
        return (
            "; it printed:\n" + "\n".join(f"    {line}" for line in text.splitlines()[-15:]) if text else ""
        )


def _as_json(value: object) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (tuple, set, frozenset)):
        return list(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not JSON")
