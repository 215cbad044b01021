"""ssh config files read without an ssh client: what is understood is as in ssh, what is not is left out and told."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from orchestrator.transport.config import resolve
from orchestrator.transport.target import Target
from tests.support.sshd import Spec

CONFIG = """\
# A comment
Host !gpu9 gpu*
  HostName %h.example.com
  User=alice
  Port 2222
  IdentityFile ~/.ssh/first
  UserKnownHostsFile "/known hosts" /etc/also
Host gpu1
  User bob
  IdentityFile "~/.ssh/second"
  IdentitiesOnly yes
  HostKeyAlias cluster
Match all
  ConnectTimeout 7
"""


def target(config: str, address: str, tmp_path: Path, warnings: list[str], *, client: bool) -> Target:
    path = tmp_path / "config"
    path.write_text(config)
    tools = tmp_path / "bin"
    tools.mkdir(exist_ok=True)
    environ = {
        "HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin" if client else str(tools),
        "USER": "me",
        "LOGNAME": "me",
    }
    spec = Spec("host", address=address, ssh_config=path)
    return resolve(spec, environ=environ, warn=warnings.append)


@pytest.mark.parametrize("address", ["gpu1", "gpu2"])
def test_the_reader_agrees_with_ssh(address: str, tmp_path: Path) -> None:
    ours = target(CONFIG, address, tmp_path, [], client=False)
    theirs = target(CONFIG, address, tmp_path, [], client=True)
    assert ours == theirs
    assert (ours.host, ours.user, ours.port) == (f"{address}.example.com", "alice", 2222)
    assert ours.connect_timeout_s == 7
    assert ours.known_hosts[:2] == (Path("/known hosts"), Path("/etc/also"))


def test_a_match_block_that_cannot_be_checked_is_left_out(tmp_path: Path) -> None:
    heard: list[str] = []
    config = "Match localnetwork 9.8.7.6/32\n  ProxyJump WRONG\nMatch final all\n  User wrong\nHost gpu1\n  User right\n"
    found = target(config, "gpu1", tmp_path, heard, client=False)
    assert (found.user, found.jump) == ("right", None)
    assert [warning.split(": ")[0] for warning in heard] == [f"{tmp_path}/config:1", f"{tmp_path}/config:3"]


def test_included_files(tmp_path: Path) -> None:
    (tmp_path / ".ssh" / "conf.d").mkdir(parents=True)
    (tmp_path / ".ssh" / "conf.d" / "gpu").write_text("Host gpu1\n  HostName 127.0.0.1\n  Port 2222\n")
    config = "Include conf.d/*\nHost other\n  Include /nowhere/*\nHost *\n  ProxyJump none\n"
    found = target(config, "gpu1", tmp_path, [], client=False)
    assert (found.host, found.port, found.jump, found.proxy_command) == ("127.0.0.1", 2222, None, None)


@pytest.mark.parametrize("client", [True, False])
def test_a_chain_of_jump_hosts(client: bool, tmp_path: Path) -> None:
    config = "Host gpu1\n  ProxyJump alice@outer:2200,inner\nHost inner\n  HostName 10.0.0.2\n  Port 2300\n"
    found = target(config, "gpu1", tmp_path, [], client=client)
    assert found.jump is not None
    assert found.jump.jump is not None
    assert (found.jump.host, found.jump.port) == ("10.0.0.2", 2300)
    assert (found.jump.jump.host, found.jump.jump.user, found.jump.jump.port) == ("outer", "alice", 2200)


def test_the_usual_keys_are_not_taken_for_named_ones(tmp_path: Path) -> None:
    assert not target("", "gpu1", tmp_path, [], client=True).identities_named
    assert target("IdentityFile ~/mine\n", "gpu1", tmp_path, [], client=True).identities_named


def test_the_ssh_client_is_not_handed_an_option(tmp_path: Path) -> None:
    from orchestrator.errors import HostRefused

    with pytest.raises(HostRefused, match="not a host name"):
        target("", "-oProxyCommand=touch pwned", tmp_path, [], client=True)


def test_a_proxy_command_takes_no_text_that_a_shell_would_read(tmp_path: Path) -> None:
    from orchestrator.errors import HostRefused

    config = "Host evil\n  HostName $(id)\n  ProxyCommand nc %h %p\n"
    with pytest.raises(HostRefused, match=r"%h is not known, or holds characters"):
        target(config, "evil", tmp_path, [], client=False)


def test_ssh_is_the_judge_here() -> None:
    """The comparison above means nothing without an ssh client."""
    assert subprocess.run(["ssh", "-V"], capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("lines", "keepalive_s", "silence_s"),
    [
        ("", 10, 30),
        ("ServerAliveInterval 2", 2, 6),
        ("ServerAliveInterval 1\n  ServerAliveCountMax 5", 1, 5),
        ("ServerAliveInterval 60", 10, 30),
        ("ServerAliveInterval 0", 10, 30),
    ],
)
def test_a_quiet_link_is_given_up_after_what_the_config_says_and_at_most_thirty_seconds(
    lines: str, keepalive_s: float, silence_s: float, tmp_path: Path
) -> None:
    for client in (True, False):
        found = target(f"Host gpu1\n  {lines}\n", "gpu1", tmp_path, [], client=client)
        assert (found.keepalive_s, found.silence_s) == (keepalive_s, silence_s)
