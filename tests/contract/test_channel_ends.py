"""What may go wrong when commands of one connection end while others begin: no output is lost unnoticed, nobody else suffers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko
import pytest

from orchestrator.errors import HostUnreachable
from orchestrator.transport.lanes import closes_hastily
from orchestrator.transport.open import Connections
from orchestrator.transport.ssh import SshTransport
from tests.support.dropbear import Dropbear
from tests.support.odd import End, OddServer
from tests.support.sshd import Spec, Sshd

BOUND_S = 60


@pytest.mark.parametrize("transport", ["ssh", "openssh"])
def test_commands_that_end_while_others_begin(
    transport: str, dropbear: Dropbear, connections: Connections
) -> None:
    """Some dropbears close a channel whose command has not come yet when another command ends, and lose the connection."""
    host = connections.transport(dropbear.spec(transport=transport))
    answers: list[bytes] = []

    def ask(name: str) -> None:
        for number in range(5):
            answers.append(host.run(["echo", f"{name}{number}"], timeout_s=BOUND_S).stdout)

    threads = [threading.Thread(target=ask, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND_S)
    assert sorted(answers) == sorted(b"%c%d\n" % (name, number) for name in b"abcd" for number in range(5))
    log = dropbear.log.read_text()
    assert "nknown channel" not in log
    assert "assertion" not in log


@pytest.mark.parametrize(
    ("version", "hasty"),
    [
        ("SSH-2.0-dropbear_2022.83", True),
        ("SSH-2.0-dropbear_2022.82-1", True),
        ("SSH-2.0-dropbear_2024.85", True),
        ("SSH-2.0-dropbear_2020.81", False),
        ("SSH-2.0-dropbear_2024.86", False),
        ("SSH-2.0-dropbear_2025.88", False),
        ("SSH-2.0-dropbear", False),
        ("SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u10", False),
    ],
)
def test_which_servers_get_a_connection_for_each_command(version: str, hasty: bool) -> None:
    assert closes_hastily(version) is hasty


def test_what_is_sent_after_a_channel_closed_does_not_end_the_connection(
    sshd: Sshd, connections: Connections
) -> None:
    """A writer may be overtaken by the thread that answers the host's close; a server takes what follows it for an attack."""
    host = connections.transport(sshd.spec())
    assert isinstance(host, SshTransport)
    process = host.spawn(["true"])
    assert process.wait(BOUND_S) == (0, None)
    process.close()
    late = process._session.send_request(process._channel, "exec", "true")
    connection = host.run(["sh", "-c", "echo $SSH_CONNECTION"]).stdout
    assert late.closed
    assert host.run(["sh", "-c", "echo $SSH_CONNECTION"]).stdout == connection
    assert sshd.read_log().count("Accepted publickey") == 1


@pytest.fixture
def odd_host(sshd: Sshd) -> Iterator[Callable[[End], Spec]]:
    """The entry of a host that ends commands as told."""
    servers: list[OddServer] = []

    def make(end: End) -> Spec:
        server = OddServer(sshd.host_key, end)
        servers.append(server)
        sshd.known_hosts.write_text(f"[127.0.0.1]:{server.port} {sshd.host_public_key}\n")
        return sshd.spec(port=server.port)

    yield make
    for server in servers:
        server.close()


def test_a_command_that_was_closed_without_an_answer(
    odd_host: Callable[[End], Spec], connections: Connections
) -> None:
    def close_first(server: paramiko.Transport) -> bool:
        server.accept(BOUND_S).close()
        return True

    host = connections.transport(odd_host(close_first))
    with pytest.raises(HostUnreachable, match="without a word on whether it ran"):
        host.run(["echo", "hi"], timeout_s=BOUND_S)


def test_output_without_an_end_is_not_taken_for_the_whole(
    odd_host: Callable[[End], Spec], connections: Connections
) -> None:
    def say_half(server: paramiko.Transport) -> bool:
        channel = server.accept(BOUND_S)

        def speak() -> None:
            channel.sendall(b"half of it")
            channel.close()

        threading.Thread(target=speak, daemon=True).start()
        return True

    host = connections.transport(odd_host(say_half))
    with pytest.raises(HostUnreachable, match="did not say how echo hi ended"):
        host.run(["echo", "hi"], timeout_s=BOUND_S)


def test_a_long_command_does_not_keep_others_waiting(
    dropbear: Dropbear, connections: Connections, tmp_path: Path
) -> None:
    host = connections.transport(dropbear.spec())
    long = host.spawn(["sh", "-c", "read go; echo done"])
    assert [host.run(["echo", str(number)]).stdout for number in range(3)] == [b"0\n", b"1\n", b"2\n"]
    long.write(b"go\n")
    assert long.readline(BOUND_S) == b"done\n"
    assert long.wait(BOUND_S) == (0, None)
