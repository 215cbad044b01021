"""Standard output of a running command, taken line by line or by count. Every transport's process reads through this."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import suppress

from orchestrator.errors import HostUnreachable
from orchestrator.transport.base import MAX_LINE_BYTES

STDERR_TAIL_BYTES = 64 * 1024


class Output(ABC):
    """Buffers what arrived and was not taken yet."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._buffer = bytearray()
        self._scanned = 0

    @abstractmethod
    def _receive(self, deadline: float | None) -> bool:
        """Append what arrived to `_buffer`, waiting until `deadline` (monotonic); False at the end of the stream.

        Raises `TimeoutError`, `HostUnreachable`."""

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

    def _drain(self, deadline: float | None) -> None:
        """Throw away what is left of it, to its end or to the end of the link. Raises `TimeoutError`."""
        with suppress(HostUnreachable):
            while self._receive(deadline):
                self._take(len(self._buffer))

    def _take(self, size: int) -> bytes:
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._scanned = 0
        return data


class Tail:
    """The end of a stream of any length."""

    def __init__(self, size: int = STDERR_TAIL_BYTES) -> None:
        self._size = size
        self._data = bytearray()

    def add(self, data: bytes) -> None:
        """Append, forgetting what is too old."""
        self._data += data
        if len(self._data) > 2 * self._size:
            del self._data[: -self._size]

    def get(self) -> bytes:
        """The last bytes, at most `size`."""
        return bytes(self._data[-self._size :])
