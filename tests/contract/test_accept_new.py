"""New host keys under `StrictHostKeyChecking accept-new`: where ssh would write them, in the form that it would write."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from orchestrator.errors import HostRefused
from orchestrator.transport.config import resolve
from orchestrator.transport.known_hosts import KnownHosts
from orchestrator.transport.open import Connections
from tests.support.sshd import Spec, Sshd

HELLO = ["echo", "hi"]


@pytest.fixture(params=["ssh", "openssh"])
def client(request: pytest.FixtureRequest) -> str:
    """A kind of transport."""
    kind: str = request.param
    return kind


def new_host(sshd: Sshd, client: str, *lines: str, name: str = "gpu1") -> Spec:
    """A host of which no key is known, under `accept-new`. The lines given win over the usual ones."""
    sshd.known_hosts.unlink(missing_ok=True)
    config = sshd.folder / f"config of {name}"
    block = "\n".join(f"  {line}" for line in (*lines, "StrictHostKeyChecking accept-new"))
    config.write_text(f"Host {name}\n{block}\n" + sshd.ssh_config_block(name))
    return Spec(name, address=name, ssh_config=config, transport=client)


def shown(sshd: Sshd) -> str:
    """The host's key, as messages name it."""
    command = ["ssh-keygen", "-lf", str(sshd.host_key) + ".pub"]
    return (
        "ssh-ed25519 " + subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[1]
    )


def test_a_name_is_hashed_where_the_config_says_so(
    client: str, sshd: Sshd, connections: Connections, warnings_heard: list[str], user_environ: dict[str, str]
) -> None:
    spec = new_host(sshd, client, "HashKnownHosts yes")
    assert connections.transport(spec).run(HELLO).stdout == b"hi\n"
    name, key = sshd.known_hosts.read_text().rstrip("\n").split(" ", 1)
    assert name.startswith("|1|")
    assert key == sshd.host_public_key
    assert warnings_heard == [
        f"gpu1: new host key {shown(sshd)} added to {sshd.known_hosts} (StrictHostKeyChecking accept-new)"
    ]
    found = subprocess.run(
        ["ssh-keygen", "-F", sshd.known_name, "-f", str(sshd.known_hosts)], capture_output=True, text=True, check=True
    )  # fmt: skip
    assert key in found.stdout
    sshd.regenerate_host_key()
    sshd.restart()
    with Connections(environ=user_environ) as later, pytest.raises(HostRefused) as caught:
        later.transport(spec).connect()
    assert f"{sshd.known_hosts}:1 says ssh-ed25519" in str(caught.value)


@pytest.mark.parametrize("nowhere", ["/dev/null", "none"])
def test_a_key_that_is_not_kept(
    nowhere: str, client: str, sshd: Sshd, connections: Connections, warnings_heard: list[str], tmp_path: Path
) -> None:
    """No file is named that does not hold it, and nothing is written to everyone's file."""
    everyones = tmp_path / "everyones"
    spec = new_host(sshd, client, f"UserKnownHostsFile {nowhere}", f"GlobalKnownHostsFile {everyones}")
    assert connections.transport(spec).run(HELLO).stdout == b"hi\n"
    assert warnings_heard == [
        f"gpu1: new host key {shown(sshd)} accepted, and not kept: the ssh config names no known_hosts file for it"
    ]
    assert not everyones.exists()
    assert not sshd.known_hosts.exists()


def test_a_file_that_cannot_be_written(
    client: str, sshd: Sshd, connections: Connections, warnings_heard: list[str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    spec = new_host(sshd, client, f"UserKnownHostsFile {tmp_path}/file/known_hosts")
    assert connections.transport(spec).run(HELLO).stdout == b"hi\n"
    assert len(warnings_heard) == 1
    assert warnings_heard[0].startswith(
        f"gpu1: new host key {shown(sshd)} accepted this time, but not added to {tmp_path}/file/known_hosts: "
    )


def test_a_key_that_is_not_kept_counts_until_the_end(
    sshd: Sshd, connections: Connections, user_environ: dict[str, str]
) -> None:
    spec = new_host(sshd, "ssh", "UserKnownHostsFile /dev/null")
    target = resolve(spec, environ=user_environ, warn=print)
    known = KnownHosts(target.known_hosts)
    known.add(target.new_keys_file, "gpu1", 22, "ssh-ed25519", b"a key", hashed=True)
    assert known.check("gpu1", 22, b"a key").trust.value == "known"
    assert known.check("gpu1", 22, b"another").trust.value == "changed"
