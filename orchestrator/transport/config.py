"""Where a host of hosts.yaml really is: its SSH settings, as `ssh` itself would resolve them.

The ssh client is asked (`ssh -G`), since only it understands every form of `Match`, `Include` and canonical names. Without
an ssh client a small reader takes its place (`ssh_config_file.py`). What hosts.yaml says wins over both.
"""

from __future__ import annotations

import getpass
import os
import pwd
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.errors import HostRefused
from orchestrator.transport.ssh_config_file import read_ssh_config
from orchestrator.transport.target import KEEPALIVE_S, SILENCE_S, HostSpec, Target, Warn
from orchestrator.transport.tokens import Connection, UnknownToken, expand, fill

Settings = Mapping[str, Sequence[str]]
"""Lower-case option → its values in order, as `ssh -G` prints them."""

ASK_SSH_TIMEOUT_S = 20
"""`Match exec` may run programs, and canonical names ask DNS."""
MAX_JUMPS = 8
_DEFAULT_IDENTITIES = (
    "id_rsa",
    "id_ecdsa",
    "id_ecdsa_sk",
    "id_ed25519",
    "id_ed25519_sk",
    "id_xmss",
    "id_dsa",
)
_SAFE_FOR_SHELL = re.compile(r"[A-Za-z0-9._:@%\[\]+~/-]*")


def resolve(spec: HostSpec, *, environ: Mapping[str, str], warn: Warn) -> Target:
    """The SSH settings of a host. Raises `HostRefused` with the ssh client's own message when it refuses the config."""
    return _Resolver(spec, environ, warn).target(
        name=spec.name,
        address=_bare(spec.address or spec.name),
        user=spec.user,
        port=spec.port,
        jumps=spec.proxy_jump,
        depth=0,
    )


class _Resolver:
    def __init__(self, spec: HostSpec, environ: Mapping[str, str], warn: Warn) -> None:
        self._spec = spec
        self._environ = environ
        self._warn = warn
        self._home = Path(environ.get("HOME") or Path.home())

    def target(
        self, *, name: str, address: str, user: str | None, port: int | None, jumps: str | None, depth: int
    ) -> Target:
        if depth > MAX_JUMPS:
            raise self._refusal(f"more than {MAX_JUMPS} jump hosts: do they name each other?")
        settings = self._ask(address, user, port, jumps)
        host = _first(settings, "hostname") or address
        found_user = user or _first(settings, "user") or _login_name(self._environ)
        found_port = port or int(_first(settings, "port") or 22)
        alias = _first(settings, "hostkeyalias")
        tokens = Connection(
            host=host, address=address, port=found_port, user=found_user, key_alias=alias, home=self._home,
            jumps=jumps or _first(settings, "proxyjump") or "", local_user=_login_name(self._environ),
            unique=_first(settings, "controlpath"),
        ).tokens()  # fmt: skip
        identities, named = self._identities(settings, tokens)
        strictness = (_first(settings, "stricthostkeychecking") or "ask").lower()
        is_jump = depth > 0
        keepalive_s, silence_s = _patience(settings)
        jump, command = self._way(settings, jumps, tokens, depth)
        users, everyones = self._known_hosts(settings, tokens)
        return Target(
            name=name,
            host=host,
            port=found_port,
            user=found_user,
            identity_files=identities,
            identities_named=named,
            identities_only=_first(settings, "identitiesonly") in ("yes", "true"),
            certificates=self._files(settings.get("certificatefile", ()), tokens),
            agent_socket=self._agent_socket(settings, tokens),
            known_hosts=(*users, *everyones),
            ssh_command=shlex.join(self._words(address, user, port, jumps)),
            ssh_words=tuple(self._words(address, user, port, None if jump else jumps)),
            key_alias=alias,
            accept_new=strictness == "accept-new",
            new_keys_file=next((file for file in users[:1] if file != Path(os.devnull)), None),
            hash_known_hosts=_first(settings, "hashknownhosts") in ("yes", "true"),
            insecure=self._spec.insecure and not is_jump,
            check_was_off=strictness in ("no", "off", "false"),
            revoked_keys=self._revoked(settings, tokens),
            public_keys=_first(settings, "pubkeyauthentication") not in ("no", "false"),
            smart_card=_smart_card(settings),
            jump=jump,
            proxy_command=command,
            connect_timeout_s=_seconds(_first(settings, "connecttimeout"), 15.0),
            keepalive_s=keepalive_s,
            silence_s=silence_s,
            address_family=_first(settings, "addressfamily") or "any",
            bind_address=_first(settings, "bindaddress"),
            trusted_otherwise=_trusted_otherwise(settings),
        )

    def _ask(self, address: str, user: str | None, port: int | None, jumps: str | None) -> Settings:
        if not address or address.startswith("-") or any(ord(c) <= 32 or ord(c) == 127 for c in address):
            raise self._refusal(f"not a host name: {address!r}")
        config = self._config_file()
        ssh = shutil.which("ssh", path=self._environ.get("PATH"))
        if ssh is None:
            return read_ssh_config(
                [config] if config else [self._home / ".ssh/config", Path("/etc/ssh/ssh_config")],
                address, home=self._home, warn=self._warn,
            )  # fmt: skip
        # A control path that is nothing but %C makes ssh tell what %C stands for: versions differ in that.
        command = [ssh, "-G", "-T", "-o", "ControlPath=%C"]
        command += ["-F", str(config)] if config else []
        command += ["-l", user] if user else []
        command += ["-p", str(port)] if port else []
        command += ["-o", f"ProxyJump={jumps}"] if jumps else []
        try:
            done = subprocess.run(
                [*command, "--", address], stdin=subprocess.DEVNULL, capture_output=True,
                timeout=ASK_SSH_TIMEOUT_S, check=False, env=dict(self._environ),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise self._refusal(f"`ssh -G {address}` did not answer within {ASK_SSH_TIMEOUT_S} s") from None
        except OSError as error:
            raise self._refusal(f"`ssh -G {address}` could not be run: {error}") from error
        if done.returncode != 0:
            said = "\n".join(done.stderr.decode("utf-8", "replace").split("\r\n")).strip()
            said = said or f"exit status {done.returncode}"
            raise self._refusal(f"`ssh -G {address}`: {said}")
        settings: dict[str, list[str]] = {}
        for line in done.stdout.decode("utf-8", "surrogateescape").splitlines():
            key, _, value = line.partition(" ")
            settings.setdefault(key.lower(), []).append(value)
        return settings

    def _config_file(self) -> Path | None:
        """The file to name with -F. The user's own is left to the ssh client, which then reads the system's file too."""
        own = self._home / ".ssh" / "config"
        path = own if self._spec.ssh_config is None else self._own(str(self._spec.ssh_config))
        if path != own:
            return path
        if self._home == Path(pwd.getpwuid(os.getuid()).pw_dir):
            return None
        return (
            own if own.exists() else Path("none")
        )  # HOME is elsewhere: keep the ssh client from the account's file

    def _words(self, address: str, user: str | None, port: int | None, jumps: str | None) -> list[str]:
        """The command of an ssh client that reaches the host in the same way."""
        words = ["ssh"]
        config = self._config_file()
        words += ["-F", str(config)] if config else []
        words += ["-p", str(port)] if port else []
        words += ["-J", jumps] if jumps else []
        if self._spec.identity_file is not None:
            words += ["-i", _literal(self._own(str(self._spec.identity_file)))]
        if self._spec.known_hosts is not None:
            known = self._own(str(self._spec.known_hosts))
            words += ["-o", f"UserKnownHostsFile={_quoted(known)}"]
        return [*words, f"{user}@{address}" if user else address]

    def _identities(self, settings: Settings, tokens: Mapping[str, str]) -> tuple[tuple[Path, ...], bool]:
        if self._spec.identity_file is not None:
            return (self._own(str(self._spec.identity_file)),), True
        values = [value for value in settings.get("identityfile", ()) if value.lower() != "none"]
        usual = [f"~/.ssh/{name}" for name in _DEFAULT_IDENTITIES]
        named = any(value not in usual for value in values)
        return self._files(values or ([] if named else usual), tokens), named

    def _known_hosts(
        self, settings: Settings, tokens: Mapping[str, str]
    ) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
        """The user's files, to the first of which new keys are added; and those of everyone."""
        if self._spec.known_hosts is not None:
            return (self._own(str(self._spec.known_hosts)),), ()
        user = _paths(settings.get("userknownhostsfile", ("~/.ssh/known_hosts ~/.ssh/known_hosts2",)))
        everyone = _paths(
            settings.get("globalknownhostsfile", ("/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2",))
        )
        return self._files(user, tokens), self._files(everyone, tokens)

    def _revoked(self, settings: Settings, tokens: Mapping[str, str]) -> Path | None:
        path = _first(settings, "revokedhostkeys")
        return self._file(path, tokens) if path and path.lower() != "none" else None

    def _agent_socket(self, settings: Settings, tokens: Mapping[str, str]) -> str | None:
        named = _first(settings, "identityagent")
        if named is None or named == "SSH_AUTH_SOCK":
            return self._environ.get("SSH_AUTH_SOCK")
        if named == "none":
            return None
        if re.fullmatch(r"\$\w+", named):
            return self._environ.get(named[1:])
        return str(self._file(named, tokens))

    def _way(
        self, settings: Settings, jumps: str | None, tokens: Mapping[str, str], depth: int
    ) -> tuple[Target | None, str | None]:
        """The last jump host (with its own way before it), or the command that stands in for a connection."""
        chain = jumps or _first(settings, "proxyjump")
        if chain and chain.lower() != "none":
            *before, last = [hop.strip() for hop in chain.split(",")]
            user, address, port = _split_hop(last)
            user, address = self._filled(user, tokens), self._filled(address, tokens) or ""
            return self.target(
                name=f"jump host {address}", address=address, user=user, port=port,
                jumps=",".join(before) or None, depth=depth + 1,
            ), None  # fmt: skip
        command = _first(settings, "proxycommand")
        if chain or command is None or command.lower() == "none":
            return None, None
        return None, self._command(command, tokens)

    def _command(self, command: str, tokens: Mapping[str, str]) -> str:
        """A ProxyCommand with its tokens filled in; a value that a shell could read otherwise is refused."""
        for token in set(re.findall(r"%(.)", command)) - {"%"}:
            if not _SAFE_FOR_SHELL.fullmatch(tokens.get(token, "\0")):
                raise self._refusal(
                    f"ProxyCommand: %{token} is not known, or holds characters that a shell would read"
                )
        return fill(command, tokens)

    def _filled(self, text: str | None, tokens: Mapping[str, str]) -> str | None:
        """A part of a jump host's name. Nothing else than names may come out of it, as it goes on a command line again."""
        try:
            return fill(text, tokens) if text and "%" in text and not _is_zoned(text) else text
        except UnknownToken as error:
            raise self._refusal(f"ProxyJump: {error}") from error

    def _files(self, paths: Sequence[str], tokens: Mapping[str, str]) -> tuple[Path, ...]:
        return tuple(self._file(path, tokens) for path in paths if path.lower() != "none")

    def _file(self, path: str, tokens: Mapping[str, str]) -> Path:
        """A path of the ssh config."""
        try:
            return expand(path, tokens, self._environ, self._home)
        except UnknownToken as error:
            raise self._refusal(str(error)) from error

    def _own(self, path: str) -> Path:
        """A path of hosts.yaml, which has no tokens."""
        path = re.sub(r"\$\{(\w+)\}", lambda match: self._environ.get(match[1], match[0]), path)
        if path == "~" or path.startswith("~/"):
            return self._home / path[2:]
        return Path(path).expanduser()

    def _refusal(self, message: str) -> HostRefused:
        return HostRefused(self._spec.name, message, step="ssh config")


def _bare(address: str) -> str:
    """An IPv6 address without the brackets that people write around it."""
    return address[1:-1] if re.fullmatch(r"\[[^\[\]]*:[^\[\]]*\]", address) else address


def _literal(path: Path) -> str:
    """A path as an option of ssh that takes %-tokens."""
    return str(path).replace("%", "%%")


def _quoted(path: Path) -> str:
    """A path as an option of ssh that takes several, apart by blanks."""
    text = _literal(path)
    return f'"{text}"' if " " in text else text


def _split_hop(hop: str) -> tuple[str | None, str, int | None]:
    """`[user@]host[:port]`, `[user@][v6]:port` or `ssh://…` as three values."""
    hop = hop.removeprefix("ssh://").rstrip("/")
    user, _, rest = hop.rpartition("@")
    match = re.fullmatch(
        r"\[(?P<v6>[^\]]+)\](?::(?P<p6>\d+))?|(?P<host>[^:]+)(?::(?P<port>\d+))?|(?P<bare>.*)", rest
    )
    assert match is not None
    port = match["p6"] or match["port"]
    return user or None, match["v6"] or match["host"] or match["bare"], int(port) if port else None


def _paths(values: Sequence[str]) -> list[str]:
    """Several files in one value: `ssh -G` prints them without quotes, so a blank inside a name is told by what follows."""
    return [
        path.strip('"')
        for value in values
        for path in re.split(r'\s+(?=["/~$%]|none\b)', value.strip())
        if path
    ]


def _is_zoned(text: str) -> bool:
    """An IPv6 address with its zone: no token stands there."""
    return re.fullmatch(r"[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*%[\w.-]+", text) is not None


def _trusted_otherwise(settings: Settings) -> str | None:
    """An option by which ssh may know a host key, and which only ssh follows."""
    if (_first(settings, "knownhostscommand") or "none").lower() != "none":
        return "KnownHostsCommand"
    return "VerifyHostKeyDNS" if _first(settings, "verifyhostkeydns") in ("yes", "true") else None


def _smart_card(settings: Settings) -> str | None:
    provider = _first(settings, "pkcs11provider")
    return None if provider in (None, "none") else provider


def _first(settings: Settings, key: str) -> str | None:
    values = settings.get(key)
    return values[0] if values and values[0] else None


def _patience(settings: Settings) -> tuple[float, float]:
    """How often a quiet host is asked for a sign of life, and after how long without one its link is given up: as the
    ssh config says, but at most `KEEPALIVE_S` and `SILENCE_S`."""
    interval_s = _seconds(_first(settings, "serveraliveinterval"), 0.0)
    if interval_s <= 0:
        return KEEPALIVE_S, SILENCE_S
    most = _seconds(_first(settings, "serveralivecountmax"), 3.0)
    return min(interval_s, KEEPALIVE_S), min(interval_s * max(most, 1.0), SILENCE_S)


def _seconds(value: str | None, default: float) -> float:
    return float(value) if value and value.isdigit() and int(value) > 0 else default


def _login_name(environ: Mapping[str, str]) -> str:
    return environ.get("LOGNAME") or environ.get("USER") or getpass.getuser()
