"""OpenSSH's known_hosts files: which host keys belong to a host, and whether the one it showed is among them.

Keys are compared as the bytes that travel, so that nothing depends on which key types a library can parse.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from orchestrator.transport.patterns import matches_pattern

SSH_PORT = 22
_SALT_BYTES = 20


class Trust(Enum):
    """What the known_hosts files say of a host key."""

    KNOWN = "known"
    UNKNOWN = "unknown"
    CHANGED = "changed"
    REVOKED = "revoked"


@dataclass(frozen=True)
class Entry:
    """One line of a known_hosts file; `marker` is "", "@revoked" or "@cert-authority"."""

    path: Path
    line: int
    marker: str
    patterns: tuple[str, ...]
    key_type: str
    blob: bytes

    @property
    def place(self) -> str:
        """`file:line`, for a person."""
        return f"{self.path}:{self.line}"

    def matches(self, name: str) -> bool:
        """Whether the line is about `name` (a host name, or `[name]:port`): patterns, negations and hashes."""
        found = False
        for pattern in self.patterns:
            if pattern.startswith("!"):
                if _matches(name, pattern[1:]):
                    return False
            elif _matches(name, pattern):
                found = True
        return found


@dataclass(frozen=True)
class Finding:
    """The answer for one key: `entries` are the lines it rests on."""

    trust: Trust
    entries: tuple[Entry, ...] = ()


class KnownHosts:
    """The lines of several known_hosts files, read once; a file that does not exist is an empty one."""

    def __init__(self, paths: Sequence[Path], extra: Iterable[Entry] = ()) -> None:
        self.paths = tuple(paths)
        self._entries = [entry for path in self.paths for entry in read_known_hosts(path)]
        self._entries.extend(extra)

    def check(self, host: str, port: int, blob: bytes) -> Finding:
        """What the files say of the key `blob` that `host` showed on `port`.

        As in OpenSSH, a line for the bare name also vouches for a key on another port, but never accuses it.
        """
        revoked = [entry for entry in self._about(host, port, "@revoked") if entry.blob == blob]
        if revoked:
            return Finding(Trust.REVOKED, tuple(revoked))
        plain = self.keys_of(host, port)
        same = [entry for entry in plain if entry.blob == blob]
        if same:
            return Finding(Trust.KNOWN, tuple(same))
        if plain:
            return Finding(Trust.CHANGED, tuple(plain))
        bare = [e for e in self.keys_of(host, SSH_PORT) if e.blob == blob]
        return Finding(Trust.KNOWN, tuple(bare)) if bare else Finding(Trust.UNKNOWN)

    def keys_of(self, host: str, port: int) -> list[Entry]:
        """The plain lines (no marker) about a host."""
        name = host_pattern(host, port)
        return [entry for entry in self._entries if not entry.marker and entry.matches(name)]

    def authorities(self, host: str, port: int) -> list[Entry]:
        """The `@cert-authority` lines about a host."""
        return self._about(host, port, "@cert-authority")

    def _about(self, host: str, port: int, marker: str) -> list[Entry]:
        """The lines with a marker, about the host on this port or on any: they name whole domains, without a port."""
        names = {host_pattern(host, port), host_pattern(host, SSH_PORT)}
        marked = (entry for entry in self._entries if entry.marker == marker)
        return [entry for entry in marked if any(entry.matches(name) for name in names)]

    def is_revoked(self, blob: bytes) -> bool:
        """Whether any line revokes this key (asked of certificate authorities)."""
        return any(entry.marker == "@revoked" and entry.blob == blob for entry in self._entries)

    def add(
        self, path: Path | None, host: str, port: int, key_type: str, blob: bytes, *, hashed: bool = False
    ) -> None:
        """Append a line to `path`, as `StrictHostKeyChecking accept-new` does; without a path the key counts until we end.

        Raises `OSError` where the file cannot be written; the key then counts nevertheless."""
        name = _hashed(host_pattern(host, port)) if hashed else host_pattern(host, port)
        line = 0
        try:
            if path is not None:
                line = _append(path, f"{name} {key_type} {base64.b64encode(blob).decode('ascii')}\n")
        finally:
            self._entries.append(Entry(path or Path(os.devnull), line, "", (name,), key_type, blob))


def _append(path: Path, text: str) -> int:
    """Add a line to a file, made 0600 in a 0700 folder when missing; its number."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    ends_whole = not path.exists() or path.stat().st_size == 0 or path.read_bytes().endswith(b"\n")
    path.touch(mode=0o600)
    with path.open("a", encoding="utf-8") as file:
        file.write(text if ends_whole else "\n" + text)
    return len(path.read_bytes().splitlines())


def host_pattern(host: str, port: int) -> str:
    """How known_hosts names a host: bare on port 22, `[host]:port` elsewhere; lower case."""
    return host.lower() if port == SSH_PORT else f"[{host.lower()}]:{port}"


def _hashed(name: str) -> str:
    """A name that nobody reads out of the file again: `|1|SALT|DIGEST`."""
    salt = secrets.token_bytes(_SALT_BYTES)
    return "|1|" + "|".join(base64.b64encode(part).decode("ascii") for part in (salt, _digest(salt, name)))


def _digest(salt: bytes, name: str) -> bytes:
    return hmac.new(salt, name.encode("utf-8", "surrogateescape"), hashlib.sha1).digest()


def fingerprint(blob: bytes) -> str:
    """`SHA256:…`, as `ssh-keygen -l` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode("ascii").rstrip("=")


def key_type_of(blob: bytes) -> str:
    """The type that a public key's bytes name, such as `ssh-ed25519`; empty for bytes that are no key."""
    length = int.from_bytes(blob[:4], "big")
    name = blob[4 : 4 + length]
    return name.decode("ascii") if 0 < length <= 64 and len(name) == length and name.isascii() else ""


def read_known_hosts(path: Path) -> list[Entry]:
    """The lines of a file that can be understood; others are left out, as OpenSSH does."""
    try:
        lines = path.read_text("utf-8", errors="surrogateescape").splitlines()
    except (FileNotFoundError, NotADirectoryError, PermissionError, IsADirectoryError):
        return []
    parsed = (_parse(path, number, line) for number, line in enumerate(lines, 1))
    return [entry for entry in parsed if entry is not None]


def _parse(path: Path, number: int, line: str) -> Entry | None:
    fields = line.split()
    marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
    if len(fields) < 3 or fields[0].startswith("#") or marker not in ("", "@revoked", "@cert-authority"):
        return None
    try:
        blob = base64.b64decode(fields[2], validate=True)
    except ValueError:
        return None
    return Entry(path, number, marker, tuple(fields[0].split(",")), fields[1], blob)


def _matches(name: str, pattern: str) -> bool:
    if pattern.startswith("|1|"):
        return _matches_hash(name, pattern)
    pattern = pattern.lower()
    return pattern == name or matches_pattern(name, pattern)


def _matches_hash(name: str, pattern: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part) for part in pattern.split("|")[2:4])
    except ValueError:
        return False
    return hmac.compare_digest(_digest(salt, name), digest)
