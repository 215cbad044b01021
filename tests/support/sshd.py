"""Real OpenSSH servers for tests: on loopback, with fresh keys, a known_hosts of their own and a private home folder."""

from __future__ import annotations

import ctypes
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.inventory import Launcher

START_TIMEOUT_S = 30
SSHD = (
    shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin") or "/usr/sbin/sshd"
)


@dataclass(frozen=True)
class Spec:
    """An entry of hosts.yaml, as far as transports and the dialogue care."""

    name: str
    address: str | None = None
    user: str | None = None
    port: int | None = None
    identity_file: Path | None = None
    known_hosts: Path | None = None
    proxy_jump: str | None = None
    ssh_config: Path | None = None
    transport: str = "ssh"
    insecure: bool = False
    embedded: bool = False
    workdir: str = "~/.cache/farbench"
    python: str | None = None
    activate: str | None = None
    devices: Any = "all"
    agent_python: str | None = None
    env: Mapping[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    launcher: Launcher = field(default_factory=Launcher)


class Sshd:
    """One sshd: `start` it, `stop` it. Its logins get `home` as HOME, and `shell` as the shell that runs the commands."""

    def __init__(
        self,
        folder: Path,
        *,
        address: str = "127.0.0.1",
        port: int | None = None,
        shell: str = "/bin/bash",
        host_key_type: str = "ed25519",
        within: Sequence[str] = (),
        **settings: str | int,
    ) -> None:
        """`within` is a command that runs the sshd (in a namespace, a control group). `settings` are lines of sshd_config, replacing the defaults below."""
        self.folder = folder
        self.address = address
        self.port = port or free_port(address)
        self.user = getpass.getuser()
        self.home = folder / "home"
        self.client_key = folder / "client_key"
        self.host_key = folder / "host_key"
        self.known_hosts = folder / "known_hosts"
        self.log = folder / "sshd.log"
        self._host_key_type = host_key_type
        self._shell = shell
        self._settings = settings
        self.within = tuple(within)
        self._process: subprocess.Popen[bytes] | None = None
        for path in (folder, self.home, folder / "outer_home"):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_key(self.client_key)
        shutil.copy(self.client_key.with_suffix(".pub"), folder / "authorized_keys")
        self.regenerate_host_key()
        self.trust()

    def start(self) -> Sshd:
        """Start, and wait until it listens."""
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self._write_config()
        self.log.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            [*self.within, SSHD, "-D", "-f", str(self.folder / "sshd_config"), "-E", str(self.log)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            preexec_fn=end_with_the_tests,
        )  # fmt: skip
        deadline = time.monotonic() + START_TIMEOUT_S
        while "Server listening" not in self.read_log():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"sshd did not start: {self.read_log()}")
            time.sleep(0.01)
        return self

    def stop(self) -> None:
        """Stop listening and end every connection."""
        if self._process is None:
            return
        for pid in (*self.connection_pids(), self._process.pid):
            with_no_error(os.kill, pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def restart(self) -> None:
        """Stop and start on the same port."""
        self.stop()
        self.start()

    def kill_connections(self, number: int = signal.SIGKILL) -> None:
        """Signal the processes that serve connections; the listener goes on."""
        for pid in self.connection_pids():
            with_no_error(os.kill, pid, number)

    def connection_pids(self) -> list[int]:
        """The sshd processes that serve connections, and the monitors of privilege separation."""
        if self._process is None:
            return []
        found, parents = [], {self._process.pid}
        listing = subprocess.run(
            ["ps", "-eo", "pid=,ppid=,comm="], capture_output=True, text=True, check=True
        ).stdout
        rows = [line.split(None, 2) for line in listing.splitlines()]
        for _ in range(3):  # monitor, session
            children = {
                int(pid) for pid, parent, name in rows if int(parent) in parents and name.startswith("sshd")
            }
            found += sorted(children - set(found))
            parents |= children
        return found

    def regenerate_host_key(self) -> None:
        """A new host key, which takes effect at the next start; `known_hosts` keeps the old one."""
        make_key(self.host_key, self._host_key_type)

    def trust(self) -> None:
        """Write the present host key to `known_hosts`."""
        self.known_hosts.write_text(f"{self.known_name} {self.host_public_key}\n")

    @property
    def known_name(self) -> str:
        return f"[{self.address}]:{self.port}"

    @property
    def host_public_key(self) -> str:
        return " ".join(self.host_key.with_suffix(".pub").read_text().split()[:2])

    def read_log(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def spec(self, name: str = "gpu1", **changes: Any) -> Spec:
        """The host's entry, all in hosts.yaml."""
        values: dict[str, Any] = {
            "address": self.address, "port": self.port, "user": self.user, "identity_file": self.client_key,
            "known_hosts": self.known_hosts, "ssh_config": Path("/dev/null"),
        }  # fmt: skip
        return Spec(name=name, **{**values, **changes})

    def ssh_config_block(self, alias: str, *more: str) -> str:
        """The host's block in an ssh config."""
        lines = [
            f"Host {alias}", f"HostName {self.address}", f"Port {self.port}", f"User {self.user}",
            f"IdentityFile {self.client_key}", f"UserKnownHostsFile {self.known_hosts}",
            "GlobalKnownHostsFile /dev/null", *more,
        ]  # fmt: skip
        return "\n  ".join(lines) + "\n"

    def _write_config(self) -> None:
        # The account's login shell runs the wrapper, which gives the command to the wanted shell in the private home.
        # Without SHLVL bash believes that sshd started it, and reads .bashrc.
        wrapper = self.folder / "login"
        wrapper.write_text(
            f"#!/bin/sh\nexport HOME='{self.home}'\ncd\nunset SHLVL\nexec {self._shell} -c \"$SSH_ORIGINAL_COMMAND\"\n"
        )
        wrapper.chmod(0o755)
        settings: dict[str, str | int | None] = {
            "ListenAddress": self.address, "Port": self.port, "HostKey": str(self.host_key), "PidFile": "none",
            "AuthorizedKeysFile": str(self.folder / "authorized_keys"), "PermitRootLogin": "prohibit-password",
            "PasswordAuthentication": "no", "KbdInteractiveAuthentication": "no", "UsePAM": "no", "UseDNS": "no",
            "StrictModes": "no", "PrintMotd": "no", "MaxStartups": 100, "MaxSessions": 100, "LogLevel": "VERBOSE",
            "Subsystem": "sftp internal-sftp", "SetEnv": f'HOME="{self.folder}/outer_home"', "ForceCommand": str(wrapper),
        }  # fmt: skip
        settings.update(self._settings)
        text = "".join(f"{key} {value}\n" for key, value in settings.items() if value is not None)
        (self.folder / "sshd_config").write_text(text)


_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def end_with_the_tests() -> None:
    """No server outlives a test process that was killed, or that ended itself after a test's time was over."""
    if hasattr(_LIBC, "prctl"):
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def free_port(address: str = "127.0.0.1") -> int:
    """A TCP port that was free a moment ago."""
    family, kind, _, _, name = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as probe:
        probe.bind(name)
        port: int = probe.getsockname()[1]
        return port


def make_key(path: Path, kind: str = "ed25519", passphrase: str = "", comment: str = "test") -> None:
    """A fresh key pair at `path` and `path.pub`."""
    for old in (path, path.with_name(path.name + ".pub")):
        old.unlink(missing_ok=True)
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, *(["-b", "2048"] if kind == "rsa" else []), "-N", passphrase, "-C", comment, "-f", str(path)],
        check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip


def with_no_error(function: Any, *arguments: Any) -> None:
    """Call; a process that is already gone is no error."""
    try:
        function(*arguments)
    except ProcessLookupError:
        pass
