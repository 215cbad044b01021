"""Any text as an ssh config or a known_hosts file: read as ssh reads it, or told; never a crash."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orchestrator.transport.known_hosts import KnownHosts, read_known_hosts
from orchestrator.transport.ssh_config_file import read_ssh_config

QUICK = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
AGAINST_SSH = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

WORD = st.sampled_from(
    ["Host", "Match", "Include", "User", "all", "host", "exec", "gpu1", "*", "!gpu1", "~/x", "/nowhere/*", "=", '"', "'", "\\", "#", "%h", "\t", "é", "\x00", "\udcff", "final"]
)  # fmt: skip
LINES = st.lists(st.lists(WORD | st.text(max_size=6), max_size=5).map(" ".join), max_size=12).map("\n".join)


@QUICK
@given(text=LINES | st.text(max_size=200))
@example(text="Include config\n")
@example(text="Host [\nHost [!-\nInclude [\nInclude ~\nInclude /\n")
def test_any_text_is_read(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    heard: list[str] = []
    found = read_ssh_config([path], "gpu1", home=tmp_path, warn=heard.append)
    assert all(values and all(isinstance(value, str) for value in values) for values in found.values())
    assert all(str(tmp_path) in line for line in heard)


# Options whose value cannot be mistaken, written in every way that ssh takes.
OPTION = st.sampled_from(
    ["User alice", "User=bob", "USER  carol", 'User "dave"', "Port 2200", "port=2201", "Port = 2202", "HostName %h.example.com",
     'HostName "10.0.0.1"', "HostKeyAlias one", "HostKeyAlias=two # not a comment in old clients", "ConnectTimeout 7",
     "IdentityFile /keys/a", 'IdentityFile "/keys/b c"', "ServerAliveInterval 3", "# User nobody", ""]
).filter(lambda line: "# not" not in line)  # fmt: skip
PATTERN = st.sampled_from(
    ["gpu1", "gpu?", "gpu*", "*", "!gpu1", "!gpu9", "other", "g*1", "[g]pu1", "GPU1", "*.example.com"]
)
BLOCK = st.one_of(
    st.lists(PATTERN, min_size=1, max_size=3).map(lambda words: "Host " + " ".join(words)),
    st.just("Match all"),
    st.just("Host=gpu1"),
)
CONFIG = st.lists(st.one_of(BLOCK, OPTION.map(lambda line: "  " + line)), max_size=14).map("\n".join)


@AGAINST_SSH
@given(text=CONFIG)
@example(text="Host [g]pu1\n  User alice\nHost gpu1\n  User bob\n")
@example(text="Host !gpu1\n  User alice\n")
def test_what_is_understood_is_understood_as_ssh_does(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(text + "\n")
    ours = read_ssh_config([path], "gpu1", home=tmp_path, warn=lambda _: None)
    command = ["ssh", "-G", "-F", str(path), "gpu1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    theirs: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        theirs.setdefault(key, []).append(value)
    for key in ("user", "port", "hostname", "hostkeyalias", "connecttimeout", "serveraliveinterval"):
        if key in ours:
            assert ours[key] == theirs[key], key
        else:
            default = {
                "hostname": ["gpu1"],
                "port": ["22"],
                "serveraliveinterval": ["0"],
                "connecttimeout": ["none"],
            }
            assert key not in theirs or key == "user" or theirs[key] == default.get(key), key
    if "identityfile" in ours:
        assert [value.strip('"') for value in theirs["identityfile"]] == ours["identityfile"]


@QUICK
@given(data=st.binary(max_size=200) | LINES.map(lambda text: text.encode("utf-8", "surrogatepass")))
@example(data=b"|1|x|y ssh-ed25519 AAAA\n|1| ssh-ed25519 AAAA\n|1|\xff|\xff ssh-ed25519 AAAA\n")
@example(data=b"[*]:22 ssh-ed25519 AAAA\n@cert-authority * x AAAA\n@revoked ssh-rsa\n@other * ssh-rsa AAAA\n")
def test_any_bytes_are_a_known_hosts_file(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    path.write_bytes(data)
    known = KnownHosts([path])
    known.check("gpu1", 22, b"\0\0\0\x0bssh-ed25519")
    known.check("fe80::1%eth0", 2222, b"")
    known.authorities("gpu1", 2222)
    assert all(entry.line >= 1 for entry in read_known_hosts(path))


KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIBX0cF1GyX0sVv0mWc3W3rBd8pQq9dYk6l4yqCwq3JxO"
HOSTS = st.lists(
    st.sampled_from(["gpu1", "[gpu1]:2222", "gpu*", "*", "!gpu1", "![gpu1]:2222", "other", "[*]:2222", "GPU1", "gpu?"]),
    min_size=1, max_size=3,
).map(",".join)  # fmt: skip


@AGAINST_SSH
@given(names=st.lists(HOSTS, min_size=1, max_size=4), hashed=st.booleans(), port=st.sampled_from([22, 2222]))
def test_lines_are_about_the_hosts_that_ssh_keygen_finds(
    names: list[str], hashed: bool, port: int, tmp_path: Path
) -> None:
    path = tmp_path / "known"
    path.write_text("".join(f"{name} ssh-ed25519 {KEY}\n" for name in names))
    if hashed:
        subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(path)], capture_output=True, timeout=60)
    asked = "gpu1" if port == 22 else f"[gpu1]:{port}"
    done = subprocess.run(
        ["ssh-keygen", "-F", asked, "-f", str(path)], capture_output=True, text=True, timeout=60
    )
    theirs = [int(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("# Host")]
    assert [entry.line for entry in KnownHosts([path]).keys_of("gpu1", port)] == theirs


def test_the_judges_are_here() -> None:
    assert shutil.which("ssh")
    assert shutil.which("ssh-keygen")
