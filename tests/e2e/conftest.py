"""A user's folder with hosts.yaml for real sshd's, and the real command run in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.sshd import Sshd

TIMEOUT_S = 100


@dataclass
class Finished:
    """A command that ended."""

    code: int
    stdout: str
    stderr: str

    def json(self) -> Any:
        return json.loads(self.stdout)


class Laptop:
    """Where the user sits: a working folder, a home, and `farbench`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        (folder / "payloads").mkdir()
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith(("SSH_", "FARBENCH_"))}
        self.environ |= {"HOME": str(self.home), "COLUMNS": "160", "PYTHONFAULTHANDLER": "1"}

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def hosts(self, *servers: Sshd, **changes: Any) -> None:
        """A hosts.yaml with a host for each server: h1, h2, …"""
        entries = {}
        for number, server in enumerate(servers, 1):
            entries[f"h{number}"] = {
                "address": server.address, "port": server.port, "user": server.user,
                "identity_file": str(server.client_key), "known_hosts": str(server.known_hosts),
                "workdir": "~/farbench", "python": sys.executable, **changes,
            }  # fmt: skip
        self.write("hosts.yaml", json.dumps({"hosts": entries}))

    def start(self, *arguments: str, **environ: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "orchestrator", *arguments], cwd=self.folder, env=self.environ | environ,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8",
        )  # fmt: skip

    def farbench(self, *arguments: str, **environ: str) -> Finished:
        process = self.start(*arguments, **environ)
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        return Finished(process.returncode, stdout, stderr)

    def measurements(self, run: str = "latest") -> list[dict[str, Any]]:
        done = self.farbench("report", run, "--format", "json")
        assert done.code == 0, done.stderr
        found: list[dict[str, Any]] = done.json()["measurements"]
        return found


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Laptop]:
    """An empty working folder; what was started from it on hosts is ended afterwards."""
    yield Laptop(tmp_path / "laptop")
    end_processes_below(tmp_path)


@pytest.fixture
def host(make_sshd: Callable[..., Sshd]) -> Sshd:
    """One host with two CPU slots' worth of nothing in particular."""
    return make_sshd()


def end_processes_below(folder: Path) -> None:
    """Kill agents and workers that a test left, known by the folder in their command lines or environments."""
    mark = os.fsencode(str(folder))
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) == os.getpid():
            continue
        try:
            if mark in (entry / "cmdline").read_bytes() and b"sshd" not in (entry / "comm").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            continue
