"""What `status`, `cancel` and a report say of hosts: of each what is its own, and of results that have not come home."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable

import pytest

from tests.e2e.conftest import Laptop
from tests.support.sshd import Sshd
from tests.support.waiting import wait_for

PROGRAM = """print('{"time_us": 3}')\n"""
CASES = 4


def sweep(laptop: Laptop, *servers: Sshd, placement: str = "shard") -> None:
    laptop.hosts(*servers, devices={"cpu": 1})
    laptop.write("bench.py", PROGRAM)
    described = {
        "name": "s", "payload": {"script": "bench.py", "results": "json_lines"},
        "matrix": {"i": list(range(CASES))}, "placement": placement,
    }  # fmt: skip
    laptop.write("sweep.yaml", json.dumps(described))


def has_ended(host: Sshd, run_id: str) -> bool:
    journal = host.home / "farbench" / "runs" / run_id / "events.jsonl"
    return journal.exists() and '"type":"agent_finished"' in journal.read_text()


@pytest.fixture
def refused(make_sshd: Callable[..., Sshd]) -> Sshd:
    """A host whose key is not the one that is known."""
    server = make_sshd()
    server.stop()
    server.regenerate_host_key()
    server.start()
    return server


def test_a_refused_host_is_named_once_and_its_way_out_stands_on_lines_of_its_own(
    laptop: Laptop, host: Sshd, refused: Sshd
) -> None:
    sweep(laptop, host, refused, placement="replicate")
    done = laptop.farbench("run", "sweep.yaml")
    assert done.code == 1, done.stderr
    run_id = done.stdout.split("\n", 1)[0]
    (header,) = [line for line in done.stdout.split("\n") if line.startswith("host h2: refused: ")]
    assert header.count("h2") == 1
    assert "devices of h1 were measuring" in done.stdout
    assert "its devices" not in done.stdout
    status = laptop.farbench("status", run_id)
    assert "\\n" not in status.stdout
    (line,) = [line for line in status.stdout.split("\n") if line.startswith("h2: refused  ")]
    assert line.count("h2") == 1

    cancelled = laptop.farbench("cancel", run_id)
    assert cancelled.code == 4, cancelled.stderr
    assert f"run {run_id} has ended; there is nothing to cancel" in cancelled.stderr


def test_results_that_wait_at_a_host_are_not_lost_and_how_to_get_them_is_said(
    laptop: Laptop, host: Sshd
) -> None:
    sweep(laptop, host)
    run_id = laptop.farbench("run", "sweep.yaml", "--detach", "--json").json()["run_id"]
    wait_for(lambda: has_ended(host, run_id), "the host to have measured everything")
    host.stop()
    assert laptop.farbench("cancel", run_id).code == 1
    assert laptop.farbench("status", run_id, "--json").json()["counts"] == {"lost": CASES}, "nobody answers"
    host.start()
    status = laptop.farbench("status", run_id)
    assert f"{run_id}  lost  " in status.stdout
    assert f"\nnot brought home yet: {CASES}\n" in status.stdout
    assert "lost:" not in status.stdout
    assert f"bring them home with: farbench attach {run_id}" in status.stdout
    told = laptop.farbench("status", run_id, "--json").json()
    assert (told["counts"], told["hosts"]["h1"]["not_home"]) == ({}, CASES)
    assert laptop.farbench("attach", run_id, "--json").json()["counts"] == {"ok": CASES}
    after = laptop.farbench("status", run_id)
    assert f"\nok: {CASES}\n" in after.stdout
    assert "bring them home" not in after.stdout


def test_status_says_what_to_do_when_an_agent_is_gone(laptop: Laptop, host: Sshd) -> None:
    sweep(laptop, host)
    laptop.write("bench.py", "import time; time.sleep(60)\n")
    started = laptop.farbench("run", "sweep.yaml", "--detach")
    assert started.code == 0, started.stderr
    run_id = started.stdout.split("\n", 1)[0]
    identity = host.home / "farbench" / "runs" / run_id / "agent.json"
    os.kill(int(json.loads(identity.read_bytes())["pid"]), signal.SIGKILL)
    told = laptop.farbench("status").stdout
    assert "h1: ok  agent dead\n" in told
    assert f"the agent of h1 is gone; go on with: farbench resume {run_id}\n" in told
