"""The claims of docs/security.md that can be watched from outside."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

from tests.e2e.conftest import Laptop
from tests.support.sshd import Sshd, make_key
from tests.support.waiting import wait_for

SECRET = "hf_Zm9vYmFyLXNlY3JldA"
PASSPHRASE = "correct-horse-battery"

# Lets its secret out in every way that a careless program has.
LEAKY = """
import json, os, pathlib, sys, time
token = os.environ["TOKEN"]
os.write(1, f"token on stdout {token}\\n".encode()); os.write(2, f"token on stderr {token}\\n".encode())
os.write(1, token[:8].encode()); time.sleep(0.2); os.write(1, token[8:].encode() + b"\\n")
pathlib.Path(sys.argv[1]).touch()
while not pathlib.Path(sys.argv[1] + ".go").exists():
    time.sleep(0.05)
print(json.dumps({"time_us": 5, "token": token, token: "as a key", "agent": os.environ.get("SSH_AUTH_SOCK"),
    "environment": sorted(os.environ.values())}))
"""


def everything_below(*folders: Path) -> bytes:
    found = []
    for folder in folders:
        for path in folder.rglob("*"):
            try:
                if path.is_file() and not path.is_symlink():
                    found.append(path.read_bytes())
            except FileNotFoundError:
                continue  # removed meanwhile: a working folder of the run
    return b"\n".join(found)


def command_lines() -> bytes:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                found.append((entry / "cmdline").read_bytes())
            except OSError:
                continue
    return b"\n".join(found)


def environments_of_strangers(mark: str) -> bytes:
    """The environments of the processes that belong to a host's side of the run, found by its work folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if (
                entry.name.isdecimal()
                and mark.encode() in (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            ):
                found.append((entry / "environ").read_bytes())
        except OSError:
            continue
    return b"\n".join(found)


def test_secrets_and_passphrases_stay_where_they_belong(laptop: Laptop, host: Sshd, tmp_path: Path) -> None:
    key = host.folder / "locked_key"
    make_key(key, passphrase=PASSPHRASE)
    (host.folder / "authorized_keys").write_text(key.with_suffix(".pub").read_text())
    askpass = laptop.write("askpass", f"#!/bin/sh\necho {PASSPHRASE}\n")
    askpass.chmod(0o700)
    laptop.hosts(host, identity_file=str(key), env={"TOKEN": {"from_env": "MY_TOKEN"}}, devices={"cpu": 1})
    laptop.write("leaky.py", LEAKY)
    begun = tmp_path / "begun"
    payload = {"script": "leaky.py", "args": [str(begun)]}
    laptop.write("sweep.yaml", json.dumps({"name": "leaky", "payload": payload, "matrix": {"m": [1]}}))

    running = laptop.start(
        "run", "sweep.yaml", MY_TOKEN=SECRET, SSH_ASKPASS=str(askpass), SSH_AUTH_SOCK="/nowhere/agent"
    )
    wait_for(begun.exists, "the program to begin")
    lines = command_lines()
    remote = environments_of_strangers(str(host.home))
    Path(f"{begun}.go").touch()
    stdout, stderr = running.communicate(timeout=100)
    assert running.returncode == 0, stderr
    (measured,) = laptop.measurements()

    assert SECRET.encode() not in lines
    assert PASSPHRASE.encode() not in lines
    assert SECRET.encode() in remote, "the worker has it, as it was asked to"
    assert PASSPHRASE.encode() not in remote
    assert measured["extra"]["token"] == "***"
    assert measured["extra"]["***"] == "as a key"
    assert measured["extra"]["agent"] is None, "no agent is forwarded"
    # The worker's log is closed by the agent, which may live a moment longer than the run.
    folders = (laptop.folder / "archive", host.home)
    for text in (b"token on stdout ***", b"token on stderr ***"):
        wait_for(lambda text=text: text in everything_below(*folders), "the log to be on disk")
    kept = everything_below(*folders)
    for secret in (SECRET, PASSPHRASE):
        assert secret.encode() not in kept
        assert secret not in stdout + stderr
    assert "agent-req" not in host.read_log()


def test_what_lies_on_a_host_is_for_its_user_alone(laptop: Laptop, host: Sshd) -> None:
    # A login shell with an open umask changes nothing.
    (host.home / ".bashrc").write_text("umask 000\n")
    laptop.hosts(host, devices={"cpu": 1})
    laptop.write("bench.py", "print('{\"time_us\": 5}')\nopen('kept.csv', 'w').write('a,b')\n")
    payload = {"script": "bench.py", "collect": ["*.csv"]}
    laptop.write("sweep.yaml", json.dumps({"name": "modes", "payload": payload, "matrix": {"m": [1]}}))
    assert laptop.farbench("run", "sweep.yaml").code == 0
    found = [host.home / "farbench", *(host.home / "farbench").rglob("*")]
    assert len(found) > 10
    open_to_others = {
        str(path): oct(path.lstat().st_mode)
        for path in found
        if path.lstat().st_mode & 0o077 and not path.is_symlink()
    }
    assert open_to_others == {}
    shared = Path("/tmp/farbench-leases")
    if shared.exists():
        assert stat.S_IMODE(shared.stat().st_mode) == 0o1777


def test_an_open_work_folder_is_told(laptop: Laptop, host: Sshd) -> None:
    (host.home / "farbench").mkdir()
    os.chmod(host.home / "farbench", 0o777)
    laptop.hosts(host, python=sys.executable)
    checks = laptop.farbench("doctor", "--json").json()["hosts"]["h1"]["checks"]
    (found,) = [check for check in checks if check["name"] == "workdir"]
    assert found["state"] == "warning"
    assert "can be changed by other users (mode 0777)" in found["found"]
    assert found["fix"] == f"chmod 700 {host.home}/farbench"
