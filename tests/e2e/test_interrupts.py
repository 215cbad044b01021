"""A run outlives its controller and its connection; coming back brings every result home, each once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import Laptop
from tests.e2e.templates import SLEEPY
from tests.support.sshd import Sshd
from tests.support.waiting import wait_for

CASES = 12


def slow_sweep(laptop: Laptop, host: Sshd, **more: object) -> None:
    laptop.hosts(host, devices={"cpu": 2})
    laptop.write("payloads/sleepy.py.j2", SLEEPY)
    sweep = {
        "name": "slow",
        "payload": "sleepy",
        "matrix": {"i": list(range(CASES)), "seconds": [0.3]},
        "backends": ["one"],
    }
    laptop.write("sweep.yaml", json.dumps({**sweep, **more}))


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def journal(laptop: Laptop, run_id: str) -> str:
    path = laptop.folder / "archive" / "open" / run_id / "hosts" / "h1" / "events.jsonl"
    return path.read_text() if path.exists() else ""


def complete(laptop: Laptop, run_id: str) -> None:
    measured = laptop.measurements(run_id)
    assert sorted(m["params"]["i"] for m in measured) == list(range(CASES))
    assert {m["status"] for m in measured} == {"ok"}
    assert all(m["extra"]["i"] == m["params"]["i"] for m in measured)


def test_ctrl_c_detaches_and_attach_comes_back(laptop: Laptop, host: Sshd) -> None:
    slow_sweep(laptop, host)
    process = laptop.start("run", "sweep.yaml")
    run_id = first_line(process)
    wait_for(lambda: '"measurement"' in journal(laptop, run_id), "a first result")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"farbench attach {run_id}" in stderr
    assert "Traceback" not in stderr
    listed = laptop.farbench("runs", "--json").json()["runs"]
    assert [r["state"] for r in listed] == ["detached"]

    done = laptop.farbench("attach", "latest", "--json")
    assert done.code == 0, done.stderr
    assert done.json()["counts"] == {"ok": CASES}
    complete(laptop, run_id)


def test_a_killed_controller_loses_nothing(laptop: Laptop, host: Sshd) -> None:
    slow_sweep(laptop, host)
    process = laptop.start("run", "sweep.yaml")
    run_id = first_line(process)
    wait_for(lambda: '"measurement"' in journal(laptop, run_id), "a first result")
    process.kill()
    process.communicate()
    done = laptop.farbench("resume", run_id, "--json")
    assert done.code == 0, done.stderr
    assert done.json()["counts"] == {"ok": CASES}
    complete(laptop, run_id)


def test_detach_returns_at_once_and_the_report_shows_what_is_there(laptop: Laptop, host: Sshd) -> None:
    slow_sweep(laptop, host)
    done = laptop.farbench("run", "sweep.yaml", "--detach", "--json")
    assert done.code == 0, done.stderr
    assert done.json()["state"] == "detached"
    run_id = done.json()["run_id"]
    assert laptop.farbench("report", run_id).code == 0
    status = laptop.farbench("status", run_id, "--json")
    assert status.code == 0, status.stderr
    assert status.json()["hosts"]["h1"]["state"] == "ok"
    assert laptop.farbench("attach", run_id, "--json").json()["counts"] == {"ok": CASES}
    complete(laptop, run_id)


@pytest.mark.parametrize(
    ("placement", "expected"), [("replicate", CASES), ("shard", CASES), ("replicate_devices", 2 * CASES)]
)
def test_of_an_open_run_it_is_told_how_much_is_to_come(
    laptop: Laptop, host: Sshd, placement: str, expected: int
) -> None:
    def of_view() -> object:
        return laptop.farbench("query", "select expected from runs", "--json").json()["rows"]

    slow_sweep(laptop, host, placement=placement)
    process = laptop.start("run", "sweep.yaml")
    run_id = first_line(process)
    wait_for(lambda: '"measurement"' in journal(laptop, run_id), "a first result")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert f" of {expected} measurements so far: " in laptop.farbench("report").stdout
    assert f" of {expected}: " in laptop.farbench("runs").stdout
    assert of_view() == [{"expected": expected}]
    assert laptop.farbench("attach", "--json").json()["counts"] == {"ok": expected}
    assert of_view() == [{"expected": expected}]


def test_a_dropped_connection_is_followed_again(laptop: Laptop, host: Sshd) -> None:
    slow_sweep(laptop, host)
    process = laptop.start("run", "sweep.yaml", "--json")
    run_id = wait_for(lambda: process.stderr and process.stderr.readline().strip(), "the run id")
    for _ in range(3):
        before = journal(laptop, run_id).count('"measurement"')
        wait_for(
            lambda: journal(laptop, run_id).count('"measurement"') > before or process.poll() is not None,  # noqa: B023
            "another result, or the end: all may have come home at once",
        )
        host.kill_connections()
    stdout, stderr = process.communicate(timeout=90)
    assert process.returncode == 0, stderr
    assert "reconnecting" in stderr
    assert json.loads(stdout)["counts"] == {"ok": CASES}
    complete(laptop, run_id)


def test_a_second_terminal_looks_on_while_the_first_follows(laptop: Laptop, host: Sshd) -> None:
    slow_sweep(laptop, host)
    first = laptop.start("run", "sweep.yaml", "--json")
    assert first.stderr is not None
    run_id = first.stderr.readline().strip()
    wait_for(lambda: '"measurement"' in journal(laptop, run_id), "a first result")
    second = laptop.farbench("attach", run_id, "--json")
    stdout, stderr = first.communicate(timeout=60)
    assert first.returncode == 0, stderr
    assert second.code == 0, second.stderr
    assert second.json()["counts"] == json.loads(stdout)["counts"] == {"ok": CASES}


def test_cancel_frees_the_host_and_keeps_what_was_measured(laptop: Laptop, host: Sshd) -> None:
    slow_sweep(laptop, host, matrix={"i": list(range(CASES)), "seconds": [0.2, 60.0]})
    run_id = laptop.farbench("run", "sweep.yaml", "--detach", "--json").json()["run_id"]
    journal_there = host.home / "farbench" / "runs" / run_id / "events.jsonl"
    wait_for(
        lambda: journal_there.exists() and '"measurement"' in journal_there.read_text(), "a first result"
    )
    done = laptop.farbench("cancel", run_id, "--json")
    assert done.code == 0, done.stderr
    document = done.json()
    assert document["state"] == "cancelled"
    assert document["counts"]["ok"] >= 1
    assert document["counts"]["ok"] + document["counts"]["cancelled"] == 2 * CASES
    assert not workers_below(host.home)
    again = laptop.farbench("resume", run_id, "--json", "--detach")
    assert again.code == 0, again.stderr
    assert again.json()["run_id"] != run_id
    assert laptop.farbench("cancel", "latest", "--json").code == 0
    resumed = laptop.measurements("latest")
    assert len(resumed) == document["counts"]["cancelled"]


def test_every_kind_of_failure_has_its_status_and_the_rest_is_measured(laptop: Laptop, host: Sshd) -> None:
    hows = ["ok", "raise", "kill", "exit", "ok"]
    slow_sweep(laptop, host, matrix={"case": [{"i": i, "how": how} for i, how in enumerate(hows)] + [{"i": 9, "seconds": 600.0}]},
               timeout_s=3, compile_timeout_s=3)  # fmt: skip
    done = laptop.farbench("run", "sweep.yaml", "--json")
    assert done.code == 1
    assert done.json()["counts"] == {"ok": 2, "error": 1, "crashed": 2, "timeout": 1}
    by_case = {m["params"]["i"]: m for m in laptop.measurements()}
    assert "told to" in by_case[1]["reason"]
    assert "signal 9" in by_case[2]["reason"]
    assert "exit code 3" in by_case[3]["reason"]
    assert by_case[9]["status"] == "timeout"
    again = laptop.farbench("resume", "latest", "--json")
    assert again.code == 4
    assert "nothing is left" in again.stderr


def workers_below(folder: Path) -> list[int]:
    """Processes whose working folder or command line lies below a host's home."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if os.fsencode(str(folder)) in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
