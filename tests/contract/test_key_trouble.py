"""Keys, certificates and agents that are broken or silent: another key still logs in, and nobody waits for ever."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator.errors import HostRefused
from orchestrator.transport import ssh_agent
from orchestrator.transport.open import Connections
from tests.support.sshd import Sshd, make_key

Agent = Callable[[bytes | None], Path]
HELLO = ["echo", "hi"]


@pytest.fixture
def make_agent(tmp_path: Path) -> Iterator[Agent]:
    """The socket of an agent that answers the first question so; None: it hangs up."""
    opened: list[socket.socket] = []

    def make(answer: bytes | None) -> Path:
        path = tmp_path / f"agent{len(opened)}"
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.bind(str(path))
        server.listen()
        opened.append(server)

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    if answer is None:
                        connection.close()
                        continue
                    opened.append(connection)
                    connection.recv(1000)
                    connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        return path

    yield make
    for one in opened:
        one.close()


def text(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value


ONE_BAD_KEY = text(
    b"\x0c\0\0\0\x01" + text(text(b"ssh-ed25519") + text(b"not 32 bytes")) + text(b"a comment")
)


@pytest.mark.parametrize(
    "answer",
    [None, b"", b"\xff" * 64, text(b"\x0c\0\0\0\x05\0\0\0\x09"), ONE_BAD_KEY],
    ids=["hangs up", "silent", "says too much", "says too little", "a key that is none"],
)
def test_an_agent_that_is_of_no_use(
    answer: bytes | None, make_agent: Agent, sshd: Sshd, user_environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(ssh_agent, "AGENT_TIMEOUT_S", 0.3)
    environ = {**user_environ, "SSH_AUTH_SOCK": str(make_agent(answer))}
    with Connections(environ=environ) as connections:
        assert connections.transport(sshd.spec()).run(HELLO).stdout == b"hi\n"


def test_a_silent_agent_is_named_when_nothing_else_logs_in(
    make_agent: Agent, sshd: Sshd, user_environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(ssh_agent, "AGENT_TIMEOUT_S", 0.3)
    make_key(tmp_path / "wrong")
    path = make_agent(b"")
    environ = {**user_environ, "SSH_AUTH_SOCK": str(path)}
    with Connections(environ=environ) as connections, pytest.raises(HostRefused) as caught:
        connections.transport(sshd.spec(identity_file=tmp_path / "wrong")).connect()
    assert f"the ssh agent at {path} could not be asked: timed out" in str(caught.value)


@pytest.mark.parametrize("content", [b"garbage", b"ssh-ed25519-cert-v01@openssh.com AAAA", b"\xff\xfe", b""])
def test_a_certificate_that_is_none_leaves_its_key_of_use(
    content: bytes, sshd: Sshd, connections: Connections
) -> None:
    Path(f"{sshd.client_key}-cert.pub").write_bytes(content)
    assert connections.transport(sshd.spec()).run(HELLO).stdout == b"hi\n"


def test_a_certificate_that_is_none_is_named_when_its_key_is_refused(
    sshd: Sshd, connections: Connections, tmp_path: Path
) -> None:
    make_key(tmp_path / "wrong")
    (tmp_path / "wrong-cert.pub").write_text("garbage")
    with pytest.raises(HostRefused, match=r"wrong, without wrong-cert\.pub, which cannot be read"):
        connections.transport(sshd.spec(identity_file=tmp_path / "wrong")).connect()
