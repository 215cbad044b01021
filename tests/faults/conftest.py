"""Hosts that things happen to, and a laptop that must lose nothing by it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Laptop, end_processes_below
from tests.faults.payloads import ODD
from tests.faults.proxy import Proxy
from tests.support.sshd import Sshd

LINK_SILENCE = "ServerAliveInterval 1\nServerAliveCountMax 3\n"
"""A link is given up after three silent seconds instead of thirty: tests cannot wait that long."""


class Desk(Laptop):
    """A laptop with the odd payload, whose hosts leave traces in one folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.traces = folder / "traces"
        self.traces.mkdir()
        self.write("payloads/odd.py.j2", ODD)
        self.write("ssh_config", LINK_SILENCE)
        self.entries: dict[str, dict[str, Any]] = {}

    def add_host(self, name: str, server: Sshd, *, via: Proxy | None = None, **changes: Any) -> None:
        """A host of hosts.yaml, reached through `via` if that is given."""
        port = via.port if via is not None else server.port
        known = self.write(f"known_hosts_{name}", f"[{server.address}]:{port} {server.host_public_key}\n")
        self.entries[name] = {
            "address": server.address, "port": port, "user": server.user, "identity_file": str(server.client_key),
            "known_hosts": str(known), "ssh_config": str(self.folder / "ssh_config"), "workdir": "~/farbench",
            "python": sys.executable, "devices": {"cpu": 1}, **changes,
        }  # fmt: skip
        self.entries[name]["env"] = {"TRACES": str(self.traces), "WHERE": name, **changes.get("env", {})}
        self.write("hosts.yaml", json.dumps({"hosts": self.entries}))

    def sweep(self, cases: list[dict[str, Any]] | int, **more: Any) -> None:
        """sweep.yaml: so many cases, or these."""
        listed = [{"i": i} for i in range(cases)] if isinstance(cases, int) else cases
        document = {"name": "odd", "payload": "odd", "matrix": {"case": listed}, "backends": ["one"]}
        self.write("sweep.yaml", json.dumps({**document, **more}))

    def begin(self, *options: str) -> tuple[subprocess.Popen[str], str]:
        """`farbench run`, and the run's id once it is known."""
        process = self.start("run", "sweep.yaml", "--json", *options)
        assert process.stderr is not None
        return process, process.stderr.readline().strip()

    def end(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        """Wait for a command with --json that must end well; what it said on standard error is under `said`."""
        stdout, stderr = process.communicate(timeout=100)
        assert process.returncode == 0, stderr
        return {**json.loads(stdout), "said": stderr}

    def json(self, *arguments: str, code: int = 0) -> Any:
        done = self.farbench(*arguments, "--json")
        assert done.code == code, f"{done.code}: {done.stderr}"
        return done.json()

    def results(self, run_id: str) -> list[dict[str, Any]]:
        """Lines of a complete run's results.jsonl."""
        path = self.folder / "archive" / "runs" / run_id / "results.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def journal(self, run_id: str, host: str) -> list[dict[str, Any]]:
        """Events of a host that are here."""
        for kind in ("open", "runs"):
            path = self.folder / "archive" / kind / run_id / "hosts" / host / "events.jsonl"
            if path.exists():
                lines = path.read_bytes().split(b"\n")
                return [json.loads(line) for line in lines if line.startswith(b"{") and line.endswith(b"}")]
        return []

    def measured_here(self, run_id: str, host: str = "h1") -> int:
        return sum(event["type"] == "measurement" for event in self.journal(run_id, host))

    def traced(self) -> list[dict[str, Any]]:
        """Every time that a backend of a case was really measured, on whatever host."""
        path = self.traces / "measured"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def open_gate(self) -> None:
        (self.traces / "open").touch()


def assert_complete(
    desk: Desk,
    run_id: str,
    cases: int,
    *,
    backends: tuple[str, ...] = ("one",),
    bad: dict[int, str] | None = None,
) -> list[dict[str, Any]]:
    """The archive has every measurement once, and its value is the one of its case. `bad`: status of other cases."""
    results = desk.results(run_id)
    wanted = sorted((i, backend) for i in range(cases) for backend in backends)
    assert sorted((r["params"]["i"], r["backend"]) for r in results) == wanted
    for result in results:
        i = result["params"]["i"]
        assert result["status"] == (bad or {}).get(i, "ok"), result
        if result["status"] == "ok":
            assert result["timing"]["median_us"] == 10.0 + i
            assert result["extra"] == {"i": i, "backend": result["backend"]}
    return results


def agents(server: Sshd) -> list[int]:
    """PIDs of the agents of a host."""
    found = []
    for identity in server.home.glob("farbench/runs/*/agent.json"):
        pid = int(json.loads(identity.read_bytes())["pid"])
        if is_running(pid):
            found.append(pid)
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def kill_host(server: Sshd) -> None:
    """What a power cut does: nothing of the host runs any more."""
    server.stop()
    mark = os.fsencode(str(server.folder))
    while True:
        alive = [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if _is_of(pid, mark)]
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
        if not alive:
            return


def _is_of(pid: int, mark: bytes) -> bool:
    try:
        return pid != os.getpid() and mark in Path(f"/proc/{pid}/environ").read_bytes() and is_running(pid)
    except OSError:
        return False


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path / "desk")
    yield made
    end_processes_below(tmp_path)
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        if _is_of(pid, os.fsencode(str(tmp_path))):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def host(make_sshd: Callable[..., Sshd]) -> Sshd:
    return make_sshd()


__all__ = ["Desk", "agents", "assert_complete", "is_running", "kill_host"]
