"""Which payloads still get workers: one whose workers never get ready must not eat the queue case by case."""

from __future__ import annotations

from typing import Dict, Sequence, Set, Tuple

MOST_FAILURES = 3


class StartFailures:
    """Counts failed starts in a row, by payload and device.

    A device on which a payload failed three times in a row is retired for it (a GPU that fell off the bus must not take
    every case down while others work); a payload that failed three times in a row and was never ready, or is
    retired on every device, is given up."""

    def __init__(self) -> None:
        self._in_a_row: Dict[str, int] = {}
        self._on_device: Dict[Tuple[str, str], int] = {}
        self._ever_ready: Set[str] = set()

    def note(self, payload: str, uuids: Sequence[str], ready: bool) -> None:
        """The workers of a payload got ready on these devices, or did not."""
        if ready:
            self._ever_ready.add(payload)
        self._in_a_row[payload] = 0 if ready else self._in_a_row.get(payload, 0) + 1
        for uuid in uuids:
            key = (payload, uuid)
            self._on_device[key] = 0 if ready else self._on_device.get(key, 0) + 1

    def retired(self, payload: str, uuid: str) -> bool:
        """Whether a payload gets no more workers on a device."""
        return self._on_device.get((payload, uuid), 0) >= MOST_FAILURES

    def given_up(self, payload: str, uuids: Sequence[str]) -> bool:
        """Whether a payload gets no more workers on any of this host's devices."""
        if payload not in self._ever_ready and self._in_a_row.get(payload, 0) >= MOST_FAILURES:
            return True
        return bool(uuids) and all(self.retired(payload, uuid) for uuid in uuids)
