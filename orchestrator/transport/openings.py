"""Opening connections: once for all threads that ask, so many at a time, and again when the host had no room for one more."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from orchestrator.errors import HostError, HostUnreachable

AT_ONCE = 32
"""Connections that are being opened at one moment; open ones do not count."""
RETRY_FOR_S = 30.0
"""How long a host that drops connections before it says who it is (sshd's MaxStartups) is tried again."""

PROXY_COMMAND_HINT = "does the ProxyCommand of the ssh config work by itself?"

T = TypeVar("T")


class Dropped(HostUnreachable):
    """The connection ended before the host said who it is: worth another try."""


def hung_up(host: str, more: str) -> Dropped:
    """The host itself ended it; `more` is what is known beyond that."""
    return Dropped(
        host, f"the host closed the connection before it said who it is{more}", step="banner",
        hint="too many connections at once (sshd's MaxStartups), a firewall, or no SSH server on that port",
    )  # fmt: skip


class OpenOnce(Generic[T]):
    """A value that is opened when it is first needed, and again after it died; threads that come meanwhile share the
    outcome, good or bad."""

    def __init__(self, open_one: Callable[[], T], is_alive: Callable[[T], bool]) -> None:
        self._open_one = open_one
        self._is_alive = is_alive
        self._lock = threading.Lock()
        self._value: T | None = None
        self._attempts = 0
        self._failure: HostError | None = None

    def get(self) -> T:
        """The live value. Raises the `HostError` of opening it."""
        value, seen = self._value, self._attempts
        if value is not None and self._is_alive(value):
            return value
        with self._lock:
            if self._value is not None and self._is_alive(self._value):
                return self._value
            if self._attempts != seen and self._failure is not None:
                raise self._failure
            self._failure = None
            try:
                self._value = self._open_one()
            except HostError as error:
                self._failure = error
                raise
            finally:
                self._attempts += 1
            return self._value


class Openings:
    """Gives turns to open connections, in the order they were asked for: `at_once` altogether, and fewer to an address
    that has dropped some. A wait for a jump host must come before the turn, not within it."""

    def __init__(self, at_once: int = AT_ONCE, retry_for_s: float | None = None) -> None:
        self._at_once = at_once
        self._retry_for_s = RETRY_FOR_S if retry_for_s is None else retry_for_s
        self._changed = threading.Condition()
        self._waiting: list[tuple[object, str]] = []
        self._opening: Counter[str] = Counter()
        self._limits: dict[str, int] = {}

    def open(self, host: str, address: str, closing: threading.Event, attempt: Callable[[], T]) -> T:
        """`attempt`, again while it raises `Dropped` (for `retry_for_s` after the first time, with pauses of random,
        growing length). Raises `HostUnreachable` once `closing` is set."""
        try:
            return self._attempt(host, address, closing, attempt)
        except Dropped as dropped:
            return self._again(dropped, lambda: self._attempt(host, address, closing, attempt), closing)

    def _attempt(self, host: str, address: str, closing: threading.Event, attempt: Callable[[], T]) -> T:
        with self._turn(host, address, closing):
            try:
                return attempt()
            except Dropped:
                self._take_fewer(address)
                raise

    def _again(self, dropped: Dropped, attempt: Callable[[], T], closing: threading.Event) -> T:
        """What follows on a first attempt that was `dropped`."""
        # Loads asyncio and more, and is seldom needed.
        from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential
        from tenacity.nap import sleep_using_event

        give_up_at = time.monotonic() + self._retry_for_s
        before: list[Dropped] = [dropped]

        def too_long(_: RetryCallState) -> bool:
            return time.monotonic() > give_up_at

        for trial in Retrying(
            retry=retry_if_exception_type(Dropped), stop=too_long, reraise=True,
            wait=wait_random_exponential(multiplier=0.25, max=self._retry_for_s / 6), sleep=sleep_using_event(closing),
        ):  # fmt: skip
            with trial:
                if before:
                    raise before.pop()
                return attempt()
        raise AssertionError("Retrying ends with a result or an exception")

    @contextmanager
    def _turn(self, host: str, address: str, closing: threading.Event) -> Iterator[None]:
        ticket = (object(), address)
        with self._changed:
            self._waiting.append(ticket)
            try:
                while not (free := self._is_next(ticket)) and not closing.is_set():
                    self._changed.wait(0.5)
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()
            if not free or closing.is_set():
                raise HostUnreachable(host, "the connection was closed", step="connect")
            self._opening[address] += 1
        try:
            yield
        finally:
            with self._changed:
                self._opening[address] -= 1
                self._changed.notify_all()

    def _is_next(self, ticket: tuple[object, str]) -> bool:
        """Whether nobody who came earlier could use the turn. Who waits for a busy address holds up nobody else."""
        if self._opening.total() >= self._at_once:
            return False
        for other in self._waiting:
            address = other[1]
            if self._opening[address] < self._limits.get(address, self._at_once):
                return other is ticket
        return False

    def _take_fewer(self, address: str) -> None:
        with self._changed:
            self._limits[address] = max(
                1, min(self._opening[address], self._limits.get(address, self._at_once)) // 2
            )
