"""Secrets that were sent to a host, left out of what it says: it may print the request that it was sent."""

from __future__ import annotations

import json
from collections.abc import Iterable

SHORTEST_SECRET = 4
_STARS = b"***"


class Hiding:
    """Replaces values by `***`, as they are and as JSON writes them."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        """Values of fewer than `SHORTEST_SECRET` characters are no secrets."""
        long = {value for value in values if len(value) >= SHORTEST_SECRET}
        texts = long | {
            json.dumps(value, ensure_ascii=plain)[1:-1] for value in long for plain in (True, False)
        }
        encoded = {text.encode("utf-8", "surrogateescape") for text in texts}
        self._values = sorted(encoded, key=len, reverse=True)

    def hide(self, data: bytes) -> bytes:
        """`data` without the values, nor the end of one that it begins with: it may be the tail of something longer."""
        for value in self._values:
            data = data.replace(value, _STARS)
        for value in self._values:
            for length in range(len(value) - 1, SHORTEST_SECRET - 1, -1):
                if data.startswith(value[-length:]):
                    return _STARS + data[length:]
        return data
