"""What only a real OpenSSH sshd can show: host keys, keys to log in with, jump hosts, shells, limits, and links that break."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.errors import HostError, HostRefused, HostUnreachable
from orchestrator.transport.known_hosts import fingerprint
from orchestrator.transport.open import Connections
from tests.support.sshd import Spec, Sshd, free_port, make_key

BOUND_S = 60
Make = Callable[..., Sshd]


def print_of(sshd: Sshd) -> str:
    """The fingerprint as ssh-keygen tells it."""
    done = subprocess.run(
        ["ssh-keygen", "-lf", str(sshd.host_key) + ".pub"], capture_output=True, text=True, check=True
    )
    return done.stdout.split()[1]


def works(connections: Connections, spec: Spec) -> bool:
    return connections.transport(spec).run(["echo", "hi"], timeout_s=BOUND_S).stdout == b"hi\n"


# Host keys


def test_an_unknown_host_key_is_refused_and_the_way_out_told(sshd: Sshd, connections: Connections) -> None:
    sshd.known_hosts.write_text("")
    with pytest.raises(HostRefused) as caught:
        connections.transport(sshd.spec()).connect()
    message = str(caught.value)
    assert caught.value.step == "host key"
    assert f"unknown host key ssh-ed25519 {print_of(sshd)}" in message
    assert str(sshd.known_hosts) in message
    assert (
        f"ssh -F /dev/null -p {sshd.port} -i {sshd.client_key} -o UserKnownHostsFile={sshd.known_hosts} {sshd.user}@127.0.0.1"
        in message
    )
    assert sshd.known_hosts.read_text() == ""
    assert "Accepted publickey" not in sshd.read_log()


def test_a_changed_host_key_is_refused_with_both_fingerprints(sshd: Sshd, connections: Connections) -> None:
    assert works(connections, sshd.spec())
    old = print_of(sshd)
    sshd.known_hosts.write_text("# a comment\n" + sshd.known_hosts.read_text())
    sshd.regenerate_host_key()
    sshd.restart()
    with Connections(environ=os.environ) as later, pytest.raises(HostRefused) as caught:
        later.transport(sshd.spec()).connect()
    message = str(caught.value)
    assert "HOST KEY HAS CHANGED" in message
    assert print_of(sshd) in message
    assert f"{sshd.known_hosts}:2 says ssh-ed25519 {old}" in message
    assert f"ssh-keygen -R '[127.0.0.1]:{sshd.port}' -f {sshd.known_hosts}" in message
    assert "Accepted publickey" not in sshd.read_log()


@pytest.mark.parametrize("transport", ["ssh", "openssh"])
def test_the_file_of_revoked_host_keys(
    transport: str, sshd: Sshd, connections: Connections, tmp_path: Path
) -> None:
    revoked = tmp_path / "revoked"
    config = tmp_path / "config"
    config.write_text(sshd.ssh_config_block("gpu1", f"RevokedHostKeys {revoked}"))
    spec = Spec("gpu1", address="gpu1", ssh_config=config, transport=transport)
    for content in (f"# a list\n{sshd.host_public_key} old\n", None):
        if content is None:
            revoked.unlink()
        else:
            revoked.write_text(content)
        with pytest.raises(HostRefused) as caught:
            connections.transport(spec).connect()
        assert caught.value.step == "host key"
        assert str(revoked) in str(caught.value)
    make_key(tmp_path / "other")
    revoked.write_text((tmp_path / "other.pub").read_text())
    assert works(connections, spec)


def test_a_binary_list_of_revoked_keys_is_for_ssh_only(
    sshd: Sshd, connections: Connections, tmp_path: Path
) -> None:
    command = ["ssh-keygen", "-q", "-k", "-f", str(tmp_path / "krl"), str(sshd.host_key) + ".pub"]
    subprocess.run(command, check=True, capture_output=True)
    config = tmp_path / "config"
    config.write_text(sshd.ssh_config_block("gpu1", f"RevokedHostKeys {tmp_path}/krl"))
    for transport, message in (("ssh", "set `transport: openssh`"), ("openssh", "revoked")):
        spec = Spec("gpu1", address="gpu1", ssh_config=config, transport=transport)
        with pytest.raises(HostRefused, match=message):
            connections.transport(spec).connect()


def test_hashed_and_wildcard_entries(sshd: Sshd, connections: Connections) -> None:
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(sshd.known_hosts)], check=True, capture_output=True)
    assert sshd.known_hosts.read_text().startswith("|1|")
    assert works(connections, sshd.spec())
    sshd.known_hosts.write_text(f"!10.*,[127.0.0.*]:{sshd.port} {sshd.host_public_key}\n")
    with Connections(environ=os.environ) as later:
        assert works(later, sshd.spec())


def test_the_key_type_that_is_known_is_asked_for(
    make_sshd: Make, connections: Connections, tmp_path: Path
) -> None:
    """The host has keys of two types and only the less usual one is in known_hosts."""
    make_key(tmp_path / "second", "ecdsa")
    sshd = make_sshd(HostKey=f"{tmp_path}/second\nHostKey {tmp_path}/sshd1/host_key")
    public = " ".join((tmp_path / "second.pub").read_text().split()[:2])
    sshd.known_hosts.write_text(f"{sshd.known_name} {public}\n")
    assert works(connections, sshd.spec())


def test_a_host_certificate_of_a_known_authority(
    make_sshd: Make, connections: Connections, tmp_path: Path
) -> None:
    make_key(tmp_path / "ca")
    sshd = make_sshd(HostCertificate=str(tmp_path / "sshd1" / "host_key-cert.pub"))

    def certify(principal: str, validity: str = "-1h:+1h") -> None:
        command = [
            "ssh-keygen",
            "-q",
            "-s",
            str(tmp_path / "ca"),
            "-I",
            "test",
            "-h",
            "-n",
            principal,
            "-V",
            validity,
        ]
        subprocess.run([*command, str(sshd.host_key) + ".pub"], check=True, capture_output=True)
        sshd.restart()

    authority = " ".join((tmp_path / "ca.pub").read_text().split()[:2])
    sshd.known_hosts.write_text(f"@cert-authority {sshd.known_name} {authority}\n")
    certify("127.0.0.1")
    assert works(connections, sshd.spec())
    certify("elsewhere.example.com")
    with pytest.raises(HostRefused, match=r"is for elsewhere\.example\.com, not for 127\.0\.0\.1"):
        Connections(environ=os.environ).transport(sshd.spec()).connect()
    certify("127.0.0.1", "-2h:-1h")
    with pytest.raises(HostRefused, match="not valid now"):
        Connections(environ=os.environ).transport(sshd.spec()).connect()


def test_insecure_takes_any_key_and_says_so(
    sshd: Sshd, connections: Connections, warnings_heard: list[str]
) -> None:
    sshd.known_hosts.write_text("")
    assert works(connections, sshd.spec(insecure=True))
    assert warnings_heard == [f"gpu1: insecure: the host key {print_of(sshd)} was not checked"]


def test_accept_new_adds_the_key_and_no_is_not_followed(
    sshd: Sshd, connections: Connections, warnings_heard: list[str], tmp_path: Path
) -> None:
    sshd.known_hosts.unlink()
    config = tmp_path / "config"
    config.write_text(sshd.ssh_config_block("gpu1", "StrictHostKeyChecking no"))
    spec = Spec("gpu1", address="gpu1", ssh_config=config)
    with pytest.raises(HostRefused, match="`StrictHostKeyChecking no` is not followed"):
        connections.transport(spec).connect()
    config.write_text(sshd.ssh_config_block("gpu1", "StrictHostKeyChecking accept-new"))
    assert works(connections, spec)
    assert "added to" in warnings_heard[0]
    assert sshd.known_hosts.read_text() == f"{sshd.known_name} {sshd.host_public_key}\n"
    assert sshd.known_hosts.stat().st_mode & 0o777 == 0o600


# Logging in


def test_a_wrong_key_is_refused_by_name(sshd: Sshd, connections: Connections, tmp_path: Path) -> None:
    make_key(tmp_path / "wrong")
    with pytest.raises(HostRefused) as caught:
        connections.transport(sshd.spec(identity_file=tmp_path / "wrong")).connect()
    assert caught.value.step == "authentication"
    assert f"no key was accepted for user {sshd.user} (offered: {tmp_path}/wrong)" in str(caught.value)


def test_a_key_that_is_not_there(sshd: Sshd, connections: Connections, tmp_path: Path) -> None:
    with pytest.raises(HostRefused, match=f"{tmp_path}/none: no such key file"):
        connections.transport(sshd.spec(identity_file=tmp_path / "none")).connect()


def test_a_hardware_key_is_named_with_the_way_out(
    sshd: Sshd, connections: Connections, tmp_path: Path
) -> None:
    def text(*values: bytes) -> bytes:
        return b"".join(len(value).to_bytes(4, "big") + value for value in values)

    public = text(b"sk-ssh-ed25519@openssh.com", b"k" * 32, b"ssh:")
    whole = b"openssh-key-v1\0" + text(b"none", b"none", b"") + b"\0\0\0\x01" + text(public, b"")
    body = base64.b64encode(whole).decode()
    (tmp_path / "id_sk").write_text(
        f"-----BEGIN OPENSSH PRIVATE KEY-----\n{body}\n-----END OPENSSH PRIVATE KEY-----\n"
    )
    with pytest.raises(HostRefused, match="transport: openssh") as caught:
        connections.transport(sshd.spec(identity_file=tmp_path / "id_sk")).connect()
    assert "sk-ssh-ed25519@openssh.com" in str(caught.value)


def test_a_smart_card_is_named_with_the_way_out(sshd: Sshd, connections: Connections, tmp_path: Path) -> None:
    make_key(tmp_path / "wrong")
    lines = ("PKCS11Provider /usr/lib/card.so", f"IdentityFile {tmp_path}/wrong")
    (tmp_path / "config").write_text("Host *\n  " + "\n  ".join(lines) + "\n")
    spec = sshd.spec(ssh_config=tmp_path / "config", identity_file=None)
    with pytest.raises(HostRefused, match=r"PKCS11Provider /usr/lib/card.so .* `transport: openssh`"):
        connections.transport(spec).connect()


def test_a_host_that_takes_no_keys_at_all(make_sshd: Make, connections: Connections) -> None:
    sshd = make_sshd(PubkeyAuthentication="no", PasswordAuthentication="yes")
    with pytest.raises(HostRefused, match="the host takes only password") as caught:
        connections.transport(sshd.spec()).connect()
    assert "passwords are never asked for" in str(caught.value)


@pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
def test_other_kinds_of_keys(kind: str, make_sshd: Make, connections: Connections, tmp_path: Path) -> None:
    make_key(tmp_path / "key", kind)
    sshd = make_sshd(AuthorizedKeysFile=str(tmp_path / "key.pub"), host_key_type=kind)
    assert works(connections, sshd.spec(identity_file=tmp_path / "key"))


def test_an_encrypted_key_asks_once_for_all_hosts(
    make_sshd: Make, user_environ: dict[str, str], tmp_path: Path
) -> None:
    make_key(tmp_path / "key", passphrase="open sesame")
    hosts = [make_sshd(AuthorizedKeysFile=str(tmp_path / "key.pub")) for _ in range(2)]
    asked: list[Path] = []

    def ask(path: Path) -> str:
        asked.append(path)
        return "open sesame" if len(asked) > 1 else "wrong"

    with Connections(environ=user_environ, ask_passphrase=ask) as connections:
        for host in hosts:
            assert works(connections, host.spec(identity_file=tmp_path / "key"))
    assert asked == [tmp_path / "key"] * 2


def test_askpass_is_asked_where_nobody_else_is(
    make_sshd: Make, user_environ: dict[str, str], tmp_path: Path
) -> None:
    make_key(tmp_path / "key", passphrase="open sesame")
    sshd = make_sshd(AuthorizedKeysFile=str(tmp_path / "key.pub"))
    with (
        Connections(environ=user_environ) as connections,
        pytest.raises(HostRefused, match="the key is encrypted; add it to the agent"),
    ):
        connections.transport(sshd.spec(identity_file=tmp_path / "key")).connect()
    program = tmp_path / "askpass"
    program.write_text('#!/bin/sh\ncase $1 in *key*) echo "open sesame";; esac\n')
    program.chmod(0o700)
    with Connections(environ={**user_environ, "SSH_ASKPASS": str(program)}) as connections:
        assert works(connections, sshd.spec(identity_file=tmp_path / "key"))


def test_a_user_certificate_beside_the_key(make_sshd: Make, connections: Connections, tmp_path: Path) -> None:
    make_key(tmp_path / "ca")
    make_key(tmp_path / "key")
    sshd = make_sshd(AuthorizedKeysFile="none", TrustedUserCAKeys=str(tmp_path / "ca.pub"))
    command = [
        "ssh-keygen",
        "-q",
        "-s",
        str(tmp_path / "ca"),
        "-I",
        "me",
        "-n",
        sshd.user,
        str(tmp_path / "key.pub"),
    ]
    subprocess.run(command, check=True, capture_output=True)
    assert works(connections, sshd.spec(identity_file=tmp_path / "key"))


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A real ssh-agent with ten keys, and the environment to reach it."""
    path = Path(f"/tmp/fb-agent-{os.getpid()}-{time.monotonic_ns()}")  # socket paths are short
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + BOUND_S
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    environ = {"SSH_AUTH_SOCK": str(path)}
    for number in range(10):
        make_key(tmp_path / f"agent{number}", comment=f"key {number}")
    keys = [str(tmp_path / f"agent{number}") for number in range(10)]
    subprocess.run(["ssh-add", "-q", *keys], env={**os.environ, **environ}, check=True)
    for key in keys:
        Path(key).unlink()
    yield environ
    process.terminate()
    process.wait()
    path.unlink(missing_ok=True)


def test_the_right_one_of_ten_agent_keys(
    make_sshd: Make, agent: dict[str, str], user_environ: dict[str, str], tmp_path: Path
) -> None:
    sshd = make_sshd(MaxAuthTries=3, AuthorizedKeysFile=str(tmp_path / "agent9.pub"))
    config = tmp_path / "config"
    block = sshd.ssh_config_block("gpu1", "IdentitiesOnly yes").replace(
        str(sshd.client_key), f"{tmp_path}/agent9.pub"
    )
    config.write_text(block)
    with Connections(environ={**user_environ, **agent}) as connections:
        assert works(connections, Spec("by-config", address="gpu1", ssh_config=config))
        assert works(connections, sshd.spec(identity_file=tmp_path / "agent9.pub"))
        config.write_text(block.replace("IdentityFile", "# IdentityFile").replace("IdentitiesOnly yes", ""))
        with pytest.raises(HostRefused) as caught:
            connections.transport(Spec("all", address="gpu1", ssh_config=config)).connect()
    assert "Too many authentication failures" in str(caught.value)
    assert "identity_file" in str(caught.value)
    assert sshd.read_log().count("Accepted publickey") == 2


def test_the_agent_key_is_not_found(
    make_sshd: Make, agent: dict[str, str], user_environ: dict[str, str], tmp_path: Path
) -> None:
    make_key(tmp_path / "other")
    (tmp_path / "other").unlink()
    sshd = make_sshd()
    with (
        Connections(environ={**user_environ, **agent}) as connections,
        pytest.raises(HostRefused, match=r"other\.pub: the agent does not hold this key"),
    ):
        connections.transport(sshd.spec(identity_file=tmp_path / "other.pub")).connect()


# The way to a host


def test_a_port_where_nobody_listens(connections: Connections, sshd: Sshd) -> None:
    port = free_port()
    with pytest.raises(HostUnreachable, match=f"connect: 127.0.0.1 port {port}: Connection refused"):
        connections.transport(sshd.spec(port=port)).connect()


def test_a_name_that_nobody_knows(connections: Connections, sshd: Sshd) -> None:
    with pytest.raises(HostUnreachable, match=r"resolve: no-such-host\.invalid"):
        connections.transport(sshd.spec(address="no-such-host.invalid")).connect()


def test_eight_threads_share_one_failure(connections: Connections, sshd: Sshd, tmp_path: Path) -> None:
    make_key(tmp_path / "wrong")
    transport = connections.transport(sshd.spec(identity_file=tmp_path / "wrong"))
    errors: list[HostError] = []

    def connect() -> None:
        try:
            transport.connect()
        except HostError as error:
            errors.append(error)

    in_threads([connect] * 8)
    assert len(errors) == 8
    assert sshd.read_log().count("Connection from") < 8


def test_includes_and_match_blocks_as_ssh_reads_them(
    sshd: Sshd, connections: Connections, user_environ: dict[str, str], tmp_path: Path
) -> None:
    config = tmp_path / "config"
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "gpu.conf").write_text(sshd.ssh_config_block("gpu1", "CheckHostIP no"))
    config.write_text(
        f"Include {tmp_path}/conf.d/*\nMatch originalhost other\n  ProxyJump WRONG\n"
        "Match final all\n  ConnectTimeout 30\nMatch host=gpu1\n  User nobody-at-all\n"
    )
    assert works(connections, Spec("gpu1", address="gpu1", ssh_config=config))


def test_a_config_that_ssh_refuses(sshd: Sshd, connections: Connections, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Host gpu1\n  Prot 22\n")
    with pytest.raises(HostRefused, match=r"config: line 2: Bad configuration option: prot"):
        connections.transport(Spec("gpu1", address="gpu1", ssh_config=tmp_path / "config"))


def test_what_hosts_yaml_says_wins(sshd: Sshd, connections: Connections, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        "Host gpu1\n  HostName 127.0.0.1\n  Port 1\n  User nobody\n  IdentityFile /none\n  UserKnownHostsFile /none\n  ProxyJump WRONG\n"
    )
    assert works(connections, sshd.spec(address="gpu1", ssh_config=tmp_path / "config", proxy_jump="none"))


def test_a_host_key_alias(sshd: Sshd, connections: Connections, tmp_path: Path) -> None:
    sshd.known_hosts.write_text(f"the-cluster {sshd.host_public_key}\n")
    (tmp_path / "config").write_text(sshd.ssh_config_block("gpu1", "HostKeyAlias the-cluster"))
    assert works(connections, Spec("gpu1", address="gpu1", ssh_config=tmp_path / "config"))


def test_a_jump_host_with_a_wrong_key_is_refused(
    make_sshd: Make, connections: Connections, tmp_path: Path
) -> None:
    jump, host = make_sshd(), make_sshd()
    jump.known_hosts.write_text("")
    (tmp_path / "config").write_text(
        jump.ssh_config_block("bastion") + host.ssh_config_block("gpu1", "ProxyJump bastion")
    )
    spec = Spec("gpu1", address="gpu1", ssh_config=tmp_path / "config", insecure=True)
    with pytest.raises(HostRefused, match=r"jump host bastion: host key: unknown host key"):
        connections.transport(spec).connect()


def test_behind_the_jump_host_nobody_listens(make_sshd: Make, connections: Connections) -> None:
    jump = make_sshd()
    spec = jump.spec(port=free_port(), proxy_jump=f"{jump.user}@127.0.0.1:{jump.port}")
    with pytest.raises(
        HostUnreachable, match=r"gpu1: connect: jump host 127.0.0.1 cannot reach 127.0.0.1 port"
    ):
        connections.transport(spec).connect()


def test_no_jump_for_a_host_that_says_none(sshd: Sshd, connections: Connections, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        sshd.ssh_config_block("gpu1", "ProxyJump none") + "Host *\n  ProxyJump bastion.invalid\n"
    )
    assert works(connections, Spec("gpu1", address="gpu1", ssh_config=tmp_path / "config"))


def test_a_proxy_command(sshd: Sshd, connections: Connections, tmp_path: Path) -> None:
    relay = (
        "import os,socket,sys,threading\n"
        "s=socket.create_connection((sys.argv[1],int(sys.argv[2])))\n"
        "def up():\n"
        "  while d:=os.read(0,65536): s.sendall(d)\n"
        "threading.Thread(target=up,daemon=True).start()\n"
        "while d:=s.recv(65536): os.write(1,d)\n"
    )
    (tmp_path / "relay.py").write_text(relay)
    (tmp_path / "config").write_text(
        sshd.ssh_config_block("gpu1", f"ProxyCommand python3 {tmp_path}/relay.py %h %p")
    )
    assert works(connections, Spec("gpu1", address="gpu1", ssh_config=tmp_path / "config"))


# Limits and broken links


def test_many_hosts_at_once(sshd: Sshd, connections: Connections) -> None:
    """They share keys and known hosts; whatever else the libraries share between connections must not be half-made."""
    transports = [connections.transport(sshd.spec(f"gpu{number}")) for number in range(32)]
    outputs: list[bytes] = []
    in_threads(
        [
            lambda transport=transport: outputs.append(transport.run(["echo", "hi"]).stdout)
            for transport in transports
        ]
    )
    assert outputs == [b"hi\n"] * 32


def test_an_account_without_a_shell(make_sshd: Make, connections: Connections) -> None:
    done = connections.transport(make_sshd(ForceCommand="/bin/false").spec()).run(["echo", "hi"])
    assert (done.exit_status, done.stdout) == (1, b"")


def test_something_that_is_no_ssh_server(
    connections: Connections, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.transport.openings.RETRY_FOR_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer_garbage, args=(server,), daemon=True).start()
        with pytest.raises(HostUnreachable, match="before it said who it is") as caught:
            connections.transport(sshd.spec(port=server.getsockname()[1])).connect()
    assert caught.value.step == "banner"


def answer_garbage(server: socket.socket) -> None:
    try:
        while True:
            connection, _ = server.accept()
            connection.sendall(b"HTTP/1.0 400 \xff\xfe\r\n\r\n")
            connection.close()
    except OSError:
        return


# What a host's shell does


def test_login_scripts_print_and_commands_still_work(sshd: Sshd, connections: Connections) -> None:
    (sshd.home / ".bashrc").write_text("echo '{\"hello\":1}'\nprintf 'Welcome to gpu1'\necho oops >&2\n")
    done = connections.transport(sshd.spec()).run(["echo", "hi"])
    assert done.stdout.endswith(b"hi\n")
    assert b"Welcome" in done.stdout


@pytest.mark.parametrize("shell", ["/bin/sh", "fish", "tcsh", "zsh"])
def test_other_login_shells(shell: str, make_sshd: Make, connections: Connections) -> None:
    argument = 'it\'s "$HOME" !! \\ $(id)\n é'
    done = connections.transport(make_sshd(shell=f"/usr/bin/env {shell}").spec()).run(
        ["printf", "%s", argument]
    )
    assert (done.exit_status, done.stdout.decode()) == (0, argument)


def test_nothing_is_read_from_the_controllers_own_input(sshd: Sshd, tmp_path: Path) -> None:
    """As under nohup, in cron, or in a pipe whose data belongs to somebody else."""
    script = tmp_path / "use.py"
    script.write_text(
        "import os, sys\nfrom pathlib import Path\nfrom orchestrator.transport.open import Connections\n"
        "from tests.support.sshd import Spec\n"
        "connections = Connections(environ=os.environ)\n"
        f"transport = connections.transport(Spec('gpu1', address='127.0.0.1', port={sshd.port}, user={sshd.user!r},"
        f" identity_file=Path({str(sshd.client_key)!r}), known_hosts=Path({str(sshd.known_hosts)!r}), ssh_config=Path('/dev/null')))\n"
        "print(transport.run(['cat']).stdout, transport.run(['echo', 'hi']).stdout)\nconnections.close()\n"
        "print(sys.stdin.read() if sys.stdin else 'closed')\n"
    )
    root = str(Path(__file__).resolve().parents[2])
    import sys

    command = [sys.executable, str(script)]
    piped = subprocess.run(
        command, input=b"mine", capture_output=True, env={**os.environ, "PYTHONPATH": root}, timeout=BOUND_S
    )
    assert piped.stdout == b"b'' b'hi\\n'\nmine\n", piped.stderr
    closed = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" <&-', "sh", *command],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": root},
        timeout=BOUND_S,
    )
    assert closed.stdout == b"b'' b'hi\\n'\nclosed\n", closed.stderr


def test_fingerprints_are_those_of_ssh_keygen(sshd: Sshd) -> None:
    assert fingerprint(base64.b64decode(sshd.host_public_key.split()[1])) == print_of(sshd)


def in_threads(tasks: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=task) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND_S)
        assert not thread.is_alive()
