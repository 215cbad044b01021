"""How much memory the controller and the agent need at most.

    python benchmarks/memory.py [--hosts 64] [--events 2000] [--workers 8]

The controller: the real `farbench run` over real SSH connections, one for each host, to one sshd whose commands are
`fake_host.py`: it makes up a journal of so many events a host, as fast as they are taken. The agent: a real one on the
same sshd's real shell, with so many workers that print much. The bounds that this project keeps: 150 MiB for the
controller with 64 hosts × 2,000 events, 40 MiB for the agent with eight workers. Exit code 1 when one does not hold.
(Parquet of so many results is made by a process of its own, which is not counted: DuckDB's, some 135 MiB.)
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.sshd import Sshd  # noqa: E402

CONTROLLER_MIB = 150
AGENT_MIB = 40
EVENTS_A_CASE = 6
LOUD = """
import sys, time
for _ in range(200):
    sys.stdout.write("x" * 65535 + "\\n")
print('{"median_us": 1.0}')
"""


def controller_peak_mib(work: Path, hosts: int, events: int) -> float:
    """Peak resident memory of `farbench run` that follows so many hosts with so many events each."""
    cases = events // EVENTS_A_CASE
    shell = work / "fake_shell"
    fake = ROOT / "benchmarks" / "fake_host.py"
    shell.write_text(f'#!/bin/sh\nexec {sys.executable} -S "{fake}" "$@"\n')
    shell.chmod(0o755)
    server = Sshd(work / "fake", shell=str(shell), MaxStartups=1000).start()
    try:
        shutil.copytree(ROOT / "benchmarks" / "payloads", work / "payloads", dirs_exist_ok=True)
        write_hosts(work, server, hosts)
        sweep = {
            "name": "memory",
            "payload": "noop",
            "matrix": {"i": list(range(cases))},
            "backends": ["noop"],
        }
        (work / "sweep.yaml").write_text(json.dumps(sweep))
        document, peak_mib = run_farbench(work)
        assert document["counts"] == {"ok": cases * hosts}, document["counts"]
        return peak_mib
    finally:
        server.stop()


def agent_peak_mib(work: Path, workers: int) -> float:
    """Peak resident memory of an agent whose workers print 13 MB each, as it tells at its end."""
    server = Sshd(work / "real").start()
    try:
        write_hosts(work, server, 1, devices={"cpu": workers})
        (work / "loud.py").write_text(LOUD)
        payload = {"script": "loud.py"}
        sweep = {"name": "loud", "payload": payload, "matrix": {"i": list(range(4 * workers))}}
        (work / "sweep.yaml").write_text(json.dumps(sweep))
        process = subprocess.Popen(
            farbench("run", "sweep.yaml", "--json"), cwd=work, env=environ(work),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        peak_kib = 0
        while process.poll() is None:
            for identity in server.home.glob("farbench/runs/*/agent.json"):
                peak_kib = max(peak_kib, high_water_kib(pid_of(identity)))
            time.sleep(0.02)
        assert process.returncode == 0
        return peak_kib / 1024
    finally:
        server.stop()


def pid_of(identity: Path) -> int:
    """The process that an agent.json names; 0 while it is not there."""
    try:
        pid: int = json.loads(identity.read_bytes())["pid"]
    except (OSError, ValueError):
        return 0
    return pid


def high_water_kib(pid: int) -> int:
    """VmHWM of a controller or an agent; 0 when the process is gone, or has not become one yet."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    if b"\0-m\0orchestrator\0" not in command and name != "farbench-agent":
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def write_hosts(work: Path, server: Sshd, count: int, **changes: Any) -> None:
    """hosts.yaml with so many entries that all lead to one sshd."""
    entry = {
        "address": server.address, "port": server.port, "user": server.user, "python": sys.executable,
        "identity_file": str(server.client_key), "known_hosts": str(server.known_hosts), "workdir": "~/farbench", **changes,
    }  # fmt: skip
    (work / "hosts.yaml").write_text(json.dumps({"hosts": {f"h{n}": entry for n in range(count)}}))


def run_farbench(work: Path) -> tuple[dict[str, Any], float]:
    """(what `farbench run --json` printed, the peak resident memory of its process in MiB).

    Read from /proc while it runs: what `wait4` tells counts what our own process had when it forked."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            farbench("run", "sweep.yaml", "--json"), cwd=work, env=environ(work), stdout=out, stderr=err
        )
        peak_kib = 0
        while process.poll() is None:
            peak_kib = max(peak_kib, high_water_kib(process.pid))
            time.sleep(0.02)
        for file in (out, err):
            file.seek(0)
        if process.returncode != 0:
            raise RuntimeError(err.read().decode(errors="replace"))
        return json.load(out), peak_kib / 1024


def farbench(*arguments: str) -> list[str]:
    """The command line of this checkout's farbench."""
    return [sys.executable, "-m", "orchestrator", *arguments]


def environ(work: Path) -> dict[str, str]:
    """A user's environment with a home of its own."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(work)}


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--events", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=8)
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="farbench-memory-"))
    try:
        controller = controller_peak_mib(work, options.hosts, options.events)
        print(
            f"controller, {options.hosts} hosts × {options.events} events: {controller:.1f} MiB of {CONTROLLER_MIB}"
        )
        agent = agent_peak_mib(work, options.workers)
        print(f"agent, {options.workers} loud workers: {agent:.1f} MiB of {AGENT_MIB}")
        return 0 if controller < CONTROLLER_MIB and agent < AGENT_MIB else 1
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
