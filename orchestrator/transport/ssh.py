"""A host over SSH: fabric's Connection on a socket, keys and host key rules of our own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import fabric
import paramiko
from paramiko.channel import Channel

from orchestrator.errors import HostError, HostUnreachable
from orchestrator.transport.base import Completed
from orchestrator.transport.complete import run_to_end
from orchestrator.transport.host_key import check_host_key
from orchestrator.transport.keys import KeyStore
from orchestrator.transport.known_hosts import KnownHosts
from orchestrator.transport.lanes import Lanes, closes_hastily
from orchestrator.transport.link import Link, command_link, tcp_link
from orchestrator.transport.login import Login
from orchestrator.transport.openings import PROXY_COMMAND_HINT, Dropped, Openings, hung_up
from orchestrator.transport.process import SshProcess
from orchestrator.transport.quoting import login_shell_line
from orchestrator.transport.session import Session, plain
from orchestrator.transport.target import Target, Warn

HANDSHAKE_TIMEOUT_S = 20.0
AUTH_TIMEOUT_S = 60.0


class SshTransport:
    """See `base.Transport`. `jump` is the connection to go through, shared by all hosts behind it."""

    def __init__(
        self,
        target: Target,
        *,
        keys: KeyStore,
        known_hosts: Callable[[Target], KnownHosts],
        warn: Warn,
        openings: Openings,
        jump: SshTransport | None = None,
    ) -> None:
        self.host = target.name
        """Called after the connection was closed, for what was opened only for it."""
        self._target = target
        self._keys = keys
        self._known_hosts = known_hosts
        self._warn = warn
        self._openings = openings
        self._jump = jump
        self._keepalive_s = target.keepalive_s
        self._silence_s = target.silence_s
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._opening: set[Link] = set()
        self._connections: list[fabric.Connection] = []
        self._latest: Session | None = None
        self._sessions: Lanes[Session] = Lanes(self._open, lambda session: bool(session.is_active()))

    @property
    def opening_step(self) -> str:
        """See `base.OpeningTransport.opening_step`."""
        return self._latest.step if self._latest is not None else "connect"

    def connect(self) -> None:
        """Open the connection if it is not open; threads that come meanwhile share the outcome, good or bad."""
        self._sessions.first()

    def spawn(self, argv: Sequence[str], *, unread_bytes: int | None = None) -> SshProcess:
        """Start a command; see `base.Transport.spawn`."""
        line = login_shell_line(argv)
        return SshProcess(self.host, self._sessions.take(), line, unread_bytes=unread_bytes)

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float | None = None) -> Completed:
        """Run a command to its end; see `base.Transport.run`."""
        return run_to_end(self.spawn(argv), self.host, argv, stdin=stdin, timeout_s=timeout_s)

    def tunnel(self, host: str, port: int, *, name: str, timeout_s: float) -> Channel:
        """A stream to `host` from this one, as a jump host. Raises `HostUnreachable` in the name of the host behind."""
        session = self._sessions.first()
        session.turns.take(beside_others=True)
        try:
            return session.open_channel("direct-tcpip", (host, port), ("127.0.0.1", 0), timeout=timeout_s)
        except (paramiko.SSHException, OSError, EOFError) as error:
            session.turns.give_back()
            reason = f"{self.host} cannot reach {host} port {port}: {error or 'the link broke'}"
            raise HostUnreachable(name, reason, step="connect") from error

    def close(self) -> None:
        """Close the connection for good; a thread that is just opening it gives up."""
        self._closing.set()
        self._close_all()

    def _close_all(self) -> None:
        with self._lock:
            links, connections = list(self._opening), self._connections
        for link in links:
            link.close()
        for connection in connections:
            connection.client.close()

    def _open(self) -> Session:
        if self._jump is not None:
            self._jump.connect()  # before our turn: it needs one of its own
        return self._openings.open(self.host, self._target.endpoint, self._closing, self._open_once)

    def _give_up_if_closed(self) -> None:
        """Whoever sets `_closing` closes what it sees; what was opened at the same moment is closed here."""
        if self._closing.is_set():
            self._close_all()
            raise HostUnreachable(self.host, "the connection was closed", step="connect")

    def _open_once(self) -> Session:
        target = self._target
        known = self._known_hosts(target)
        login = Login(target, self._keys, self._warn)
        link = self._link()
        with self._lock:
            self._opening.add(link)
        self._give_up_if_closed()
        opened: list[Session] = []

        def make_session(sock: Link, **options: Any) -> Session:
            session = Session(sock, self.host, **options)
            session.handshake_timeout = HANDSHAKE_TIMEOUT_S
            host, port = target.key_host
            types = [entry.key_type for entry in known.keys_of(host, port)]
            session.prefer_host_keys(types, certificates=bool(known.authorities(host, port)))
            opened.append(session)
            self._latest = session
            return session

        connection = fabric.Connection(
            target.host, user=target.user, port=target.port, config=_fabric_defaults(), gateway=False, forward_agent=False,
            connect_kwargs={
                "sock": link, "transport_factory": make_session, "auth_strategy": login,
                "banner_timeout": max(target.connect_timeout_s, HANDSHAKE_TIMEOUT_S), "auth_timeout": AUTH_TIMEOUT_S,
            },
        )  # fmt: skip
        # fabric would trust any key that it sees for the first time. Its client knows no host keys here, so that this
        # policy is asked about every one of them.
        connection.client.set_missing_host_key_policy(_HostKeyCheck(target, known, opened, self._warn))
        try:
            connection.open()
        except HostError:
            connection.client.close()
            link.close()
            raise
        except Exception as error:
            # Whatever paramiko's reading thread stumbled over in what the host sent is raised here, of any type.
            session = opened[0] if opened else None
            failure = self._failed(session, error, link)
            connection.client.close()
            link.close()
            raise failure from error
        finally:
            with self._lock:
                self._opening.discard(link)
        session = opened[0]
        session.keep_alive(self._keepalive_s, self._silence_s)
        session.turns.one_at_a_time = closes_hastily(session.remote_version)
        with self._lock:
            self._connections = [one for one in self._connections if one.is_connected] + [connection]
        self._give_up_if_closed()
        return session

    def _link(self) -> Link:
        target = self._target
        if self._jump is not None:
            return Link(
                self._jump.tunnel(
                    target.host, target.port, name=self.host, timeout_s=target.connect_timeout_s
                )
            )
        if target.proxy_command is not None:
            return command_link(self.host, target.proxy_command)
        return tcp_link(
            self.host,
            target.host,
            target.port,
            timeout_s=target.connect_timeout_s,
            family=target.address_family,
            source=target.bind_address,
        )

    def _failed(self, session: Session | None, error: BaseException, link: Link) -> HostUnreachable:
        step = session.step if session is not None else "connect"
        if step == "banner" and link.command is not None and (said := link.command.last_words()):
            kind = HostUnreachable if link.command.cannot_run else Dropped
            return kind(self.host, said, step="connect", hint=PROXY_COMMAND_HINT)
        reason = (
            (session.farewell if session is not None else None)
            or plain(str(error))
            or "the host closed the connection"
        )
        if step == "banner" and session is not None and not self._closing.is_set():
            return self._no_banner(session)
        return HostUnreachable(self.host, reason, step=step)

    def _no_banner(self, session: Session) -> HostUnreachable:
        """The host did not say that it speaks SSH. Only one that hangs up may do better the next time."""
        said = next((line for line in session.preamble if line.strip()), None)
        what = f"; it said {plain(said, 80)!r}" if said is not None else ""
        if session.was_silent:
            return HostUnreachable(
                self.host,
                f"connected, but no SSH server answered within {session.banner_timeout:g} s{what}",
                step="banner",
                hint="is that the port of an SSH server? A tunnel or a firewall may take a connection and lead it nowhere",
            )
        return hung_up(self.host, what)


class _HostKeyCheck(paramiko.MissingHostKeyPolicy):
    """Asked by paramiko's client for each host key, since the client knows none itself."""

    def __init__(self, target: Target, known: KnownHosts, opened: list[Session], warn: Warn) -> None:
        self._target = target
        self._known = known
        self._opened = opened
        self._warn = warn

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        """Raises `HostRefused` unless the key is trusted."""
        check_host_key(self._target, self._known, self._opened[0].host_key_blob, warn=self._warn)


def _fabric_defaults() -> fabric.Config:
    """fabric's defaults without its files, since hosts are resolved in `config.py`. One a connection (it costs 0.1 ms):
    a Connection writes its own attributes into its Config, which other threads would see half-made."""
    return fabric.Config(lazy=True, ssh_config=paramiko.SSHConfig())
