"""The same over our own client and over the system's `ssh`: jump hosts, lost and silent links, closing, revoked keys."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.errors import HostError, HostRefused, HostUnreachable
from orchestrator.transport.open import Connections
from tests.support.sshd import Spec, Sshd, free_port
from tests.support.waiting import BOUND_S, in_threads

Make = Callable[..., Sshd]


@pytest.fixture(params=["ssh", "openssh"])
def client(request: pytest.FixtureRequest) -> str:
    """A kind of transport."""
    kind: str = request.param
    return kind


def test_a_chain_of_jump_hosts_is_opened_once_for_all_behind_it(
    client: str, make_sshd: Make, connections: Connections, tmp_path: Path
) -> None:
    outer, inner, first, second = (make_sshd(address=f"127.0.0.{n}") for n in (2, 3, 4, 5))
    config = tmp_path / "config"
    config.write_text(
        outer.ssh_config_block("outer")
        + inner.ssh_config_block("inner")
        + first.ssh_config_block("gpu1", "ProxyJump outer,inner")
        + second.ssh_config_block("gpu2", "ProxyJump outer,inner")
    )
    transports = [
        connections.transport(Spec(name, address=name, ssh_config=config, transport=client))
        for name in ("gpu1", "gpu2")
    ]
    in_threads([transport.connect for transport in transports * 4])
    for transport, address in zip(transports, ("127.0.0.4", "127.0.0.5"), strict=True):
        seen = transport.run(["sh", "-c", "echo $SSH_CONNECTION"]).stdout.split()
        assert (seen[0], seen[2]) == (b"127.0.0.1", address.encode())
    logins = [host.read_log().count("Accepted publickey") for host in (outer, inner, first, second)]
    assert logins == [1, 1, 1, 1]


def test_where_nobody_listens_is_told_from_a_link_that_fails_otherwise(
    client: str, make_sshd: Make, sshd: Sshd, connections: Connections, tmp_path: Path
) -> None:
    jump = make_sshd(address="127.0.0.2")
    config = tmp_path / "config"
    behind = f"Host gpu1\n  HostName 127.0.0.1\n  Port {free_port()}\n  ProxyJump jump\n"
    config.write_text(jump.ssh_config_block("jump") + behind)

    def nobody_listens(spec: Spec) -> bool:
        with pytest.raises(HostUnreachable) as caught:
            connections.transport(spec).connect()
        assert caught.value.step in ("resolve", "connect")
        return caught.value.nobody_listens

    for address in ("127.0.0.1", "localhost"):
        assert nobody_listens(sshd.spec(name="refuses", address=address, port=free_port(), transport=client))
    # What merely speaks of it says nothing of the host.
    assert not nobody_listens(
        sshd.spec(name="refused", address="connection-refused.invalid", transport=client)
    )
    assert not nobody_listens(Spec("gpu1", address="gpu1", ssh_config=config, transport=client))


def test_a_revoked_host_key_is_refused(client: str, sshd: Sshd, connections: Connections) -> None:
    trusted = sshd.known_hosts.read_text()
    sshd.known_hosts.write_text(trusted + f"@revoked * {sshd.host_public_key}\n")
    with pytest.raises(HostRefused, match=r"(?i)revoked"):
        connections.transport(sshd.spec(transport=client)).connect()
    assert "Accepted publickey" not in sshd.read_log()


def test_closing_ends_an_attempt_to_connect(client: str, sshd: Sshd, connections: Connections) -> None:
    """The server accepts and says nothing, as one behind a broken firewall."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        transport = connections.transport(sshd.spec(port=server.getsockname()[1], transport=client))
        errors: list[HostError] = []

        def connect() -> None:
            try:
                transport.connect()
            except HostError as error:
                errors.append(error)

        thread = threading.Thread(target=connect)
        thread.start()
        accepted, _ = server.accept()
        accepted.recv(1)
        transport.close()
        thread.join(BOUND_S)
        accepted.close()
    assert not thread.is_alive()
    assert isinstance(errors[0], HostUnreachable)


def test_a_killed_sshd_is_a_lost_link_and_the_next_command_connects_again(
    client: str, sshd: Sshd, connections: Connections
) -> None:
    transport = connections.transport(sshd.spec(transport=client))
    process = transport.spawn(["sh", "-c", "echo ready; cat"])
    assert process.readline(BOUND_S) == b"ready\n"
    sshd.kill_connections()
    with pytest.raises(HostUnreachable, match="the link broke"):
        process.readline(BOUND_S)
    assert process.wait(BOUND_S) == (None, None)
    with pytest.raises(HostUnreachable):
        process.write(b"x" * 10_000_000, BOUND_S)
    assert transport.run(["echo", "again"]).stdout == b"again\n"


def test_a_stopped_host_is_given_up_within_the_bound_of_the_ssh_config(
    client: str, sshd: Sshd, connections: Connections, tmp_path: Path
) -> None:
    """A stopped sshd answers nothing, and its kernel goes on acknowledging: only the missing answers tell."""
    config = tmp_path / "config"
    config.write_text(sshd.ssh_config_block("gpu1", "ServerAliveInterval 1", "ServerAliveCountMax 2"))
    transport = connections.transport(Spec("gpu1", address="gpu1", ssh_config=config, transport=client))
    process = transport.spawn(["cat"])
    process.write(b"line\n")
    assert process.readline(BOUND_S) == b"line\n"
    with pytest.raises(TimeoutError):  # idle, but alive: it answers when it is asked
        process.readline(2.5)
    sshd.kill_connections(signal.SIGSTOP)
    said = "nothing came from the host for 2 s" if client == "ssh" else "not responding"
    try:
        with pytest.raises(HostUnreachable, match=said):
            process.readline(BOUND_S)
        assert process.wait(BOUND_S) == (None, None)
    finally:
        sshd.kill_connections(signal.SIGCONT)


def test_no_key_is_offered_where_the_config_says_so(
    client: str, sshd: Sshd, connections: Connections
) -> None:
    config = sshd.folder / "config"
    config.write_text(sshd.ssh_config_block("gpu1", "PubkeyAuthentication no"))
    with pytest.raises(HostRefused) as caught:
        connections.transport(Spec("gpu1", address="gpu1", ssh_config=config, transport=client)).connect()
    assert caught.value.step == "authentication"
    assert "publickey" not in sshd.read_log()
    assert "the ssh config says PubkeyAuthentication no" in str(caught.value)
