"""Text and JSON as they cross the border of this program, the same under every locale.

Paths, arguments and environment values come as JSON text and mean UTF-8 bytes. Python turns text into bytes by the
locale's encoding, which may be ASCII or Latin-1; `native` gives the text that becomes the right bytes here.
"""

from __future__ import annotations

import json
import math
import os
from typing import Any, Iterator, List, Tuple

LONGEST_MESSAGE = 8 << 20
"""Bytes of a worker's message; what is longer is not read."""


class Lines:
    """Whole lines of a stream that comes in pieces. No byte is looked at twice, however long a line grows."""

    def __init__(self, pending: bytes = b"") -> None:
        self._pending = bytearray(pending)
        self._searched = 0

    def __len__(self) -> int:
        """Bytes of the line that is not whole yet, and of whole ones that nobody has taken."""
        return len(self._pending)

    def feed(self, data: bytes) -> None:
        """What came next."""
        self._pending += data

    def whole(self) -> Iterator[bytes]:
        """Take the lines that are whole, without their newlines."""
        while True:
            end = self._pending.find(b"\n", self._searched)
            if end < 0:
                self._searched = len(self._pending)
                return
            line = bytes(self._pending[:end])
            del self._pending[: end + 1]
            self._searched = 0
            yield line

    def clear(self) -> None:
        """Forget what is there."""
        del self._pending[:]
        self._searched = 0


def native(text: str) -> str:
    """The text that the operating system sees as the UTF-8 bytes of `text`."""
    return os.fsdecode(text.encode("utf-8", "surrogateescape"))


def portable(path: str) -> str:
    """The inverse of `native` for what is reported: bytes that are no UTF-8 become replacement characters."""
    return os.fsencode(path).decode("utf-8", "replace")


def encoded(text: str) -> bytes:
    """`text` as the bytes of an argument or an environment value."""
    return text.encode("utf-8", "surrogateescape")


def dump(value: Any) -> bytes:
    """Strict ASCII JSON on one line without its newline. Raises ValueError on NaN and infinities."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")


def finite(value: Any, where: str = "") -> Tuple[Any, List[str]]:
    """(`value` as strict JSON can hold it, what had to be changed: `metrics.x is NaN`).

    Non-finite numbers become None, lone surrogates (no reader of UTF-8 takes them) replacement characters, other
    types their text."""
    problems: List[str] = []
    return _finite(value, where, problems), problems


def _finite(value: Any, where: str, problems: List[str]) -> Any:
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        problems.append(f"{where or 'a value'} is {name_of(value)}")
        return None
    if isinstance(value, str):
        return unicode(value)
    if isinstance(value, dict):
        prefix = f"{where}." if where else ""
        return {unicode(str(key)): _finite(item, f"{prefix}{key}", problems) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item, f"{where}[{number}]", problems) for number, item in enumerate(value)]
    return unicode(str(value))


def name_of(number: float) -> str:
    """What people call a non-finite number."""
    return "NaN" if math.isnan(number) else "infinity" if number > 0 else "-infinity"


def unicode(text: str) -> str:
    """`text` without lone surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return text
