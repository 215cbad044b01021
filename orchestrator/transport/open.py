"""Which transport reaches a host; and what the hosts of a process share: keys, known hosts, jump hosts, the embedded server.

The SSH libraries are imported when the first transport is asked for, not when farbench starts.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import HostUnreachable
from orchestrator.transport.config import resolve
from orchestrator.transport.known_hosts import KnownHosts
from orchestrator.transport.openings import Openings
from orchestrator.transport.target import HostSpec, Target, Warn

if TYPE_CHECKING:
    from orchestrator.transport.embedded import EmbeddedServer
    from orchestrator.transport.keys import KeyStore
    from orchestrator.transport.openssh import OpenSshTransport
    from orchestrator.transport.ssh import SshTransport

    AnyTransport = SshTransport | OpenSshTransport

ASKPASS_TIMEOUT_S = 120
IN_MEMORY = Path("/(embedded)")
"""Stands for the key and the host key of the embedded server where other hosts have files."""


class Connections:
    """Makes transports for hosts, and closes them all. `transport` may be called from several threads."""

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        ask_passphrase: Callable[[Path], str | None] | None = None,
        warn: Warn | None = None,
        quiet: bool = False,
        retry_for_s: float | None = None,
    ) -> None:
        """`ask_passphrase` is asked at most a few times for each encrypted key file; without it SSH_ASKPASS is, if set.

        `quiet`: who has something to ask or to tell waits for `speak`. `retry_for_s`: how long a host that drops
        connections is tried again."""
        self._environ = environ
        self._may_speak = threading.Event()
        self._closed = False
        if not quiet:
            self.speak()
        self._ask = self._held(ask_passphrase or (_askpass(environ) if environ.get("SSH_ASKPASS") else None))
        self._warn = warn or (lambda message: None)
        self._warned: set[str] = set()
        self._lock = threading.RLock()
        self._openings = Openings(retry_for_s=retry_for_s)
        self._transports: list[AnyTransport] = []
        self._jumps: dict[Target, SshTransport] = {}
        self._openssh_jumps: dict[Target, OpenSshTransport] = {}
        self._known_hosts: dict[tuple[Path, ...], KnownHosts] = {}
        self._keys: KeyStore | None = None
        self._embedded: EmbeddedServer | None = None

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def load(self, spec: HostSpec) -> None:
        """Load the libraries that `transport` will need for this entry."""
        if spec.embedded:
            from orchestrator.transport import embedded  # noqa: F401
        if spec.transport == "openssh" and not spec.embedded:
            from orchestrator.transport import openssh  # noqa: F401
        else:
            from orchestrator.transport import keys, ssh  # noqa: F401

    def transport(self, spec: HostSpec) -> AnyTransport:
        """A transport for an entry of hosts.yaml; it connects when it is first used. Raises `HostRefused` for a wrong config."""
        target = self._embedded_target(spec) if spec.embedded else None
        if target is None:
            target = resolve(spec, environ=self._environ, warn=self._warn_once)
        with self._lock:
            if self._closed:
                raise HostUnreachable(spec.name, "the connections were closed", step="connect")
            use_client = spec.transport == "openssh" and not spec.embedded
            transport = self._make_openssh(target) if use_client else self._make(target)
            self._transports.append(transport)
        return transport

    def close(self) -> None:
        """Close every connection, jump hosts last."""
        self._closed = True
        self.speak()  # whoever waits for that must not be waited for
        with self._lock:
            jumps: list[AnyTransport] = [*self._jumps.values(), *self._openssh_jumps.values()]
            transports: list[AnyTransport] = [*self._transports, *reversed(jumps)]
            self._transports, self._jumps, self._openssh_jumps = [], {}, {}
            embedded, self._embedded = self._embedded, None
            keys, self._keys = self._keys, None
        for transport in transports:
            transport.close()
        if embedded is not None:
            embedded.close()
        if keys is not None:
            keys.close()

    def _make(self, target: Target) -> SshTransport:
        from orchestrator.transport.ssh import SshTransport

        return SshTransport(
            target, keys=self._key_store(), known_hosts=self._known, openings=self._openings,
            warn=self._warn_once, jump=self._jump(target.jump) if target.jump else None,
        )  # fmt: skip

    def _jump(self, target: Target) -> SshTransport:
        if target not in self._jumps:
            jump = self._make(target)  # after the jump hosts that it goes through itself
            self._jumps[target] = jump
        return self._jumps[target]

    def _make_openssh(self, target: Target) -> OpenSshTransport:
        from orchestrator.transport.openssh import OpenSshTransport

        jump = None
        if target.jump is not None:
            if target.jump not in self._openssh_jumps:
                self._openssh_jumps[target.jump] = self._make_openssh(target.jump)
            jump = self._openssh_jumps[target.jump]
        return OpenSshTransport(
            target,
            environ=self._environ,
            known_hosts=self._known,
            openings=self._openings,
            warn=self._warn_once,
            jump=jump,
        )

    def _known(self, target: Target) -> KnownHosts:
        with self._lock:
            if target.known_hosts not in self._known_hosts:
                embedded = self._embedded if target.known_hosts == (IN_MEMORY,) else None
                extra = [embedded.known_host] if embedded is not None else []
                self._known_hosts[target.known_hosts] = KnownHosts(target.known_hosts, extra)
            return self._known_hosts[target.known_hosts]

    def _key_store(self) -> KeyStore:
        from orchestrator.transport.keys import KeyStore

        if self._keys is None:
            self._keys = KeyStore(self._ask)
        return self._keys

    def _embedded_target(self, spec: HostSpec) -> Target:
        from orchestrator.transport import embedded

        with self._lock:
            if self._embedded is None:
                self._embedded = embedded.EmbeddedServer(self._environ)
                self._key_store().hold(IN_MEMORY, self._embedded.client_key)
            server = self._embedded
        return Target(
            name=spec.name, host=embedded.ADDRESS, port=server.port, user="farbench", identity_files=(IN_MEMORY,),
            identities_named=True, identities_only=True, agent_socket=None, known_hosts=(IN_MEMORY,),
            ssh_command="(the embedded server)",
        )  # fmt: skip

    def speak(self) -> None:
        """From now on, questions are asked and warnings told."""
        self._may_speak.set()

    def _held(self, ask: Callable[[Path], str | None] | None) -> Callable[[Path], str | None] | None:
        def asked(path: Path) -> str | None:
            return ask(path) if ask is not None and self._spoken_with() else None

        return None if ask is None else asked

    def _spoken_with(self) -> bool:
        """Wait until there is somebody to speak with; False when it came to nothing."""
        self._may_speak.wait()
        return not self._closed

    def _warn_once(self, message: str) -> None:
        if not self._spoken_with():
            return
        with self._lock:
            if message in self._warned:
                return
            self._warned.add(message)
        self._warn(message)


def _askpass(environ: Mapping[str, str]) -> Callable[[Path], str | None]:
    """Ask with the program of SSH_ASKPASS, as `ssh` does without a terminal."""

    def ask(path: Path) -> str | None:
        command = [environ["SSH_ASKPASS"], f"Enter passphrase for key '{path}': "]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=dict(environ),
                timeout=ASKPASS_TIMEOUT_S, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.decode("utf-8", "surrogateescape").rstrip("\r\n") if done.returncode == 0 else None

    return ask
