"""Whatever a server says on the SSH connection itself: one HostError within its time, never a traceback, never a hang."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from paramiko.message import Message

from orchestrator.errors import HostError, HostUnreachable
from orchestrator.transport import openings
from orchestrator.transport.open import Connections
from tests.support.link import SlowLink
from tests.support.odd import OddServer
from tests.support.sshd import Spec, Sshd

FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openings, "RETRY_FOR_S", 0.0)
    for name in ("HANDSHAKE_TIMEOUT_S", "AUTH_TIMEOUT_S"):
        monkeypatch.setattr(f"orchestrator.transport.ssh.{name}", 0.5)
    monkeypatch.setattr("orchestrator.transport.process.OPEN_TIMEOUT_S", 0.5)


@pytest.fixture
def link(sshd: Sshd) -> Iterator[SlowLink]:
    with SlowLink((sshd.address, sshd.port)) as through:
        sshd.known_hosts.write_text(f"[127.0.0.1]:{through.port} {sshd.host_public_key}\n")
        yield through


@pytest.fixture
def quick_config(tmp_path: Path) -> Path:
    path = tmp_path / "quick_config"
    path.write_text("Host *\n  ConnectTimeout 1\n  ServerAliveInterval 1\n  ServerAliveCountMax 1\n")
    return path


def attempt(spec: Spec, environ: dict[str, str]) -> tuple[str, bytes]:
    """`ok` and the output, or the step of the one error that there may be."""
    output = b""
    with Connections(environ=environ) as connections:
        try:
            done = connections.transport(spec).run(["echo", "hi"], timeout_s=5)
        except HostError as error:
            outcome, told = error.step or "?", str(error)
        except TimeoutError:
            outcome, told = "time", ""
        else:
            outcome, told, output = "ok", "", done.stdout
    assert "\x1b" not in told
    return outcome, output


@settings(FEW, max_examples=8)
@given(at=st.integers(0, 3200), flip=st.integers(1, 255), cut=st.booleans())
@example(at=0, flip=1, cut=False)
@example(at=45, flip=255, cut=False)  # in the length of the first packet
@example(at=1000, flip=1, cut=True)
@example(at=1241, flip=33, cut=True)  # the host's key lacks a byte, which both sides would wait for
def test_a_byte_that_arrives_as_another(
    at: int,
    flip: int,
    cut: bool,
    link: SlowLink,
    sshd: Sshd,
    user_environ: dict[str, str],
    quick_config: Path,
) -> None:
    def mutate(offset: int, data: bytes) -> bytes:
        if not offset <= at < offset + len(data):
            return data
        index = at - offset
        return data[:index] + bytes([data[index] ^ flip]) + (b"" if cut else data[index + 1 :])

    link.mutate = mutate
    outcome, output = attempt(sshd.spec(port=link.port, ssh_config=quick_config), user_environ)
    assert output == (b"hi\n" if outcome == "ok" else b"")
    assert outcome in ("ok", "time", "banner", "key exchange", "host key", "authentication", "exec")


def packet(payload: bytes) -> bytes:
    """An SSH packet as it travels before there are keys."""
    padding = 8 - (5 + len(payload)) % 8 + 8
    return (1 + len(payload) + padding).to_bytes(4, "big") + bytes([padding]) + payload + b"\0" * padding


def text(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value


FAREWELL = b"SSH-2.0-x\r\n" + packet(b"\x01\0\0\0\x02" + text(b"\x1b[2J\x07gone fishing") + text(b""))

GREETINGS = st.binary(max_size=300) | st.binary(max_size=300).map(lambda tail: b"SSH-2.0-x\r\n" + tail)


@FEW
@given(said=GREETINGS)
@example(said=b"SSH-1.5-old\r\n")
@example(said=b"SSH-2.0-\x1b[31mred\r\n" + b"\0" * 64)
@example(said=b"SSH-2.0-x\r\n" + b"\xff\xff\xff\xff" + b"a" * 60)
@example(said=b"SSH-2.0-x\r\n" + b"\0\x10\0\1" + b"a" * 60)  # longer than any packet may be
@example(said=b"x" * 300)
@example(said=FAREWELL)
def test_a_server_that_says_anything(
    said: bytes, sshd: Sshd, user_environ: dict[str, str], quick_config: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            try:
                while True:
                    connection, _ = server.accept()
                    connection.sendall(said)
                    connection.shutdown(socket.SHUT_WR)
            except OSError:
                return

        threading.Thread(target=serve, daemon=True).start()
        outcome, _ = attempt(sshd.spec(port=server.getsockname()[1], ssh_config=quick_config), user_environ)
    assert outcome in ("banner", "key exchange", "host key", "authentication")


@pytest.mark.parametrize(
    ("said", "then", "words"),
    [
        (b"", "stays", "connected, but no SSH server answered within 1 s\n  is that the port of an SSH server?"),
        (b"\r\nHTTP/1.1 400 B\x1b\r\n", "stays", "no SSH server answered within 1 s; it said 'HTTP/1.1 400 B?'"),
        (b"Exceeded MaxStartups\r\n", "leaves", "before it said who it is; it said 'Exceeded MaxStartups'\n  too many"),
        (b"Exceeded MaxStartups\r\n", "resets", "the host closed the connection before it said who it is"),
        (b"", "leaves", "the host closed the connection before it said who it is\n  too many connections"),
    ],
)  # fmt: skip
def test_what_is_no_ssh_server_is_told_as_it_was(
    said: bytes, then: str, words: str, sshd: Sshd, user_environ: dict[str, str], quick_config: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, Connections(environ=user_environ) as connections:
        held = []

        def serve() -> None:
            try:
                while True:
                    connection, _ = server.accept()
                    connection.sendall(said)
                    connection.recv(100)  # who closes with bytes unread resets the connection
                    if then == "resets":
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    if then != "stays":
                        connection.close()
                    held.append(connection)
            except OSError:
                return

        threading.Thread(target=serve, daemon=True).start()
        spec = sshd.spec(port=server.getsockname()[1], ssh_config=quick_config)
        with pytest.raises(HostUnreachable) as caught:
            connections.transport(spec).connect()
    assert words in str(caught.value)
    assert len(held) == 1 or then != "stays", "who says nothing will say nothing the next time"


NUMBER = st.sampled_from([0, 0, 0, 1, 1000, 2**32 - 1]).map(lambda n: n.to_bytes(4, "big"))
WORD = st.sampled_from(
    [b"exit-status", b"exit-signal", b"eow@openssh.com", b"session", b"x11", b"auth-agent@openssh.com",
     b"hostkeys-00@openssh.com", b"KILL\x1b[2J", b"hi\n", b"\xff\xfe", b""]
).map(text)  # fmt: skip
MESSAGE = st.tuples(
    st.integers(1, 255).map(lambda number: bytes([number])) | st.integers(80, 100).map(lambda n: bytes([n])),
    st.lists(NUMBER | WORD | st.binary(max_size=3), max_size=6).map(b"".join),
).map(b"".join)
"""A number, and what may or may not be what follows it."""


@FEW
@given(messages=st.lists(MESSAGE, max_size=4))
@example(messages=[b"\x62" + bytes(4) + text(b"exit-status")])  # without the status
@example(messages=[b"\x62" + bytes(4) + text(b"exit-signal") + b"\0" + text(b"\x1b[2J")])
@example(messages=[b"\x5a" + text(b"auth-agent@openssh.com") + bytes(12)])
@example(messages=[b"\x5d" + bytes(4) + b"\xff" * 4])  # room for more than there is in the world
@example(messages=[b"\x5b" + bytes(16)])  # the channel is opened once more
@example(messages=[b"\x01" + bytes(4) + text(b"\x1b[2J") + text(b"")])
def test_a_host_that_sends_anything_in_the_middle_of_a_command(
    messages: list[bytes], sshd: Sshd, user_environ: dict[str, str], quick_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    for name in (
        "HANDSHAKE_TIMEOUT_S",
        "AUTH_TIMEOUT_S",
    ):  # what comes before must succeed, also on a busy machine
        monkeypatch.setattr(f"orchestrator.transport.ssh.{name}", 30.0)

    def end(session: paramiko.Transport) -> bool:
        for message in messages:
            session._send_message(Message(message))  # type: ignore[attr-defined]
        session.close()
        return False

    with OddServer(sshd.host_key, end) as server:
        sshd.known_hosts.write_text(f"[127.0.0.1]:{server.port} {sshd.host_public_key}\n")
        outcome, _ = attempt(sshd.spec(port=server.port, ssh_config=quick_config), user_environ)
    assert outcome in ("exec", "ok")  # it may have said a whole answer by chance
