"""Values of real ssh config files, as the ssh client fills them in; over both transports, where both have to follow."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.errors import HostRefused, HostUnreachable
from orchestrator.transport.open import Connections
from orchestrator.transport.openings import Dropped
from tests.support.sshd import Spec, Sshd, make_key
from tests.support.waiting import wait_for

BOUND_S = 60
Make = Callable[..., Sshd]
both = pytest.mark.parametrize("transport", ["ssh", "openssh"])


def works(connections: Connections, config: Path, transport: str = "ssh") -> bool:
    host = Spec("gpu1", address="gpu1", ssh_config=config, transport=transport)
    return connections.transport(host).run(["echo", "hi"], timeout_s=BOUND_S).stdout == b"hi\n"


def block_without(sshd: Sshd, option: str, *more: str) -> str:
    lines = sshd.ssh_config_block("gpu1").splitlines(keepends=True)
    kept = [line for line in lines if not line.strip().startswith(option)]
    return "".join([*kept, *(f"  {line}\n" for line in more)])


def told_by_ssh(config: Path, tokens: str) -> str:
    """What ssh makes of tokens: it fills in a control path as it does the other options."""
    done = subprocess.run(
        ["ssh", "-F", str(config), "-G", "-o", f"ControlPath={tokens}", "gpu1"],
        capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return next(line.split(" ", 1)[1] for line in done.stdout.splitlines() if line.startswith("controlpath "))


@pytest.mark.parametrize("token", ["C", "h", "i", "k", "L", "l", "n", "p", "r", "u"])
def test_every_token_stands_for_what_ssh_says(
    token: str, sshd: Sshd, connections: Connections, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text(block_without(sshd, "IdentityFile", f"IdentityFile {tmp_path}/key_%{token}"))
    key = tmp_path / f"key_{told_by_ssh(config, '%' + token)}"
    shutil.copy(sshd.client_key, key)
    assert works(connections, config)


def test_tokens_of_known_hosts_files(sshd: Sshd, connections: Connections, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        block_without(
            sshd, "UserKnownHosts", f"UserKnownHostsFile {tmp_path}/known_%k_%n", "HostKeyAlias cluster"
        )
    )
    (tmp_path / "known_cluster_gpu1").write_text(f"cluster {sshd.host_public_key}\n")
    assert works(connections, tmp_path / "config")


@pytest.mark.parametrize("value", ["${FARBENCH_TEST_UNSET}/key", "/tmp/key_%y"])
def test_what_ssh_cannot_fill_in_is_refused_as_ssh_does(
    value: str, sshd: Sshd, connections: Connections, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text(sshd.ssh_config_block("gpu1", f"IdentityFile {value}"))
    assert subprocess.run(["ssh", "-F", str(config), "gpu1", "true"], capture_output=True).returncode != 0
    with pytest.raises(HostRefused) as caught:
        works(connections, config)
    assert caught.value.step == "ssh config"
    assert value.split("/")[-1] in str(caught.value)


@both
def test_tokens_in_the_name_of_a_jump_host(
    transport: str, sshd: Sshd, connections: Connections, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text(
        sshd.ssh_config_block("gpu1", "ProxyJump %r@bastion-%p")
        + sshd.ssh_config_block(f"bastion-{sshd.port}")
    )
    assert works(connections, config, transport)


@both
def test_the_address_to_connect_from(
    transport: str, sshd: Sshd, connections: Connections, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text(sshd.ssh_config_block("gpu1", "BindAddress 127.0.0.5"))
    assert works(connections, config, transport)
    assert f"Accepted publickey for {sshd.user} from 127.0.0.5" in sshd.read_log()
    config.write_text(sshd.ssh_config_block("gpu1", "BindAddress 203.0.113.9"))
    with pytest.raises(HostUnreachable, match=r"203\.0\.113\.9") as caught:
        works(connections, config, transport)
    assert caught.value.step == "connect"


# Certificates that are named


@pytest.fixture
def certified(make_sshd: Make, tmp_path: Path) -> Sshd:
    """A server that knows an authority only; `key` has a certificate of it, in another folder."""
    make_key(tmp_path / "ca")
    make_key(tmp_path / "key")
    sshd = make_sshd(AuthorizedKeysFile="none", TrustedUserCAKeys=str(tmp_path / "ca.pub"), MaxAuthTries=2)
    subprocess.run(
        ["ssh-keygen", "-q", "-s", str(tmp_path / "ca"), "-I", "me", "-n", sshd.user, str(tmp_path / "key.pub")],
        check=True, capture_output=True,
    )  # fmt: skip
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "key-cert.pub").rename(tmp_path / "elsewhere" / "mine.pub")
    return sshd


@both
def test_a_certificate_that_lies_elsewhere(
    transport: str, certified: Sshd, connections: Connections, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    named = f"CertificateFile {tmp_path}/elsewhere/mine.pub"
    config.write_text(block_without(certified, "IdentityFile", f"IdentityFile {tmp_path}/key", named))
    assert works(connections, config, transport)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A real ssh-agent which holds three keys and `key` as the last."""
    path = Path(f"/tmp/fb-agent-{os.getpid()}-{time.monotonic_ns()}")  # socket paths are short
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
    wait_for(lambda: path.exists() or process.poll() is not None, "the agent to listen")
    assert process.poll() is None
    environ = {"SSH_AUTH_SOCK": str(path)}
    for name in ("other0", "other1", "other2"):
        make_key(tmp_path / name)
    yield environ
    process.terminate()
    process.wait()
    path.unlink(missing_ok=True)


def test_a_certificate_for_a_key_that_only_the_agent_has(
    certified: Sshd, agent: dict[str, str], user_environ: dict[str, str], tmp_path: Path
) -> None:
    """The certificate is offered before the agent's other keys, which would use up the tries."""
    names = [str(tmp_path / name) for name in ("other0", "other1", "other2", "key")]
    subprocess.run(["ssh-add", "-q", *names], env={**os.environ, **agent}, check=True)
    (tmp_path / "key").unlink()
    config = tmp_path / "config"
    config.write_text(
        block_without(certified, "IdentityFile", f"CertificateFile {tmp_path}/elsewhere/mine.pub")
    )
    with Connections(environ={**user_environ, **agent}) as connections:
        assert works(connections, config)


def test_a_certificate_without_its_key_is_told(
    certified: Sshd, connections: Connections, tmp_path: Path
) -> None:
    (tmp_path / "key").unlink()
    config = tmp_path / "config"
    config.write_text(certified.ssh_config_block("gpu1", f"CertificateFile {tmp_path}/elsewhere/mine.pub"))
    with pytest.raises(HostRefused, match=r"mine\.pub: neither the agent nor an identity file holds the key"):
        works(connections, config)


# Host certificates


@pytest.fixture
def host_certified(make_sshd: Make, tmp_path: Path) -> Sshd:
    """A server with a certificate by `host_ca` for 127.0.0.1."""
    sshd = make_sshd(HostCertificate=None)
    make_key(tmp_path / "host_ca")
    subprocess.run(
        ["ssh-keygen", "-q", "-s", str(tmp_path / "host_ca"), "-I", "h", "-h", "-n", "127.0.0.1", f"{sshd.host_key}.pub"],
        check=True, capture_output=True,
    )  # fmt: skip
    sshd._settings = {**sshd._settings, "HostCertificate": f"{sshd.host_key}-cert.pub"}
    sshd.restart()
    return sshd


@both
def test_an_authority_for_a_whole_domain_counts_on_every_port(
    transport: str, host_certified: Sshd, connections: Connections, tmp_path: Path
) -> None:
    authority = (tmp_path / "host_ca.pub").read_text()
    host_certified.known_hosts.write_text(f"@cert-authority 127.0.* {authority}")
    (tmp_path / "config").write_text(host_certified.ssh_config_block("gpu1"))
    assert works(connections, tmp_path / "config", transport)


@both
def test_a_listed_key_counts_where_its_certificate_is_by_somebody_unknown(
    transport: str, host_certified: Sshd, connections: Connections, tmp_path: Path
) -> None:
    make_key(tmp_path / "other_ca")
    host_certified.trust()
    with host_certified.known_hosts.open("a") as file:
        file.write(f"@cert-authority * {(tmp_path / 'other_ca.pub').read_text()}")
    (tmp_path / "config").write_text(host_certified.ssh_config_block("gpu1"))
    assert works(connections, tmp_path / "config", transport)


def test_a_key_that_only_a_command_knows_is_refused_with_the_way_out(
    sshd: Sshd, connections: Connections, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text(
        block_without(
            sshd, "UserKnown", "UserKnownHostsFile none", f"KnownHostsCommand /bin/cat {sshd.known_hosts}"
        )
    )
    with pytest.raises(HostRefused, match=r"KnownHostsCommand.*transport: openssh"):
        works(connections, config)
    assert works(connections, config, "openssh")


# A ProxyCommand that ends, a key that others can read, a port in the address


@both
def test_what_a_proxy_command_said_before_it_ended(
    transport: str, sshd: Sshd, user_environ: dict[str, str], tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text(
        sshd.ssh_config_block("gpu1", 'ProxyCommand sh -c "echo no route to bastion >&2; exit 3"')
    )
    with Connections(environ=user_environ, retry_for_s=0) as connections, pytest.raises(Dropped) as caught:
        works(connections, config, transport)
    assert caught.value.step == "connect"
    assert "the ProxyCommand ended" in str(caught.value)
    assert "no route to bastion" in str(caught.value)


def test_a_proxy_command_that_is_not_there_is_not_tried_again(
    sshd: Sshd, connections: Connections, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text(sshd.ssh_config_block("gpu1", "ProxyCommand /no/such/program %h"))
    with pytest.raises(HostUnreachable, match="exit status 127") as caught:
        works(connections, config)
    assert not isinstance(caught.value, Dropped)


def test_a_key_that_others_can_read_is_not_used(sshd: Sshd, connections: Connections, tmp_path: Path) -> None:
    shutil.copy(sshd.client_key, tmp_path / "key")
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(HostRefused, match=r"mode 644\).*chmod 600"):
        connections.transport(sshd.spec(identity_file=tmp_path / "key")).connect()


def test_a_port_within_the_address_is_told_from_a_name(sshd: Sshd, connections: Connections) -> None:
    with pytest.raises(HostUnreachable, match="`port: …`") as caught:
        connections.transport(sshd.spec(address=f"{socket.gethostname()}:{sshd.port}")).connect()
    assert caught.value.step == "resolve"
