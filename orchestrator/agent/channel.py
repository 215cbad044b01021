"""The dialogue with the controller over one exec channel: framed answers out, JSON lines in."""

from __future__ import annotations

import json
import os
import select
from typing import Any, Dict, Iterator, Mapping, Optional, Protocol

from .wire import Lines, dump

_CHUNK = 1 << 18
_LONGEST_LINE = 64 << 20


class Context(Protocol):
    """What the stub hands over: the request's nonce, the work folder, the two ends of the channel, and what has come in
    already beyond the request."""

    nonce: str
    workdir: str
    input_fd: int
    output_fd: int
    pending: bytes


class Channel:
    """Answers start with the request's nonce, so that nothing a login script prints can be taken for one."""

    def __init__(self, nonce: str, input_fd: int, output_fd: int, pending: bytes = b"") -> None:
        self.input_fd = input_fd
        self._output_fd = output_fd
        self._prefix = nonce.encode("ascii") + b" "
        self._lines = Lines(pending)
        self.closed = False

    def send(self, message: Mapping[str, Any], body: bytes = b"") -> None:
        """One answer and the raw bytes that follow it. Raises BrokenPipeError when nobody listens any more."""
        self._write(self._prefix + dump(message) + b"\n" + body)

    def send_file(self, message: Mapping[str, Any], fd: int, length: int) -> None:
        """An answer and `length` bytes of a file from where it stands; one that shrinks meanwhile ends in zeros."""
        self.send(message)
        while length:
            piece = os.read(fd, min(length, _CHUNK)) or bytes(min(length, _CHUNK))
            self._write(piece)
            length -= len(piece)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._output_fd, view) :]
            except BlockingIOError:
                select.select([], [self._output_fd], [])

    def read_available(self) -> None:
        """Take what came in; call when `input_fd` is readable. Sets `closed` at end-of-file."""
        try:
            data = os.read(self.input_fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or len(self._lines) > _LONGEST_LINE:
            self.closed = True
        self._lines.feed(data)

    def messages(self) -> Iterator[Dict[str, Any]]:
        """The whole JSON lines that came in so far; what is no JSON object is passed over."""
        for line in self._lines.whole():
            message = _parsed(line)
            if message is not None:
                yield message


def _parsed(line: bytes) -> Optional[Dict[str, Any]]:
    try:
        message = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None
