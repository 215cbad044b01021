"""What a connection is opened from: an entry of hosts.yaml, and the SSH settings that it resolves to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Warn = Callable[[str], None]
KEEPALIVE_S = 10.0
SILENCE_S = 30.0
"""A link on which nothing arrives for so long, not even answers to keepalives, is given up."""


class HostSpec(Protocol):
    """What a transport needs to know of an entry of hosts.yaml."""

    @property
    def name(self) -> str:
        """The entry's key."""

    @property
    def address(self) -> str | None:
        """Host name, IP address or alias of the ssh config; the name itself when it is not given."""

    @property
    def user(self) -> str | None:
        """Login name."""

    @property
    def port(self) -> int | None:
        """TCP port."""

    @property
    def identity_file(self) -> Path | str | None:
        """A private key, or the `.pub` of a key that the agent holds."""

    @property
    def known_hosts(self) -> Path | str | None:
        """A known_hosts file to look in instead of the configured ones."""

    @property
    def proxy_jump(self) -> str | None:
        """As `ssh -J`: `[user@]host[:port][,…]`, or `none`."""

    @property
    def ssh_config(self) -> Path | str | None:
        """The ssh config file; the user's own when it is not given."""

    @property
    def transport(self) -> str:
        """The kind of transport: `ssh`, or `openssh` for the system's ssh client."""

    @property
    def insecure(self) -> bool:
        """Whether host keys are not checked."""

    @property
    def embedded(self) -> bool:
        """Whether the host is the SSH server inside the controller."""


@dataclass(frozen=True)
class Target:
    """Everything that opening a connection needs; equal targets share one connection when they are jump hosts."""

    name: str
    host: str
    port: int
    user: str
    identity_files: tuple[Path, ...]
    identities_named: bool
    """Whether hosts.yaml or the ssh config named the identity files (else they are the usual ones)."""
    identities_only: bool
    agent_socket: str | None
    known_hosts: tuple[Path, ...]
    ssh_command: str
    """The command with which a person reaches the host in the same way, for messages."""
    ssh_words: tuple[str, ...] = ()
    """The same without the jump hosts, for transports that go through connections of their own to those."""
    key_alias: str | None = None
    accept_new: bool = False
    new_keys_file: Path | None = None
    """The known_hosts file that a new key is added to under `accept_new`; None: to none."""
    hash_known_hosts: bool = False
    """Whether the host's name is hashed there."""
    insecure: bool = False
    check_was_off: bool = False
    """The ssh config says `StrictHostKeyChecking no`, which is not followed."""
    revoked_keys: Path | None = None
    """A list of keys that are never trusted (`RevokedHostKeys`)."""
    public_keys: bool = True
    """Whether keys may be offered at all (`PubkeyAuthentication`)."""
    smart_card: str | None = None
    """A `PKCS11Provider`, which only the ssh client can use."""
    jump: Target | None = None
    proxy_command: str | None = None
    connect_timeout_s: float = 15.0
    address_family: str = "any"
    bind_address: str | None = None
    """The address of this machine to connect from."""
    certificates: tuple[Path, ...] = ()
    """Certificates that the ssh config names; their keys are in the agent or among the identity files."""
    trusted_otherwise: str | None = None
    """An option of the ssh config by which ssh may know the host's key, and farbench does not."""
    keepalive_s: float = KEEPALIVE_S
    silence_s: float = SILENCE_S

    @property
    def key_host(self) -> tuple[str, int]:
        """The name and port under which known_hosts files list the host; an alias stands without a port."""
        return (self.key_alias, 22) if self.key_alias else (self.host, self.port)

    @property
    def endpoint(self) -> str:
        """What is connected to, as a key: hosts that share it are one SSH server, or one way to it."""
        way = self.jump.endpoint if self.jump is not None else self.proxy_command
        return f"{way} > {self.host}:{self.port}" if way else f"{self.host}:{self.port}"
