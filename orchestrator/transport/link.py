"""The byte stream under an SSH connection: a TCP socket, a channel through a jump host, or a ProxyCommand.

Stock paramiko stalls about 40 ms four times a host (Nagle's algorithm against delayed acknowledgements), and takes a link on
which nothing arrives any more for a live one. A `Link` has TCP_NODELAY and TCP_QUICKACK, and ends itself when it is silent.
"""

from __future__ import annotations

import errno
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from orchestrator.errors import HostUnreachable
from orchestrator.transport.proxy_command import Command

READ_AHEAD_BYTES = 256 * 1024
_QUICKACK = getattr(socket, "TCP_QUICKACK", None) if sys.platform == "linux" else None
_NOTHING = memoryview(b"")
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}


class Stream(Protocol):
    """What a link is laid over: a socket, or a paramiko channel."""

    def recv(self, size: int, /) -> bytes:
        """Up to `size` bytes; b"" at the end."""

    def send(self, data: bytes, /) -> int:
        """Send some of `data`."""

    def settimeout(self, timeout: float | None, /) -> None:
        """Seconds until recv and send raise `TimeoutError`."""

    def close(self) -> None:
        """Close it."""


class LinkBroken(ConnectionError):
    """The stream ended with an error, or nothing arrived for too long, not even answers to keepalives.

    paramiko takes a TimeoutError for an idle moment, and its reading thread wants an errno and a text in every OSError."""

    def __init__(self, message: str) -> None:
        super().__init__(errno.ECONNRESET, message)

    def __str__(self) -> str:
        return str(self.strerror)


class LinkSilent(LinkBroken):
    """Its time was over; the other end has not hung up."""


class Link:
    """A socket-like object for paramiko. Reads ahead, so that a packet does not cost two system calls."""

    def __init__(
        self,
        stream: Stream,
        *,
        quickack: bool = False,
        on_close: Callable[[], None] | None = None,
        command: Command | None = None,
    ) -> None:
        """`command` is what the stream leads to, where that is a ProxyCommand."""
        self.command = command
        self._stream = stream
        self._quickack = (
            stream if quickack and isinstance(stream, socket.socket) and _QUICKACK is not None else None
        )
        self._on_close = on_close
        self._ahead = _NOTHING
        self._closed = False  # paramiko looks at this name, which sockets have
        self._silence_s: float | None = None
        self._last_received = time.monotonic()
        self._allowed_s: float | None = None
        self._deadline: float | None = None

    def allow(self, seconds: float | None) -> None:
        """From now on, end the link after `seconds`, whatever arrives, or (None) never for that reason."""
        self._allowed_s = seconds
        self._deadline = None if seconds is None else time.monotonic() + seconds

    def watch(self, silence_s: float) -> None:
        """From now on, end the link when nothing arrives for `silence_s`; somebody must keep the other side talking."""
        self._last_received = time.monotonic()
        self._silence_s = silence_s

    def recv(self, size: int) -> bytes:
        """As `socket.recv`; raises `LinkBroken`."""
        self._check_deadline()
        if not self._ahead:
            try:
                data = self._stream.recv(READ_AHEAD_BYTES)
            except TimeoutError:
                self._check_silence()
                raise
            except OSError as error:
                self._listen_to_command()
                raise LinkBroken(error.strerror or str(error)) from error
            if not data:
                self._listen_to_command()
            self._last_received = time.monotonic()
            if self._quickack is not None:
                assert _QUICKACK is not None
                with suppress(OSError):  # it was closed by another thread meanwhile
                    self._quickack.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
            if len(data) <= size:
                return data
            self._ahead = memoryview(data)
        head = bytes(self._ahead[:size])
        # An empty view would keep all that was read alive.
        self._ahead = self._ahead[size:] if len(self._ahead) > size else _NOTHING
        return head

    def send(self, data: bytes) -> int:
        """As `socket.send`; raises `LinkBroken`, so that a full buffer does not block a writer for ever."""
        self._check_deadline()
        try:
            return self._stream.send(data)
        except TimeoutError:
            self._check_silence()
            raise
        except OSError:
            self._listen_to_command()
            raise

    def settimeout(self, timeout: float | None) -> None:
        """As `socket.settimeout`."""
        self._stream.settimeout(timeout)

    def close(self) -> None:
        """Close the stream and what belongs to it."""
        self._closed = True
        self._stream.close()
        if self._on_close is not None:
            self._on_close()

    def _check_deadline(self) -> None:
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise LinkSilent(f"not done within {self._allowed_s:g} s")

    def _listen_to_command(self) -> None:
        """A ProxyCommand whose end was seen, before the link is closed and it is stopped."""
        if self.command is not None and not self._closed:
            self.command.last_words()

    def _check_silence(self) -> None:
        if self._silence_s is not None and time.monotonic() - self._last_received > self._silence_s:
            raise LinkSilent(f"nothing came from the host for {self._silence_s:.0f} s")


def tcp_link(
    name: str, host: str, port: int, *, timeout_s: float, family: str = "any", source: str | None = None
) -> Link:
    """Connect over TCP (from the address `source` of this machine), trying every address of `host` in turn. Raises `HostUnreachable` (steps `resolve`, `connect`)."""
    addresses = _resolve(name, host, port, timeout_s, family)
    deadline = time.monotonic() + timeout_s
    problems = []
    nobody_listens = True
    for untried, (kind, address) in zip(range(len(addresses), 0, -1), addresses, strict=True):
        connection = socket.socket(kind, socket.SOCK_STREAM)
        connection.settimeout(max(1.0, (deadline - time.monotonic()) / untried))
        try:
            if source is not None:
                connection.bind(socket.getaddrinfo(source, None, kind, socket.SOCK_STREAM)[0][4])
            connection.connect(address)
        except OSError as error:
            connection.close()
            nobody_listens = nobody_listens and error.errno == errno.ECONNREFUSED
            what = (
                f"no answer within {timeout_s:.0f} s"
                if isinstance(error, TimeoutError)
                else error.strerror or error
            )
            from_where = f" from {source}" if source is not None else ""
            problems.append(f"{address[0]} port {address[1]}{from_where}: {what}")
            continue
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return Link(connection, quickack=True)
    raise HostUnreachable(name, "; ".join(problems), step="connect", nobody_listens=nobody_listens)


def command_link(name: str, command: str) -> Link:
    """Talk through a ProxyCommand of the user's own ssh config, run by a shell as `ssh` does."""
    ours, theirs = socket.socketpair()
    try:
        running = Command(command, theirs)
    except OSError as error:
        ours.close()
        raise HostUnreachable(name, f"ProxyCommand: {error}", step="connect") from error
    finally:
        theirs.close()
    return Link(ours, on_close=running.end, command=running)


def _resolve(
    name: str, host: str, port: int, timeout_s: float, family: str
) -> Sequence[tuple[socket.AddressFamily, tuple[str, int]]]:
    """The addresses of a host. The C library has no time limit of its own, so it asks in a thread that may be left behind."""
    found: list[tuple[socket.AddressFamily, tuple[str, int]]] = []
    problem: list[OSError] = []

    def ask() -> None:
        try:
            for answer in socket.getaddrinfo(
                host, port, _FAMILIES.get(family, socket.AF_UNSPEC), socket.SOCK_STREAM
            ):
                found.append((answer[0], answer[4]))  # type: ignore[arg-type]  # IPv6 addresses are longer tuples
        except (OSError, UnicodeError) as error:
            problem.append(error if isinstance(error, OSError) else OSError(str(error)))

    asking = threading.Thread(target=ask, name=f"resolve {host}", daemon=True)
    asking.start()
    asking.join(timeout_s)
    if asking.is_alive():
        raise HostUnreachable(
            name, f"{host}: no answer from the name service within {timeout_s:.0f} s", step="resolve"
        )
    if problem or not found:
        reason = problem[0].strerror or problem[0] if problem else "no address"
        raise HostUnreachable(
            name, f"{host}: {reason}", step="resolve",
            hint=f"is `address` of {name} in hosts.yaml right?"
            + (" A port has a line of its own: `port: …`" if re.fullmatch(r"[^:]+:\d+", host) else ""),
        )  # fmt: skip
    return found
