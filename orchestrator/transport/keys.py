"""The keys that farbench may log in with: from the ssh agent and from files, each loaded once for all hosts."""

from __future__ import annotations

import base64
import binascii
import copy
import io
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import paramiko
from paramiko.agent import AgentKey

from orchestrator.transport.ssh_agent import Agent
from orchestrator.transport.target import Target

AskPassphrase = Callable[[Path], "str | None"]
"""Asked once for each encrypted key file; None: go on without it."""

PASSPHRASE_TRIES = 3
_MAGIC = b"openssh-key-v1\0"
_CLASSES: dict[str, type[paramiko.PKey]] = {
    "ssh-ed25519": paramiko.Ed25519Key,
    "ssh-rsa": paramiko.RSAKey,
    "ecdsa-sha2-nistp256": paramiko.ECDSAKey,
    "ecdsa-sha2-nistp384": paramiko.ECDSAKey,
    "ecdsa-sha2-nistp521": paramiko.ECDSAKey,
}


@dataclass(frozen=True)
class Candidate:
    """A key to try, and where it comes from, in words for a person."""

    key: paramiko.PKey
    origin: str


class KeyStore:
    """Keys by agent socket and by file. All methods may be called from several threads."""

    def __init__(self, ask_passphrase: AskPassphrase | None = None) -> None:
        self._ask = ask_passphrase
        self._lock = threading.RLock()
        self._agents: dict[str, Agent | str] = {}
        self._files: dict[Path, list[Candidate] | str] = {}

    def candidates(self, target: Target, notes: list[str]) -> Iterator[Candidate]:
        """The keys to offer to a host, in order; lazily, so that nobody is asked for a passphrase that isn't needed.

        Certificates that were named come first, with their keys. Then keys that were named (from the agent, if it holds
        them), then the agent's other keys unless `identities_only`, then the usual files. What could not be used is explained in `notes`.
        """
        if not target.public_keys:
            notes.append("the ssh config says PubkeyAuthentication no, so that no key is offered")
            return
        held = self._agent_keys(target.agent_socket, notes)
        by_blob = {candidate.key.asbytes(): candidate for candidate in held}
        wanted = {path: public_blob(path) for path in target.identity_files}
        for certificate in target.certificates:
            yield from self._certified(certificate, by_blob, wanted, notes)
        offered: set[bytes] = set()
        if target.identities_named:
            for path, blob in wanted.items():
                yield from [by_blob[blob]] if blob in by_blob else self._from_file(path, notes)
            offered = {blob for blob in wanted.values() if blob}
        for blob, candidate in by_blob.items():
            if blob not in offered and (blob in wanted.values() or not target.identities_only):
                yield candidate
        if not target.identities_named:
            paths = [path for path, blob in wanted.items() if blob not in by_blob and path.exists()]
            for path in sorted(paths, key=_is_encrypted):
                yield from self._from_file(path, notes)

    def _certified(
        self,
        certificate: Path,
        held: Mapping[bytes, Candidate],
        files: Mapping[Path, bytes | None],
        notes: list[str],
    ) -> list[Candidate]:
        """The key that a certificate is for, with it."""
        certified = public_blob(certificate)
        if certified is None:
            notes.append(f"{certificate}: no certificate that can be read")
            return []
        owners = [candidate for blob, candidate in held.items() if certifies(certified, blob)]
        for path, blob in files.items():
            if not owners and blob is not None and certifies(certified, blob):
                owners = self._from_file(path, notes)[-1:]
        if not owners:
            notes.append(
                f"{certificate}: neither the agent nor an identity file holds the key that it is for"
            )
            return []
        try:
            return [Candidate(_with(owners[0].key, certificate), str(certificate))]
        except (paramiko.SSHException, ValueError, OSError, IndexError) as error:
            notes.append(f"{certificate}: cannot be read: {error}")
            return []

    def hold(self, path: Path, key: paramiko.PKey) -> None:
        """Let `path` stand for a key that exists in memory only."""
        with self._lock:
            self._files[path] = [Candidate(key, str(path))]

    def close(self) -> None:
        """Hang up on the agents."""
        with self._lock:
            for agent in self._agents.values():
                if isinstance(agent, Agent):
                    agent.hang_up()
            self._agents.clear()

    def _agent_keys(self, path: str | None, notes: list[str]) -> list[Candidate]:
        if path is None:
            return []
        with self._lock:
            if path not in self._agents:
                try:
                    self._agents[path] = Agent(path)
                except (OSError, ValueError, paramiko.SSHException) as error:
                    self._agents[path] = f"the ssh agent at {path} could not be asked: {error}"
            agent = self._agents[path]
        if isinstance(agent, str):
            notes.append(agent)
            return []
        return [Candidate(key, f"agent key {key.comment or key.get_name()}") for key in agent.get_keys()]

    def _from_file(self, path: Path, notes: list[str]) -> list[Candidate]:
        private = path.with_suffix("") if path.suffix == ".pub" else path
        with self._lock:
            if private not in self._files:
                self._files[private] = self._load(private, named=path)
            loaded = self._files[private]
        if isinstance(loaded, str):
            notes.append(loaded)
            return []
        return loaded

    def _load(self, path: Path, named: Path) -> list[Candidate] | str:
        try:
            text = path.read_text("utf-8")
            open_to = path.stat()
        except FileNotFoundError:
            return (
                f"{named}: the agent does not hold this key" if named != path else f"{path}: no such key file"
            )
        except (OSError, UnicodeDecodeError) as error:
            return f"{path}: cannot be read: {error}"
        if (kind := _type_of(public_blob(path) or b"")).startswith("sk-"):
            return (
                f"{path}: a key of a hardware token ({kind}), with which only ssh and its agent sign: "
                f"set `transport: openssh`, or add it to the agent (ssh-add {path})"
            )
        if open_to.st_uid == os.getuid() and open_to.st_mode & 0o077:
            return f"{path}: others can read or change this key (mode {open_to.st_mode & 0o777:o}), so that it is not used: chmod 600 {path}"
        encrypted = _is_encrypted(path)
        if encrypted and self._ask is None:
            return f"{path}: the key is encrypted; add it to the agent (ssh-add {path}) or set SSH_ASKPASS"
        problem = ""
        for _ in range(PASSPHRASE_TRIES if encrypted else 1):
            passphrase = self._ask(path) if encrypted and self._ask else None
            if encrypted and passphrase is None:
                return f"{path}: the key is encrypted and no passphrase was given"
            loaded = _parse(path, text, passphrase)
            if not isinstance(loaded, str):
                return loaded
            problem = loaded
        return f"{path}: {problem}"


def _parse(path: Path, text: str, passphrase: str | None) -> list[Candidate] | str:
    """The key of a file, preceded by the same key with its certificate if one lies beside it; or what is wrong."""
    blob = public_blob(path)
    kind = _CLASSES.get(_type_of(blob)) if blob else None
    problem = "not a private key that can be used here"
    for cls in (kind,) if kind else dict.fromkeys(_CLASSES.values()):
        try:
            plain = cls.from_private_key(io.StringIO(text), passphrase)
        except (paramiko.SSHException, ValueError, TypeError, IndexError) as error:
            problem = f"{problem}: {error}" if kind else problem
            continue
        certificate = path.with_name(path.name + "-cert.pub")
        if not certificate.exists():
            return [Candidate(plain, str(path))]
        try:
            certified = _with(plain, certificate)
        except (paramiko.SSHException, ValueError, OSError, IndexError) as error:
            return [Candidate(plain, f"{path}, without {certificate.name}, which cannot be read: {error}")]
        return [Candidate(certified, str(certificate)), Candidate(plain, str(path))]
    return "wrong passphrase, or " + problem if passphrase else problem


def _with(key: paramiko.PKey, certificate: Path) -> paramiko.PKey:
    """The same key, which shows a certificate."""
    certified = AgentKey(key.agent, key.blob, key.comment) if isinstance(key, AgentKey) else copy.copy(key)
    certified.load_certificate(str(certificate))
    return certified


def certifies(certificate: bytes, key: bytes) -> bool:
    """Whether a certificate is for this public key."""
    kind, rest = _string(certificate)
    key_kind, fields = _string(key)
    _, certified = _string(rest)  # after a nonce
    return kind.startswith(key_kind + b"-cert-v") and bool(fields) and certified.startswith(fields)


def public_blob(path: Path) -> bytes | None:
    """The public half of a key file: from a `.pub`, or from a private key in OpenSSH's own format (encrypted or not)."""
    for candidate in (path, path.with_name(path.name + ".pub")):
        try:
            text = candidate.read_text("utf-8", errors="replace")
        except OSError:
            continue
        if (blob := _blob_in(text)) is not None:
            return blob
    return None


def _blob_in(text: str) -> bytes | None:
    if "PRIVATE KEY-----" not in text:
        fields = text.split()
        return _decode(fields[1]) if len(fields) >= 2 else None
    data = _decode("".join(line for line in text.splitlines() if not line.startswith("-----"))) or b""
    if not data.startswith(_MAGIC):
        return None
    rest = data[len(_MAGIC) :]
    for _ in range(3):  # cipher, key derivation, its options
        _, rest = _string(rest)
    return _string(rest[4:])[0] or None  # after the number of keys


def _is_encrypted(path: Path) -> bool:
    try:
        text = path.read_text("utf-8", errors="replace")
    except OSError:
        return False
    data = _decode("".join(line for line in text.splitlines() if not line.startswith("-----"))) or b""
    if data.startswith(_MAGIC):
        return _string(data[len(_MAGIC) :])[0] != b"none"
    return "ENCRYPTED" in text


def _decode(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def _string(data: bytes) -> tuple[bytes, bytes]:
    end = 4 + int.from_bytes(data[:4], "big")
    return data[4:end], data[end:]


def _type_of(blob: bytes) -> str:
    return _string(blob)[0].decode("ascii", "replace")
