"""Connections: opened so many at a time, each step within its time, over addresses of every kind, on links that are slow and break."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator.errors import HostError, HostUnreachable, HostUnusable
from orchestrator.launch.dialogue import Dialogue
from orchestrator.transport import channels, openings
from orchestrator.transport.open import Connections
from orchestrator.transport.openings import Openings
from tests.support.link import SlowLink
from tests.support.runs import item, job, measurements, run_one
from tests.support.sshd import Spec, Sshd
from tests.support.waiting import BOUND_S, in_threads, wait_for

Make = Callable[..., Sshd]
HELLO = ["echo", "hi"]


# How many at once


@pytest.mark.parametrize("transport", ["ssh", "openssh"])
def test_sixteen_hosts_on_a_server_that_drops_the_third_login(
    transport: str, make_sshd: Make, connections: Connections
) -> None:
    sshd = make_sshd(MaxStartups="2:100:2")
    hosts = [connections.transport(sshd.spec(f"gpu{n}", transport=transport)) for n in range(16)]
    outputs: list[bytes] = []
    in_threads([lambda host=host: outputs.append(host.run(HELLO).stdout) for host in hosts])
    assert outputs == [b"hi\n"] * 16


def test_eight_workers_on_a_connection_of_two_sessions(make_sshd: Make, connections: Connections) -> None:
    sshd = make_sshd(MaxSessions=2)
    transport = connections.transport(sshd.spec())
    outputs: list[bytes] = []
    in_threads([lambda: outputs.append(transport.run(["sh", "-c", "sleep 0.1; echo hi"]).stdout)] * 8)
    assert outputs == [b"hi\n"] * 8
    assert sshd.read_log().count("Accepted publickey") == 1


def test_a_run_on_a_connection_of_one_session(make_sshd: Make, connections: Connections) -> None:
    spec = make_sshd(MaxSessions=1).spec()
    transport = connections.transport(spec)
    assert run_one(transport, spec)["status"] == "ok"
    assert Dialogue(transport, spec).list_files("r1") != []


def test_a_command_that_was_left_alone_counts_until_it_ends(
    make_sshd: Make, connections: Connections, tmp_path: Path
) -> None:
    """The host counts what runs, not what we still listen to."""
    transport = connections.transport(make_sshd(MaxSessions=1).spec())
    process = transport.spawn(
        ["sh", "-c", 'echo on; while ! test -e "$0"; do sleep 0.05; done', str(tmp_path / "go")]
    )
    assert process.readline(BOUND_S) == b"on\n"
    process.close()
    outputs: list[bytes] = []
    waiting = threading.Thread(target=lambda: outputs.append(transport.run(HELLO).stdout))
    waiting.start()
    (tmp_path / "go").touch()
    waiting.join(BOUND_S)
    assert outputs == [b"hi\n"]


def test_room_for_a_command_that_never_comes(
    make_sshd: Make, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "WAIT_S", 0.5)
    transport = connections.transport(make_sshd(MaxSessions=1).spec())
    process = transport.spawn(["cat"])
    with pytest.raises(HostUnusable, match="MaxSessions") as caught:
        transport.run(["true"])
    assert caught.value.step == "exec"
    process.close_stdin()
    assert process.wait(BOUND_S) == (0, None)


def test_a_host_for_forwarding_only_is_told_at_once(make_sshd: Make, connections: Connections) -> None:
    with pytest.raises(HostUnusable, match="refuses another command"):
        connections.transport(make_sshd(MaxSessions=0).spec()).run(HELLO)


def test_turns_come_in_order_and_a_busy_address_holds_up_nobody_else() -> None:
    openings_, closing = Openings(at_once=2), threading.Event()
    order: list[str] = []
    gates = {name: threading.Event() for name in ("a", "b", "c", "d")}

    def opening(name: str) -> None:
        openings_.open(name, name, closing, lambda: (order.append(name), gates[name].wait(BOUND_S)))

    threads = []
    for name in gates:
        threads.append(threading.Thread(target=opening, args=(name,)))
        threads[-1].start()
        wait_for(lambda name=name: name in order or any(address == name for _, address in openings_._waiting))
    assert order == ["a", "b"]
    gates["b"].set()
    wait_for(lambda: len(order) == 3)
    assert order == ["a", "b", "c"]
    for gate in gates.values():
        gate.set()
    for thread in threads:
        thread.join(BOUND_S)
    assert order == ["a", "b", "c", "d"]


def test_closing_ends_the_wait_for_a_turn() -> None:
    openings_, first, second = Openings(at_once=1), threading.Event(), threading.Event()
    blocked = threading.Thread(target=lambda: openings_.open("a", "a", first, lambda: first.wait(BOUND_S)))
    blocked.start()
    wait_for(lambda: openings_._opening["a"] == 1)
    second.set()
    with pytest.raises(HostUnreachable, match="closed"):
        openings_.open("b", "b", second, lambda: None)
    first.set()
    blocked.join(BOUND_S)


# Each step within its time, and by its name


@pytest.fixture
def mute() -> Iterator[Callable[[bytes], int]]:
    """A port that says something and then nothing more."""
    servers: list[socket.socket] = []
    accepted: list[socket.socket] = []

    def listen(greeting: bytes) -> int:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def serve() -> None:
            try:
                while True:
                    connection, _ = server.accept()
                    accepted.append(connection)
                    connection.sendall(greeting)
            except OSError:
                return

        threading.Thread(target=serve, daemon=True).start()
        port: int = server.getsockname()[1]
        return port

    yield listen
    for one in (*servers, *accepted):
        one.close()


def test_a_name_service_that_does_not_answer(
    sshd: Sshd, connections: Connections, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    over = threading.Event()

    def silent(*_: object) -> list[object]:
        over.wait(BOUND_S)
        return []

    monkeypatch.setattr("orchestrator.transport.link.socket.getaddrinfo", silent)
    (tmp_path / "config").write_text("Host *\n  ConnectTimeout 1\n")
    with pytest.raises(HostUnreachable, match="no answer from the name service within 1 s") as caught:
        connections.transport(sshd.spec(address="gpu.example", ssh_config=tmp_path / "config")).connect()
    over.set()
    assert caught.value.step == "resolve"


@pytest.mark.parametrize("transport", ["ssh", "openssh"])
def test_a_host_that_does_not_answer_at_all(
    transport: str, sshd: Sshd, connections: Connections, tmp_path: Path
) -> None:
    """A port whose queue is full: the kernel drops what would open one more connection, as a firewall does."""
    (tmp_path / "config").write_text("Host *\n  ConnectTimeout 1\n")
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for client in (first, second):
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        spec = sshd.spec(port=full.getsockname()[1], transport=transport, ssh_config=tmp_path / "config")
        with pytest.raises(HostUnreachable) as caught:
            connections.transport(spec).connect()
    assert caught.value.step == "connect"


@pytest.mark.parametrize(
    ("greeting", "step"),
    [(b"", "banner"), (b"SSH-2.0-OpenSSH_9.2\r\n", "key exchange")],
    ids=["banner", "key exchange"],
)
@pytest.mark.parametrize("transport", ["ssh", "openssh"])
def test_a_host_that_falls_silent_while_it_connects(
    greeting: bytes, step: str, transport: str, mute: Callable[[bytes], int], sshd: Sshd, connections: Connections,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setattr("orchestrator.transport.ssh.HANDSHAKE_TIMEOUT_S", 1.0)
    monkeypatch.setattr("orchestrator.transport.openssh_master.HANDSHAKE_TIMEOUT_S", 1.0)
    monkeypatch.setattr(openings, "RETRY_FOR_S", 0.0)
    (tmp_path / "config").write_text("Host *\n  ConnectTimeout 1\n")
    spec = sshd.spec(port=mute(greeting), transport=transport, ssh_config=tmp_path / "config")
    with pytest.raises(HostUnreachable) as caught:
        connections.transport(spec).connect()
    assert caught.value.step == step


@pytest.mark.parametrize("transport", ["ssh", "openssh"])
def test_a_host_that_falls_silent_in_the_middle_of_the_key_exchange(
    transport: str, sshd: Sshd, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.transport.ssh.HANDSHAKE_TIMEOUT_S", 0.5)
    monkeypatch.setattr("orchestrator.transport.openssh_master.HANDSHAKE_TIMEOUT_S", 0.5)
    with SlowLink((sshd.address, sshd.port)) as link:
        sshd.known_hosts.write_text(f"[127.0.0.1]:{link.port} {sshd.host_public_key}\n")
        link.stall_after(
            lambda counts: counts.received > 1000
        )  # what the host can do has come, its key has not
        (sshd.folder / "config").write_text("Host *\n  ConnectTimeout 1\n")
        spec = sshd.spec(port=link.port, transport=transport, ssh_config=sshd.folder / "config")
        with pytest.raises(HostUnreachable) as caught:
            connections.transport(spec).connect()
    assert caught.value.step == "key exchange"


@pytest.mark.parametrize(
    ("greeting", "drop", "step"),
    [
        (b"", b"x", "banner"),
        (b"", b"hello\r\n", "banner"),
        (b"SSH-2.0-x\r\n", b"\0\0\0\x0c\x0a\2" + b"\0" * 10, "key exchange"),  # messages to be ignored
    ],
    ids=["a line without end", "lines without end", "messages without end"],
)
def test_a_host_that_talks_without_end_while_it_connects(
    greeting: bytes, drop: bytes, step: str, sshd: Sshd, connections: Connections,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setattr("orchestrator.transport.ssh.HANDSHAKE_TIMEOUT_S", 0.5)
    monkeypatch.setattr(openings, "RETRY_FOR_S", 0.0)
    (tmp_path / "config").write_text("Host *\n  ConnectTimeout 1\n")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):
                connection, _ = server.accept()
                with connection:
                    connection.sendall(greeting)
                    while True:
                        connection.sendall(drop)
                        time.sleep(0.02)

        threading.Thread(target=serve, daemon=True).start()
        spec = sshd.spec(port=server.getsockname()[1], ssh_config=tmp_path / "config")
        with pytest.raises(HostUnreachable) as caught:
            connections.transport(spec).connect()
    assert caught.value.step == step


def test_a_host_that_falls_silent_while_we_log_in(
    sshd: Sshd, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.transport.ssh.AUTH_TIMEOUT_S", 1.0)
    with SlowLink((sshd.address, sshd.port)) as link:
        sshd.known_hosts.write_text(f"[127.0.0.1]:{link.port} {sshd.host_public_key}\n")
        transport = connections.transport(sshd.spec(port=link.port))
        # What follows the key exchange is the login.
        link.stall_after(lambda counts: counts.received > 1500)
        with pytest.raises(HostError) as caught:
            transport.connect()
    assert (caught.value.step, caught.value.state) == ("authentication", "unreachable")


# Addresses


@pytest.mark.parametrize("transport", ["ssh", "openssh"])
@pytest.mark.parametrize("address", ["::1", "[::1]"])
def test_ipv6(transport: str, address: str, make_sshd: Make, connections: Connections) -> None:
    sshd = make_sshd(address="::1", ListenAddress="::1")
    spec = sshd.spec(address=address, transport=transport)
    assert connections.transport(spec).run(HELLO).stdout == b"hi\n"


def test_ipv6_through_a_jump_host(make_sshd: Make, connections: Connections) -> None:
    jump, host = make_sshd(), make_sshd(address="::1", ListenAddress="::1")
    jump.known_hosts.write_text(jump.known_hosts.read_text() + host.known_hosts.read_text())
    spec = host.spec(
        proxy_jump=f"{jump.user}@127.0.0.1:{jump.port}",
        known_hosts=jump.known_hosts,
        identity_file=host.client_key,
    )
    (jump.folder / "authorized_keys").write_text(host.client_key.with_suffix(".pub").read_text())
    assert connections.transport(spec).run(HELLO).stdout == b"hi\n"


@pytest.mark.parametrize("transport", ["ssh", "openssh"])
def test_an_address_with_a_zone(
    transport: str, make_sshd: Make, connections: Connections, sshd: Sshd
) -> None:
    """A link-local address where this machine has one, else one that nobody has: its zone must reach the connection."""
    address = link_local_address()
    if address is None:
        with pytest.raises(HostUnreachable, match="fe80::1") as caught:
            connections.transport(sshd.spec(address="fe80::1%lo", transport=transport)).connect()
        assert caught.value.step == "connect"
        return
    host = make_sshd(address=address, ListenAddress=address)
    assert connections.transport(host.spec(transport=transport)).run(HELLO).stdout == b"hi\n"


def link_local_address() -> str | None:
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except OSError:
        return None
    for digits, _, _, scope, _, interface in map(str.split, lines):
        if scope == "20":
            raw = bytes.fromhex(digits)
            return f"{socket.inet_ntop(socket.AF_INET6, raw)}%{interface}"
    return None


def test_every_address_of_a_name_is_tried(sshd: Sshd, connections: Connections) -> None:
    """`localhost` is ::1 and 127.0.0.1, and the host listens on one of them."""
    sshd.known_hosts.write_text(f"[localhost]:{sshd.port} {sshd.host_public_key}\n")
    assert connections.transport(sshd.spec(address="localhost")).run(HELLO).stdout == b"hi\n"


# Links


@pytest.fixture
def link(sshd: Sshd) -> Iterator[SlowLink]:
    """The way to `sshd`, which trusts it there."""
    with SlowLink((sshd.address, sshd.port)) as slow:
        sshd.known_hosts.write_text(f"[127.0.0.1]:{slow.port} {sshd.host_public_key}\n")
        yield slow


def over(sshd: Sshd, link: SlowLink) -> Spec:
    return sshd.spec(port=link.port)


def test_a_run_over_a_link_of_200_ms_waits_for_it_at_most_14_times(
    sshd: Sshd, link: SlowLink, user_environ: dict[str, str]
) -> None:
    spec = over(sshd, link)
    with Connections(environ=user_environ) as first:
        run_one(first.transport(spec), spec)
    link.one_way_s = 0.1
    link.reset()
    with Connections(environ=user_environ) as second:
        assert run_one(second.transport(spec), spec, run_id="r2")["status"] == "ok"
    assert link.counts.connections == 1
    assert link.counts.flights <= 14


def test_a_link_that_stalls_for_a_while_loses_nothing(
    sshd: Sshd, link: SlowLink, connections: Connections
) -> None:
    spec = over(sshd, link)
    script = {"scripts/bench/bench.py": b"import time\ntime.sleep(0.3)\nprint('{\"time_us\": 5}')\n"}
    cases = [item(f"c{n}") for n in range(4)]
    following = Dialogue(connections.transport(spec), spec).launch(job=job("r1"), tree=script, queue=cases)
    messages = []
    for message in following:
        messages.append(message)
        if len(messages) == 4:
            link.stall()
            threading.Timer(2.0, link.stall, (False,)).start()
    assert {record["case_id"] for record in measurements(messages)} == {"c0", "c1", "c2", "c3"}


def test_a_link_that_breaks_again_and_again_loses_nothing(
    sshd: Sshd, link: SlowLink, connections: Connections
) -> None:
    spec = over(sshd, link)
    dialogue = Dialogue(connections.transport(spec), spec)
    script = {"scripts/bench/bench.py": b"import time\ntime.sleep(0.2)\nprint('{\"time_us\": 5}')\n"}
    dialogue_messages = []
    following = iter(dialogue.launch(job=job("r1"), tree=script, queue=[item(f"c{n}") for n in range(6)]))
    offset, breaks = 0, 0
    deadline = time.monotonic() + BOUND_S
    while time.monotonic() < deadline:
        try:
            for message in following:
                dialogue_messages.append(message)
                offset += len(getattr(message, "data", b""))
                if breaks < 3 and offset > 2000 * (breaks + 1):
                    breaks += 1
                    link.break_connections()
            break
        except HostUnreachable:
            following = iter(dialogue.follow("r1", offset))
    assert breaks == 3
    records = measurements(dialogue_messages)
    assert sorted(record["case_id"] for record in records) == [f"c{n}" for n in range(6)]
