"""What workers print: kept on disk up to a cap, a little of it in memory, and never with a secret in it."""

from __future__ import annotations

import json
import os
import re
import shutil
from typing import Iterable, List, Optional, Sequence

CAP_BYTES = 64 << 20
TAIL_BYTES = 4096
_TAIL_MEMORY = 4 * TAIL_BYTES
SHORTEST_SECRET = 4
"""Shorter values are no secrets but words that occur everywhere; hiding them would make logs unreadable."""

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: titles, links
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"  # DCS, SOS, PM, APC
    r"|\x1b[ -/]*[0-~]?"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class Redactor:
    """Replaces secret values by `***`, in texts, in JSON values and in streams of bytes."""

    def __init__(self, secrets: Iterable[str]) -> None:
        values = {value for value in secrets if len(value) >= SHORTEST_SECRET}
        # As it looks inside of JSON and in Python's tracebacks, and what of those looks like inside of JSON.
        values |= {quoted(value)[1:-1] for value in values for quoted in (repr, ascii)}
        values |= {json.dumps(value, ensure_ascii=plain)[1:-1] for value in values for plain in (True, False)}
        # The longest first: one secret may be the beginning of another.
        self._texts = sorted(values, key=len, reverse=True)
        self._values = [value.encode("utf-8", "surrogateescape") for value in self._texts]

    def stream(self) -> "RedactedStream":
        """For one stream of bytes, in which a value may come in several pieces."""
        return RedactedStream(self._values)

    def text(self, text: str) -> str:
        """A whole text with secrets replaced."""
        for value in self._texts:
            text = text.replace(value, "***")
        return text

    def clean(self, value: object) -> object:
        """A JSON value with secrets replaced in every text of it, keys included."""
        if not self._texts:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key): self.clean(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.clean(item) for item in value]
        return value


class RedactedStream:
    """One stream's bytes with secrets replaced. What is held back of one stream must never come out in another."""

    def __init__(self, values: Sequence[bytes]) -> None:
        """`values`: the secrets, the longest first."""
        self._values = values
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What can be passed on; the beginning of what may become a secret is held back."""
        if not self._values:
            return data
        data = self._replaced(self._held + data)
        keep = self._unfinished(data)
        self._held = data[len(data) - keep :]
        return data[: len(data) - keep]

    def flush(self) -> bytes:
        """What was held back, at the end of the stream."""
        held, self._held = self._held, b""
        return held

    def _replaced(self, data: bytes) -> bytes:
        for value in self._values:
            data = data.replace(value, b"***")
        return data

    def _unfinished(self, data: bytes) -> int:
        """Length of the longest end of `data` that some secret starts with."""
        longest = 0
        for value in self._values:
            end = data[max(0, len(data) - len(value) + 1) :]
            start = end.find(value[:1])
            while start >= 0 and not value.startswith(end[start:]):
                start = end.find(value[:1], start + 1)
            if start >= 0:
                longest = max(longest, len(end) - start)
        return longest


class LogFile:
    """A log of at most `cap` bytes that keeps its beginning and its end, and the newest 16 KiB in memory.

    The beginning is the file itself. The end grows in two files beside it that take turns, and is joined to it
    by `close`; if this program is killed, all three stay. A disk that is full costs the log, never the run."""

    def __init__(self, path: str, redactor: Redactor, cap: int = CAP_BYTES) -> None:
        self.path = path
        self.position = 0  # bytes taken so far, secrets replaced
        self._stream = redactor.stream()
        self._head_left = cap // 2
        self._segment_size = max(1, cap // 4)
        self._segments = [f"{path}.tail1", f"{path}.tail2"]
        self._current = 0
        self._written = 0
        self._left_out = 0
        self._tail = bytearray()
        self._mark = 0
        self._fd: Optional[int] = self._open(path, os.O_APPEND)

    def write(self, data: bytes) -> None:
        """Take output of a worker."""
        self._store(self._stream.feed(data))

    def mark(self, position: int) -> None:
        """From here on, `tail` is of what was stored from `position` on."""
        self._mark = position

    def tail(self) -> str:
        """The newest output since the mark, at most 4 KiB, fit for a terminal."""
        since = self.position - self._mark
        return printable(bytes(self._tail[-since:])) if since > 0 else ""

    def close(self) -> None:
        """Join beginning and end; the log is whole then."""
        self._store(self._stream.flush())
        if self._fd is None:
            return
        os.close(self._fd)
        self._fd = None
        ends = (self._segments[1 - self._current], self._segments[self._current])
        try:
            with open(self.path, "ab") as whole:
                if self._left_out:
                    whole.write(b"\n[... %d bytes left out ...]\n" % self._left_out)
                for path in ends:
                    if os.path.exists(path):
                        with open(path, "rb") as end:
                            shutil.copyfileobj(end, whole)
        except OSError:
            return  # the pieces stay beside it
        for path in ends:
            if os.path.exists(path):
                os.unlink(path)

    def _store(self, data: bytes) -> None:
        self.position += len(data)
        self._tail += data[-_TAIL_MEMORY:]
        if len(self._tail) > 2 * _TAIL_MEMORY:
            del self._tail[:-_TAIL_MEMORY]
        view = memoryview(data)
        while view and self._fd is not None:
            room = self._room()
            try:
                count = os.write(self._fd, view[:room])
            except OSError:
                self._left_out += len(view)
                return
            view = view[count:]
            if self._head_left:
                self._head_left -= count
            else:
                self._written += count

    def _room(self) -> int:
        """How much may be written to the file in use; goes on to the next one when that is full."""
        if self._head_left:
            return self._head_left
        if self._written == 0:
            self._use(self._current)
        elif self._written >= self._segment_size:
            other = 1 - self._current
            if os.path.exists(self._segments[other]):
                self._left_out += os.stat(self._segments[other]).st_size
            self._use(other)
        return self._segment_size - self._written

    def _use(self, segment: int) -> None:
        if self._fd is not None:
            os.close(self._fd)
        self._current, self._written = segment, 0
        self._fd = self._open(self._segments[segment], os.O_TRUNC)

    def _open(self, path: str, mode: int) -> Optional[int]:
        try:
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | mode, 0o600)
        except OSError:
            return None


def printable(data: bytes, limit: int = TAIL_BYTES) -> str:
    """The end of some output as text without escape sequences and control characters, at most `limit` bytes of
    UTF-8; of a line that was overwritten (a progress bar) the last state."""
    text = _ESCAPES.sub("", data.decode("utf-8", "replace")).replace("\r\n", "\n")
    lines: List[str] = []
    for line in text.split("\n"):
        shown = [part for part in line.split("\r") if part]
        lines.append(_CONTROLS.sub("\ufffd", shown[-1]) if shown else "")
    whole = "\n".join(lines).strip("\n").encode("utf-8", "replace")
    return whole[-limit:].decode("utf-8", "ignore")
