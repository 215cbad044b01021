"""The connections of a host: one for all its commands, or several where its server mixes up commands side by side."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from orchestrator.transport.openings import OpenOnce

_DROPBEAR = re.compile(r"dropbear_(\d+)\.(\d+)")
_FIRST_HASTY, _FIRST_MENDED = (2022, 82), (2024, 86)


def closes_hastily(server_version: str) -> bool:
    """Whether the server is a dropbear that closes a channel whose command has not come yet when another command of the
    connection ends, and then ends the connection over the command (2022.82 to 2024.85)."""
    found = _DROPBEAR.search(server_version)
    return found is not None and _FIRST_HASTY <= (int(found[1]), int(found[2])) < _FIRST_MENDED


class Turns:
    """Counts what the host has not closed yet on one connection."""

    def __init__(self) -> None:
        self.one_at_a_time = False
        """Whether the server mixes up commands side by side."""
        self._lock = threading.Lock()
        self._taken = 0

    def take(self, *, beside_others: bool = False) -> bool:
        """Count one more, which is about to be opened; False, and not counted, where it may not be beside those there are."""
        with self._lock:
            if self._taken and self.one_at_a_time and not beside_others:
                return False
            self._taken += 1
            return True

    def give_back(self) -> None:
        """It was not opened, or the host has closed it."""
        with self._lock:
            self._taken -= 1


class Lane(Protocol):
    """A connection."""

    turns: Turns


L = TypeVar("L", bound=Lane)


class Lanes(Generic[L]):
    """Opens what is needed."""

    def __init__(self, open_one: Callable[[], L], is_alive: Callable[[L], bool]) -> None:
        self._open_one = open_one
        self._is_alive = is_alive
        self._lock = threading.Lock()
        self._first: OpenOnce[L] = OpenOnce(open_one, is_alive)
        self._others: list[L] = []

    def first(self) -> L:
        """The connection, opened if need be."""
        return self._first.get()

    def take(self) -> L:
        """A connection for one more command, which is counted on it."""
        lane = self.first()
        if lane.turns.take():
            return lane
        with self._lock:
            self._others = [other for other in self._others if self._is_alive(other)]
            for other in self._others:
                if other.turns.take():
                    return other
        lane = self._open_one()
        lane.turns.take()
        with self._lock:
            self._others.append(lane)
        return lane
