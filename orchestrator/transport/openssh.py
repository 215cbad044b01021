"""A host over the system's `ssh`: for what only it speaks (GSSAPI, smart cards, FIDO keys). `transport: openssh` asks for it.

One `ssh` logs in and stays as the master of a control socket in a private folder; each command is another `ssh` that goes
through that socket. Host key rules, jump hosts and limits are those of the other transport.
"""

from __future__ import annotations

import itertools
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from orchestrator.errors import HostRefused, HostUnreachable
from orchestrator.transport.base import Completed
from orchestrator.transport.channels import Channels
from orchestrator.transport.complete import run_to_end
from orchestrator.transport.known_hosts import KnownHosts
from orchestrator.transport.lanes import Lanes
from orchestrator.transport.openings import Openings
from orchestrator.transport.openssh_master import Master, MasterSettings, start_master
from orchestrator.transport.openssh_process import OpenSshProcess
from orchestrator.transport.quoting import login_shell_line
from orchestrator.transport.target import Target, Warn

_PREFIX = "farbench-ssh-"
LEFT_BEHIND_S = 86400.0
_SOCKET_PATH_BYTES = 104
"""The shortest limit for the path of a socket; ssh adds 17 characters of its own while it makes one."""


class OpenSshTransport:
    """See `base.Transport`. `jump` is the connection to go through, shared by all hosts behind it."""

    def __init__(
        self,
        target: Target,
        *,
        environ: Mapping[str, str],
        known_hosts: Callable[[Target], KnownHosts],
        warn: Warn,
        openings: Openings,
        jump: OpenSshTransport | None = None,
    ) -> None:
        """Raises `HostRefused` where there is no ssh client."""
        self.host = target.name
        """Called after the connection was closed, for what was opened only for it."""
        client = shutil.which("ssh", path=environ.get("PATH"))
        if client is None:
            raise HostRefused(
                target.name, "`transport: openssh` needs the program `ssh` on this machine, which is not on PATH",
                step="ssh config", hint="install an OpenSSH client, or leave `transport` out",
            )  # fmt: skip
        self._client = client
        self._target = target
        self._environ = dict(environ)
        self._known_hosts = known_hosts
        self._warn = warn
        self._openings = openings
        self._jump = jump
        self._keepalive_s = target.keepalive_s
        self._silence_s = target.silence_s
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._folder: Path | None = None
        self._opened: dict[int, Master] = {}
        self._latest: Master | None = None
        self._channels = Channels(target.name)
        self._masters: Lanes[Master] = Lanes(self._open, lambda master: master.is_alive())

    @property
    def opening_step(self) -> str:
        """See `base.OpeningTransport.opening_step`."""
        return self._latest.step if self._latest is not None else "connect"

    def connect(self) -> None:
        """Open the connection if it is not open; threads that come meanwhile share the outcome, good or bad."""
        self._live_master()

    def spawn(self, argv: Sequence[str], *, unread_bytes: int | None = None) -> OpenSshProcess:
        """Start a command; see `base.Transport.spawn`. What is unread waits in a pipe of the system's, which is small."""
        line = login_shell_line(argv)
        self._give_up_if_closed()
        master = self._masters.take()

        def ended(closed_by_host: bool) -> None:
            if closed_by_host:
                master.turns.give_back()
            self._channels.ended()

        try:
            return self._channels.open(lambda: OpenSshProcess(self.host, master, line, ended))
        except BaseException:
            master.turns.give_back()
            raise

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float | None = None) -> Completed:
        """Run a command to its end; see `base.Transport.run`."""
        return run_to_end(self.spawn(argv), self.host, argv, stdin=stdin, timeout_s=timeout_s)

    def tunnel_command(self) -> list[str]:
        """A command that stands in for a connection to the host behind this one, for ssh's ProxyCommand."""
        return [*self._live_master().client_command(), "-W", "[%h]:%p", "--", "jump"]

    def close(self) -> None:
        """Close the connection for good; a thread that is just opening it gives up."""
        self._closing.set()
        if self._folder is not None:
            with self._lock:
                opened = list(self._opened.values())
            for master in opened:
                master.end()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _live_master(self) -> Master:
        self._give_up_if_closed()
        return self._masters.first()

    def _give_up_if_closed(self) -> None:
        if self._closing.is_set():
            raise HostUnreachable(self.host, "the connection was closed", step="connect")

    def _open(self) -> Master:
        # Before our turn: the jump host needs one of its own.
        through = self._jump.tunnel_command() if self._jump is not None else None
        return self._openings.open(
            self.host, self._target.endpoint, self._closing, lambda: self._open_once(through)
        )

    def _open_once(self, through: Sequence[str] | None) -> Master:
        master = self._new_master()
        settings = MasterSettings(
            self._target, self._known_hosts(self._target), through, self._keepalive_s, self._silence_s
        )
        try:
            start_master(master, settings, self._closing, self._warn)
        finally:
            master.starting = False
        return master

    def _new_master(self) -> Master:
        """With a socket and a log that no other one has."""
        with self._lock:
            if self._folder is None:
                try:
                    self._folder = _private_folder()
                except OSError as error:  # ours, not the host's: once there is room, the next try succeeds
                    raise HostUnreachable(
                        self.host,
                        f"no folder for ssh's sockets can be made here: {error.strerror or error}",
                        hint="make room there, or name another folder by TMPDIR",
                    ) from error
            self._opened = {
                number: master
                for number, master in self._opened.items()
                if master.starting or master.is_alive()
            }
            number = next(number for number in itertools.count() if number not in self._opened)
            master = Master(self.host, self._client, self._folder, self._environ, number)
            self._opened[number] = self._latest = master
        return master


def _private_folder() -> Path:
    """A new folder, 0700, with a path short enough for a socket in it."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    if len(str(folder)) + len("/s00.0123456789abcdef") >= _SOCKET_PATH_BYTES:
        with suppress(OSError):
            folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp"))  # mkdtemp makes it ours alone
    for other in folder.parent.glob(f"{_PREFIX}*"):
        if other != folder:
            with suppress(OSError):
                _remove_if_left_behind(other)
    return folder


def _remove_if_left_behind(folder: Path) -> None:
    """The folder of a controller that was killed: its master has long ended, and took the socket away."""
    found = folder.lstat()
    old = time.time() - found.st_mtime > LEFT_BEHIND_S
    if old and found.st_uid == os.getuid() and stat.S_ISDIR(found.st_mode) and not any(folder.glob("s*")):
        shutil.rmtree(folder, ignore_errors=True)
