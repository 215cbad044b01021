"""A FIDO security key made of software: OpenSSH talks to it through a middleware library, as to one that is plugged in.

The library (`security_key.c`) hands every call to the `SecurityKey` here, which decides whether it is touched.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, utils
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

_FAILED, _PIN_NEEDED = -1, -3
_ECDSA = 0
_PRESENCE, _VERIFIED = 1, 4


class SecurityKey:
    """One token, in reach from `with` on. `touch` is called for each use that needs one: whether somebody touches it."""

    def __init__(self, touch: Callable[[], bool] = lambda: True, pin: str = "") -> None:
        self.touch = touch
        self.pin = pin
        self.asked = 0
        """How many signatures were asked for since it was made; making a key asks for none."""
        self._keys: dict[bytes, ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="fb-sk-", dir="/tmp")  # paths of sockets are short
        self.library = Path(self._folder.name) / "sk.so"
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._callers: list[socket.socket] = []

    def __enter__(self) -> SecurityKey:
        path = f"{self._folder.name}/token"
        source = Path(__file__).with_suffix(".c")
        command = ["cc", "-shared", "-fPIC", "-Wall", "-Werror", f'-DTOKEN="{path}"']
        subprocess.run([*command, "-o", str(self.library), str(source)], check=True)
        self._server.bind(path)
        self._server.listen()
        threading.Thread(target=self._serve, name="security key", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Pull it out: whoever waits for a touch gets an error."""
        for open_one in (self._server, *self._callers):
            with suppress(OSError):  # its other end is gone
                open_one.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._folder.cleanup()

    def make_key(self, path: Path, kind: str = "ed25519-sk", *options: str) -> None:
        """A key pair at `path` and `path.pub`, of which the private half is of no use without the token."""
        flags = [word for option in options for word in ("-O", option)]
        command = ["ssh-keygen", "-q", "-t", kind, "-w", str(self.library), "-N", "", "-C", "test", *flags]
        environ = {**os.environ, "SSH_ASKPASS": "/bin/false", "SSH_ASKPASS_REQUIRE": "force"}
        subprocess.run([*command, "-f", str(path)], check=True, stdin=subprocess.DEVNULL, env=environ)

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                caller, _ = self._server.accept()
                self._callers.append(caller)
                threading.Thread(target=self._answer, args=(caller,), daemon=True).start()

    def _answer(self, caller: socket.socket) -> None:
        with caller, suppress(OSError, EOFError):
            what, kind, flags, application, handle, data, pin = (_field(caller) for _ in range(7))
            try:
                fields = (
                    self._enrolled(kind[0])
                    if what == b"E"
                    else self._signed(flags[0], application, handle, data, pin.decode())
                )
            except _Refused as refused:
                caller.sendall(struct.pack("=i", refused.status))
                return
            caller.sendall(
                struct.pack("=i", 0) + b"".join(struct.pack("=I", len(field)) + field for field in fields)
            )

    def _enrolled(self, kind: int) -> tuple[bytes, bytes, bytes]:
        handle = secrets.token_bytes(16)
        if kind == _ECDSA:
            curve = ec.generate_private_key(ec.SECP256R1())
            self._keys[handle] = curve
            return (
                curve.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint), handle, b"none",
            )  # fmt: skip
        edwards = ed25519.Ed25519PrivateKey.generate()
        self._keys[handle] = edwards
        return edwards.public_key().public_bytes_raw(), handle, b"none"

    def _signed(
        self, flags: int, application: bytes, handle: bytes, data: bytes, pin: str
    ) -> tuple[bytes, bytes, bytes]:
        """The counter and the two halves of a signature."""
        self.asked += 1
        if flags & _VERIFIED and pin != self.pin:
            raise _Refused(_PIN_NEEDED)
        if flags & _PRESENCE and not self.touch():
            raise _Refused(_FAILED)
        hashed = hashlib.sha256(application).digest(), hashlib.sha256(data).digest()
        signed = hashed[0] + struct.pack(">BI", flags, self.asked) + hashed[1]
        counter = struct.pack("=I", self.asked)
        key = self._keys[handle]
        if isinstance(key, ed25519.Ed25519PrivateKey):
            return counter, key.sign(signed), b""
        halves = utils.decode_dss_signature(key.sign(signed, ec.ECDSA(SHA256())))
        first, second = (half.to_bytes(32, "big") for half in halves)
        return counter, first, second


class _Refused(Exception):
    def __init__(self, status: int) -> None:
        self.status = status


def _field(caller: socket.socket) -> bytes:
    (length,) = struct.unpack("=I", _exactly(caller, 4))
    return _exactly(caller, length)


def _exactly(caller: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        if not (more := caller.recv(length - len(data))):
            raise EOFError
        data += more
    return data
