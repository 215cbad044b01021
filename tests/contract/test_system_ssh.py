"""`transport: openssh`: what the system's ssh is told, what it is kept from, and how its failures are told."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.errors import FileError, HostRefused, HostUnreachable, HostUnusable
from orchestrator.inventory import load_inventory
from orchestrator.launch.dialogue import Dialogue
from orchestrator.transport import channels, openings
from orchestrator.transport.open import Connections
from orchestrator.transport.openssh_process import OpenSshProcess
from tests.support.runs import TREE, item, job, measurements
from tests.support.sshd import Spec, Sshd, free_port, make_key
from tests.support.waiting import BOUND_S, in_threads, wait_for

Make = Callable[..., Sshd]


def spec_of(sshd: Sshd, **changes: object) -> Spec:
    return sshd.spec(**{"transport": "openssh", **changes})


def test_a_transport_that_does_not_exist_is_refused_at_load_with_a_suggestion(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.yaml"
    hosts.write_text(
        "hosts:\n  a: {address: x, transport: opensh}\n  b: {embedded: true, transport: openssh}\n"
    )
    with pytest.raises(FileError) as caught:
        load_inventory(hosts)
    assert (
        f"{hosts}:2: host 'a': transport: is `ssh` or `openssh`, not 'opensh' (did you mean 'openssh'?)"
        in str(caught.value)
    )
    assert f"{hosts}:3: host 'b': an embedded host is reached by farbench itself" in str(caught.value)


def test_a_whole_run_over_the_systems_ssh(sshd: Sshd, connections: Connections) -> None:
    spec = spec_of(sshd)
    messages = list(
        Dialogue(connections.transport(spec), spec).launch(job=job("r1"), tree=TREE, queue=[item("c1")])
    )
    assert [record["status"] for record in measurements(messages)] == ["ok"]
    assert sshd.read_log().count("Accepted publickey") == 1


def test_the_socket_lies_in_a_private_folder_that_goes_with_the_connection(
    sshd: Sshd, connections: Connections
) -> None:
    transport = connections.transport(spec_of(sshd))
    transport.connect()
    folder = transport._folder
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "s").is_socket()
    transport.close()
    assert not folder.exists()
    wait_for(lambda: not sshd.connection_pids())
    with pytest.raises(HostUnreachable, match="closed"):
        transport.run(["true"])


def test_a_long_temporary_folder_is_too_long_for_a_socket(
    sshd: Sshd, connections: Connections, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    assert connections.transport(spec_of(sshd)).run(["echo", "hi"]).stdout == b"hi\n"


def test_a_master_whose_controller_was_killed_ends_by_itself(
    sshd: Sshd, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.transport.openssh_master.PERSIST_S", 1)
    transport = connections.transport(spec_of(sshd))
    transport.connect()
    wait_for(lambda: not sshd.connection_pids())
    assert transport.run(["echo", "again"]).stdout == b"again\n"


def test_the_config_cannot_add_forwardings_commands_or_the_agent(
    sshd: Sshd, connections: Connections, tmp_path: Path
) -> None:
    port = free_port()
    config = tmp_path / "config"
    config.write_text(
        sshd.ssh_config_block(
            "gpu1", "ForwardAgent yes", "ForwardX11 yes", "RequestTTY force", "RemoteCommand echo theirs",
            f"LocalForward 127.0.0.1:{port} 127.0.0.1:1", "PermitLocalCommand yes", f"LocalCommand touch {tmp_path}/pwned",
            f"ControlPath {tmp_path}/theirs", "ControlMaster auto", "LogLevel QUIET", "BatchMode no",
        )
    )  # fmt: skip
    spec = Spec("gpu1", address="gpu1", ssh_config=config, transport="openssh")
    done = connections.transport(spec).run(
        ["sh", "-c", "echo ${SSH_AUTH_SOCK:-no agent} ${DISPLAY:-no display}; tty"]
    )
    assert done.stdout == b"no agent no display\nnot a tty\n"
    assert not (tmp_path / "pwned").exists()
    assert not (tmp_path / "theirs").exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_no_kerberos_ticket_is_handed_to_a_host(
    sshd: Sshd, user_environ: dict[str, str], tmp_path: Path
) -> None:
    """Who holds one could go on to other hosts. What `ssh` makes of our command line is asked of `ssh`."""
    real = shutil.which("ssh")
    assert real is not None
    (tmp_path / "bin").mkdir()
    wrapper = tmp_path / "bin" / "ssh"
    wrapper.write_text(
        "#!/bin/sh\n"
        f"case \"$*\" in *ControlPersist*) '{real}' -G \"$@\" > '{tmp_path}/resolved' ;; esac\nexec '{real}' \"$@\"\n"
    )
    wrapper.chmod(0o755)
    config = tmp_path / "config"
    config.write_text(
        sshd.ssh_config_block("gpu1", "GSSAPIAuthentication yes", "GSSAPIDelegateCredentials yes")
    )
    environ = {**user_environ, "PATH": f"{tmp_path}/bin:{user_environ['PATH']}"}
    with Connections(environ=environ) as connections:
        spec = Spec("gpu1", address="gpu1", ssh_config=config, transport="openssh")
        assert connections.transport(spec).run(["echo", "hi"]).stdout == b"hi\n"
    resolved = (tmp_path / "resolved").read_text().splitlines()
    assert "gssapiauthentication yes" in resolved
    assert "gssapidelegatecredentials no" in resolved


# Host keys: the same rules, in the same words


def test_unknown_and_changed_host_keys(sshd: Sshd, connections: Connections) -> None:
    trusted = sshd.known_hosts.read_text()
    sshd.known_hosts.write_text("")
    for kind in ("ssh", "openssh"):
        with pytest.raises(HostRefused) as caught:
            connections.transport(spec_of(sshd, transport=kind)).connect()
        assert caught.value.step == "host key"
        assert "unknown host key ssh-ed25519 SHA256:" in str(caught.value)
    assert sshd.known_hosts.read_text() == ""
    sshd.known_hosts.write_text("# a comment\n" + trusted)
    sshd.regenerate_host_key()
    sshd.restart()
    with Connections(environ=os.environ) as later:
        told = []
        for kind in ("ssh", "openssh"):
            with pytest.raises(HostRefused, match="THE HOST KEY HAS CHANGED") as caught:
                later.transport(spec_of(sshd, transport=kind)).connect()
            told.append(str(caught.value))
    assert told[0] == told[1]
    assert "Accepted publickey" not in sshd.read_log()


def test_a_host_certificate(make_sshd: Make, connections: Connections, tmp_path: Path) -> None:
    make_key(tmp_path / "ca")
    sshd = make_sshd(HostCertificate=str(tmp_path / "sshd1" / "host_key-cert.pub"))
    command = ["ssh-keygen", "-q", "-s", str(tmp_path / "ca"), "-I", "test", "-h", "-n", "127.0.0.1"]
    subprocess.run([*command, str(sshd.host_key) + ".pub"], check=True, capture_output=True)
    sshd.restart()
    authority = " ".join((tmp_path / "ca.pub").read_text().split()[:2])
    sshd.known_hosts.write_text(f"@cert-authority {sshd.known_name} {authority}\n")
    assert connections.transport(spec_of(sshd)).run(["echo", "hi"]).stdout == b"hi\n"


def test_insecure_accept_new_and_no(
    sshd: Sshd, connections: Connections, warnings_heard: list[str], tmp_path: Path
) -> None:
    sshd.known_hosts.unlink()
    assert connections.transport(spec_of(sshd, insecure=True)).run(["echo", "hi"]).stdout == b"hi\n"
    assert "insecure: the host key SHA256:" in warnings_heard[0]
    assert not sshd.known_hosts.exists()
    config = tmp_path / "config"
    config.write_text(sshd.ssh_config_block("gpu1", "StrictHostKeyChecking no"))
    spec = Spec("gpu1", address="gpu1", ssh_config=config, transport="openssh")
    with pytest.raises(HostRefused, match="`StrictHostKeyChecking no` is not followed"):
        connections.transport(spec).connect()
    config.write_text(sshd.ssh_config_block("gpu1", "StrictHostKeyChecking accept-new", "HashKnownHosts yes"))
    assert connections.transport(spec).run(["echo", "hi"]).stdout == b"hi\n"
    assert "added to" in warnings_heard[1]
    assert sshd.known_hosts.read_text().startswith("|1|")


# Logging in


def test_a_wrong_key(sshd: Sshd, connections: Connections, tmp_path: Path) -> None:
    make_key(tmp_path / "wrong")
    with pytest.raises(HostRefused, match="Permission denied") as caught:
        connections.transport(spec_of(sshd, identity_file=tmp_path / "wrong")).connect()
    assert caught.value.step == "authentication"
    with pytest.raises(HostRefused, match=f"{tmp_path}/none: no such key file"):
        connections.transport(spec_of(sshd, identity_file=tmp_path / "none")).connect()


def test_a_passphrase_is_asked_for_through_askpass_only(
    make_sshd: Make, user_environ: dict[str, str], tmp_path: Path
) -> None:
    make_key(tmp_path / "key", passphrase="open sesame")
    sshd = make_sshd(AuthorizedKeysFile=str(tmp_path / "key.pub"))
    spec = spec_of(sshd, identity_file=tmp_path / "key")
    with Connections(environ=user_environ) as connections, pytest.raises(HostRefused) as caught:
        connections.transport(spec).connect()
    assert caught.value.step == "authentication"
    program = tmp_path / "askpass"
    program.write_text(f"#!/bin/sh\necho \"$1\" >> '{tmp_path}/asked'\necho 'open sesame'\n")
    program.chmod(0o700)
    with Connections(environ={**user_environ, "SSH_ASKPASS": str(program)}) as connections:
        transport = connections.transport(spec)
        in_threads([transport.connect] * 4)
        assert transport.run(["echo", "hi"]).stdout == b"hi\n"
    asked = (tmp_path / "asked").read_text().count("passphrase")
    assert 1 <= asked < 4  # ssh may ask twice; four threads do not ask four times


# The way to a host


@pytest.mark.parametrize(
    ("changes", "step", "message"),
    [
        ({"port": 1}, "connect", "Connection refused"),
        ({"address": "no-such-host.invalid"}, "resolve", "Could not resolve hostname"),
    ],
)
def test_failures_name_their_step(
    changes: dict[str, object], step: str, message: str, sshd: Sshd, connections: Connections
) -> None:
    with pytest.raises(HostUnreachable, match=message) as caught:
        connections.transport(spec_of(sshd, **changes)).connect()
    assert caught.value.step == step


def test_no_ssh_client(sshd: Sshd, user_environ: dict[str, str], tmp_path: Path) -> None:
    with (
        Connections(environ={**user_environ, "PATH": str(tmp_path)}) as connections,
        pytest.raises(HostRefused, match="needs the program `ssh`"),
    ):
        connections.transport(spec_of(sshd))


def test_the_key_of_a_jump_host_is_checked_too(
    make_sshd: Make, connections: Connections, tmp_path: Path
) -> None:
    jump, host = make_sshd(), make_sshd()
    jump.known_hosts.write_text("")
    (tmp_path / "config").write_text(
        jump.ssh_config_block("bastion", "StrictHostKeyChecking no")
        + host.ssh_config_block("gpu1", "ProxyJump bastion")
    )
    spec = Spec("gpu1", address="gpu1", ssh_config=tmp_path / "config", insecure=True, transport="openssh")
    with pytest.raises(HostRefused, match=r"jump host bastion: host key: unknown host key"):
        connections.transport(spec).connect()


# Limits and broken links


def test_more_commands_than_a_connection_takes_wait(make_sshd: Make, connections: Connections) -> None:
    sshd = make_sshd(MaxSessions=2)
    transport = connections.transport(spec_of(sshd))
    outputs: list[bytes] = []
    in_threads([lambda: outputs.append(transport.run(["sh", "-c", "sleep 0.1; echo hi"]).stdout)] * 8)
    assert outputs == [b"hi\n"] * 8
    assert sshd.read_log().count("Accepted publickey") == 1


def test_room_that_never_comes(
    make_sshd: Make, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "WAIT_S", 1.0)
    transport = connections.transport(spec_of(make_sshd(MaxSessions=1)))
    process = transport.spawn(["cat"])
    with pytest.raises(HostUnusable, match="MaxSessions"):
        transport.run(["true"])
    process.close_stdin()
    assert process.wait(BOUND_S) == (0, None)


def test_a_port_that_closes_at_once(
    sshd: Sshd, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openings, "RETRY_FOR_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def close_all() -> None:
            with pytest.raises(OSError):  # noqa: PT012
                while True:
                    server.accept()[0].close()

        thread = threading.Thread(target=close_all, daemon=True)
        thread.start()
        with pytest.raises(HostUnreachable, match="before it said who it is") as caught:
            connections.transport(spec_of(sshd, port=server.getsockname()[1])).connect()
    assert caught.value.step == "banner"


@pytest.fixture
def short_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="fb"))
    yield folder
    shutil.rmtree(folder)


def test_a_killed_controller_leaves_nothing_for_long(
    sshd: Sshd, connections: Connections, short_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command's streams close at once; the master goes when nobody uses it; the folder, when another is made."""
    script = tmp_path / "use.py"
    script.write_text(
        "import os, sys, time\nfrom pathlib import Path\nfrom orchestrator.transport import openssh_master\n"
        "openssh_master.PERSIST_S = 4\nfrom orchestrator.transport.open import Connections\n"
        "from tests.support.sshd import Spec\n"
        "connections = Connections(environ=os.environ)\n"
        f"transport = connections.transport(Spec('gpu1', address='127.0.0.1', port={sshd.port}, user={sshd.user!r}, transport='openssh',"
        f" identity_file=Path({str(sshd.client_key)!r}), known_hosts=Path({str(sshd.known_hosts)!r}), ssh_config=Path('/dev/null')))\n"
        "process = transport.spawn(['sh', '-c', 'echo ready; cat'])\nprint(process.readline(), flush=True)\ntime.sleep(600)\n"
    )
    root = str(Path(__file__).resolve().parents[2])
    controller = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root, "TMPDIR": str(short_folder)},
    )
    assert controller.stdout is not None
    with controller.stdout:
        assert controller.stdout.readline() == b"b'ready\\n'\n"
    controller.kill()
    controller.wait()
    wait_for(lambda: not sshd.connection_pids())
    (left,) = short_folder.glob("farbench-ssh-*")
    wait_for(lambda: not (left / "s").exists())
    monkeypatch.setattr("tempfile.tempdir", str(short_folder))
    monkeypatch.setattr("orchestrator.transport.openssh.LEFT_BEHIND_S", -1.0)
    connections.transport(spec_of(sshd)).connect()
    assert not left.exists()


def test_what_a_quick_command_said_is_not_missed(sshd: Sshd, connections: Connections) -> None:
    """Its messages are kept and their file is taken away when it ends, perhaps just before somebody opens that."""
    process = connections.transport(spec_of(sshd)).spawn(["true"])
    assert isinstance(process, OpenSshProcess)
    assert process.wait(BOUND_S) == (0, None)
    wait_for(lambda: process._said is not None)
    said, process._said = process._said, None

    class TakenAway:
        def read_text(self, encoding: str, errors: str) -> str:
            process._said = said
            raise FileNotFoundError

    process._messages = TakenAway()  # type: ignore[assignment]
    assert "master session id" in process._hear()
