"""Is this the host that it says it is? Host keys and host certificates against the known_hosts files."""

from __future__ import annotations

import base64
import shlex
import time
from collections.abc import Callable, Sequence

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    SSHCertificate,
    SSHCertificateType,
)
from cryptography.hazmat.primitives.serialization.ssh import load_ssh_public_identity

from orchestrator.errors import HostRefused
from orchestrator.transport.known_hosts import (
    Entry,
    KnownHosts,
    Trust,
    fingerprint,
    host_pattern,
    key_type_of,
)
from orchestrator.transport.target import Target, Warn

_KRL_MAGIC = b"SSHKRL\n\0"


def check_host_key(
    target: Target, known: KnownHosts, blob: bytes, *, warn: Warn, now: Callable[[], float] = time.time
) -> None:
    """Return if the key (or certificate) that the host showed is trusted. Raises `HostRefused` saying how to mend it."""
    if target.insecure:
        warn(f"{target.name}: insecure: the host key {fingerprint(blob)} was not checked")
        return
    host, port = target.key_host
    revoked = revoked_blobs(target)
    if "-cert-v01@" in key_type_of(blob):
        _check_certificate(target, known, blob, now(), revoked)
        return
    if blob in revoked:
        raise _refusal(target, f"the host key {fingerprint(blob)} is revoked ({target.revoked_keys})", None)
    finding = known.check(host, port, blob)
    shown = f"{key_type_of(blob)} {fingerprint(blob)}"
    match finding.trust:
        case Trust.KNOWN:
            return
        case Trust.REVOKED:
            raise _refusal(target, f"the host key {shown} is revoked ({finding.entries[0].place})", None)
        case Trust.CHANGED:
            raise changed_key(target, finding.entries, shown)
        case Trust.UNKNOWN:
            if not target.accept_new:
                raise unknown_key(target, shown)
            place, problem = target.new_keys_file, None
            try:
                known.add(place, host, port, key_type_of(blob), blob, hashed=target.hash_known_hosts)
            except OSError as error:
                problem = error.strerror
            warn(accepted_key(target, shown, problem))


def accepted_key(target: Target, shown: str, problem: str | None = None) -> str:
    """What is told when a new key was accepted; `problem` is why it could not be added to the file."""
    what = f"{target.name}: new host key {shown}"
    if problem is not None:
        return f"{what} accepted this time, but not added to {target.new_keys_file}: {problem}"
    if target.new_keys_file is None:
        return f"{what} accepted, and not kept: the ssh config names no known_hosts file for it"
    return f"{what} added to {target.new_keys_file} (StrictHostKeyChecking accept-new)"


def unknown_key(target: Target, shown: str) -> HostRefused:
    """The refusal of a key that no file knows; `shown` is its type and fingerprint."""
    files = ", ".join(str(path) for path in target.known_hosts) or "no file"
    hint = f"run `{target.ssh_command}` once, compare the fingerprint with the host's, and accept it"
    if target.check_was_off:
        hint += "\n  (the ssh config's `StrictHostKeyChecking no` is not followed; `insecure: true` in hosts.yaml is)"
    if target.trusted_otherwise:
        hint += (
            f"\n  (the ssh config's `{target.trusted_otherwise}` is followed only with `transport: openssh`)"
        )
    return _refusal(target, f"unknown host key {shown}: nothing about {_pattern(target)} in {files}", hint)


def changed_key(target: Target, entries: Sequence[Entry], shown: str) -> HostRefused:
    """The refusal of a key where the files' `entries` have others."""
    listed = "; ".join(f"{entry.place} says {entry.key_type} {fingerprint(entry.blob)}" for entry in entries)
    removal = shlex.join(["ssh-keygen", "-R", _pattern(target), "-f", str(entries[0].path)])
    return _refusal(
        target,
        f"THE HOST KEY HAS CHANGED: the host shows {shown}, but {listed}",
        f"somebody may be listening in. If the host was set up anew, run `{removal}`, then `{target.ssh_command}`"
        " once and compare the fingerprint",
    )


def revoked_blobs(target: Target) -> frozenset[bytes]:
    """The keys of the file that `RevokedHostKeys` names. Raises `HostRefused` where it cannot be read, as ssh does."""
    if target.revoked_keys is None:
        return frozenset()
    try:
        data = target.revoked_keys.read_bytes()
    except OSError as error:
        raise _refusal(target, f"RevokedHostKeys {target.revoked_keys}: {error.strerror}", None) from error
    if data.startswith(_KRL_MAGIC):
        raise _refusal(
            target,
            f"RevokedHostKeys {target.revoked_keys} is a binary list, which only ssh reads",
            "set `transport: openssh`",
        )
    return frozenset(
        blob
        for line in data.decode("utf-8", "replace").splitlines()
        if (blob := _public_key(line)) is not None
    )


def _public_key(line: str) -> bytes | None:
    fields = line.split()
    if len(fields) < 2 or fields[0].startswith("#"):
        return None
    try:
        return base64.b64decode(fields[1], validate=True)
    except ValueError:
        return None


def _check_certificate(
    target: Target, known: KnownHosts, blob: bytes, now: float, revoked: frozenset[bytes]
) -> None:
    """A host certificate counts when an `@cert-authority` of this host signed it, for this name, at this time."""
    host, port = target.key_host
    line = f"{key_type_of(blob)} ".encode() + base64.b64encode(blob)
    try:
        certificate = load_ssh_public_identity(line)
        assert isinstance(certificate, SSHCertificate)
        certificate.verify_cert_signature()
    except (ValueError, InvalidSignature, UnsupportedAlgorithm) as error:
        raise _refusal(target, f"a host certificate that cannot be checked: {error}", None) from error
    authority = _blob(certificate.signature_key())
    shown = (authority, _blob(certificate.public_key()))
    if any(known.is_revoked(key) or key in revoked for key in shown):
        raise _refusal(
            target, f"the host certificate's authority {fingerprint(authority)} or key is revoked", None
        )
    if authority not in [entry.blob for entry in known.authorities(host, port)]:
        if known.check(host, port, shown[1]).trust is Trust.KNOWN:
            return  # as ssh does: a certificate of somebody unknown takes nothing from a key that is listed
        raise _refusal(
            target, f"the host certificate is signed by an unknown authority {fingerprint(authority)}", None
        )
    if certificate.type is not SSHCertificateType.HOST:
        raise _refusal(target, "the certificate that the host shows is a user's, not a host's", None)
    if not certificate.valid_after <= now < certificate.valid_before:
        raise _refusal(target, "the host certificate is not valid now", "is the clock of this machine right?")
    names = [principal.decode("utf-8", "replace") for principal in certificate.valid_principals]
    if names and host.lower() not in [name.lower() for name in names]:
        raise _refusal(target, f"the host certificate is for {', '.join(names)}, not for {host}", None)
    if certificate.critical_options:
        raise _refusal(target, "the host certificate has critical options that are not understood", None)


def _blob(key: object) -> bytes:
    text: bytes = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)  # type: ignore[attr-defined]
    return base64.b64decode(text.split()[1])


def _pattern(target: Target) -> str:
    return host_pattern(*target.key_host)


def _refusal(target: Target, message: str, hint: str | None) -> HostRefused:
    return HostRefused(target.name, message, step="host key", hint=hint)
