"""The ssh_config files that distributions ship: read as ssh reads them, and no host is lost by them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from orchestrator.transport.config import resolve
from orchestrator.transport.open import Connections
from tests.support.sshd import Spec, Sshd

FEDORA = """\
# This is the ssh client system-wide configuration file.
# To modify the system-wide ssh configuration, create a "*.conf" file under "/etc/ssh/ssh_config.d/".
Include {d}/*.conf
"""
FEDORA_D = """\
# The options here are in the "Match final block" to be applied as the last
# options and could be potentially overwritten by the user configuration
Match final all
\t# Follow system-wide Crypto Policy, if defined:
\tInclude {d}/openssh.config

\tGSSAPIAuthentication yes

# If this option is set to yes then remote X11 clients will have full access
# to the original X11 display. As virtually no X11 client supports the untrusted
# mode correctly, we set this to yes.
\tForwardX11Trusted yes
\tSendEnv LANG LC_CTYPE LC_NUMERIC LC_TIME LC_COLLATE LC_MONETARY LC_MESSAGES
\tSendEnv LC_PAPER LC_NAME LC_ADDRESS LC_TELEPHONE LC_MEASUREMENT
\tSendEnv LC_IDENTIFICATION LC_ALL LANGUAGE
\tSendEnv XMODIFIERS
"""
CRYPTO_POLICY = """\
Ciphers aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,aes256-ctr,aes128-gcm@openssh.com,aes128-ctr
MACs hmac-sha2-256-etm@openssh.com,umac-128-etm@openssh.com,hmac-sha2-512-etm@openssh.com,hmac-sha2-256,hmac-sha2-512
KexAlgorithms curve25519-sha256,curve25519-sha256@libssh.org,ecdh-sha2-nistp256,diffie-hellman-group14-sha256
PubkeyAcceptedAlgorithms ssh-ed25519,ssh-ed25519-cert-v01@openssh.com,ecdsa-sha2-nistp256,rsa-sha2-256,rsa-sha2-512
CASignatureAlgorithms ecdsa-sha2-nistp256,ssh-ed25519,rsa-sha2-256,rsa-sha2-512
RequiredRSASize 2048
"""
DEBIAN = """\
# This is the ssh client system-wide configuration file.  See
# ssh_config(5) for more information.
Include {d}/*.conf

Host *
#   ForwardAgent no
#   ForwardX11 no
#   PasswordAuthentication yes
#   GSSAPIDelegateCredentials no
#   CheckHostIP no
#   IdentityFile ~/.ssh/id_rsa
#   Port 22
#   Ciphers aes128-ctr,aes192-ctr,aes256-ctr,aes128-cbc,3des-cbc
#   EscapeChar ~
    SendEnv LANG LC_*
    HashKnownHosts yes
    GSSAPIAuthentication yes
"""
UBUNTU = DEBIAN.replace("    SendEnv LANG LC_*\n", "    SendEnv LANG LC_* COLORTERM NO_COLOR\n")
UBUNTU_D = """\
Host *
    AddKeysToAgent no
    SetEnv LAPTOP=yes
"""
STOCK = {
    "fedora": (FEDORA, {"50-redhat.conf": FEDORA_D, "openssh.config": CRYPTO_POLICY}),
    "debian": (DEBIAN, {}),
    "ubuntu": (UBUNTU, {"20-user.conf": UBUNTU_D}),
}


def write(name: str, folder: Path, own: str = "") -> Path:
    """A config file with a user's own lines before those of the distribution."""
    text, parts = STOCK[name]
    below = folder / "ssh_config.d"
    below.mkdir()
    for file, content in parts.items():
        (below / file).write_text(content.replace("{d}", str(below)))
    path = folder / "config"
    path.write_text(own + "\nHost *\n" + text.replace("{d}", str(below)))
    return path


def as_ssh_says(config: Path, address: str) -> dict[str, list[str]]:
    """What `ssh -G` prints, option → values."""
    done = subprocess.run(
        ["ssh", "-G", "-F", str(config), address], capture_output=True, text=True, check=True
    )
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        found.setdefault(key, []).append(value)
    return found


OWN = """\
Host gpu*
  HostName %h.example.com
  User alice
  Port 2222
  IdentityFile ~/.ssh/gpu
  ServerAliveInterval 5
Host gpu1
  ProxyJump bastion
Host bastion
  HostName 192.0.2.1
"""


@pytest.mark.parametrize("client", [True, False], ids=["ssh client", "our reader"])
@pytest.mark.parametrize("name", STOCK)
def test_a_stock_config_resolves_as_ssh_does(name: str, client: bool, tmp_path: Path) -> None:
    config = write(name, tmp_path, OWN)
    theirs = as_ssh_says(config, "gpu1")
    heard: list[str] = []
    environ = {
        "HOME": str(Path.home()), "PATH": "/usr/bin:/bin" if client else str(tmp_path), "USER": "me", "LOGNAME": "me",
    }  # fmt: skip
    found = resolve(Spec("h", address="gpu1", ssh_config=config), environ=environ, warn=heard.append)
    assert [found.host, found.user, str(found.port)] == [
        theirs[key][0] for key in ("hostname", "user", "port")
    ]
    assert [str(path) for path in found.identity_files] == [
        str(Path(p).expanduser()) for p in theirs["identityfile"]
    ]
    assert found.keepalive_s == float(theirs["serveraliveinterval"][0])
    assert found.jump is not None
    assert (found.jump.host, theirs["proxyjump"]) == ("192.0.2.1", ["bastion"])
    known = [*theirs["userknownhostsfile"][0].split(), *theirs["globalknownhostsfile"][0].split()]
    assert [str(path) for path in found.known_hosts] == [str(Path(p).expanduser()) for p in known]
    if client or name != "fedora":
        assert heard == []
    else:
        assert list(dict.fromkeys(line.split(": ")[0] for line in heard)) == [
            f"{tmp_path}/ssh_config.d/50-redhat.conf:3"
        ]


@pytest.mark.parametrize("transport", ["ssh", "openssh"])
@pytest.mark.parametrize("name", STOCK)
def test_a_host_is_reached_under_a_stock_config(
    name: str, transport: str, sshd: Sshd, connections: Connections, tmp_path: Path
) -> None:
    config = write(name, tmp_path, sshd.ssh_config_block("gpu1"))
    spec = Spec("gpu1", address="gpu1", ssh_config=config, transport=transport)
    assert connections.transport(spec).run(["echo", "hi"]).stdout == b"hi\n"
