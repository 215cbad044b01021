"""Cancelling while a host cannot be reached: what it measured is not thrown away, and it is told when it can be."""

from __future__ import annotations

import json
import signal

from tests.e2e.conftest import Laptop
from tests.e2e.templates import SLEEPY
from tests.support.sshd import Sshd
from tests.support.waiting import wait_for


def sweep(laptop: Laptop, host: Sshd) -> None:
    laptop.hosts(host, devices={"cpu": 1})
    laptop.write("payloads/sleepy.py.j2", SLEEPY)
    cases = [{"i": i, "seconds": 0.05} for i in range(4)] + [{"i": 4, "seconds": 90.0}]
    laptop.write(
        "sweep.yaml",
        json.dumps({"name": "s", "payload": "sleepy", "matrix": {"case": cases}, "backends": ["one"]}),
    )


def measured_there(host: Sshd, run_id: str) -> int:
    journal = host.home / "farbench" / "runs" / run_id / "events.jsonl"
    return journal.read_text().count('"type":"measurement"') if journal.exists() else 0


def test_what_an_unreachable_host_measured_comes_home_with_the_second_cancel(
    laptop: Laptop, host: Sshd
) -> None:
    sweep(laptop, host)
    run_id = laptop.farbench("run", "sweep.yaml", "--detach", "--json").json()["run_id"]
    wait_for(lambda: measured_there(host, run_id) == 4, "four results on the host")
    host.stop()
    first = laptop.farbench("cancel", run_id)
    assert first.code == 1
    assert "not told to stop" in first.stderr
    assert "--forget" in first.stderr
    assert [r["state"] for r in laptop.farbench("runs", "--json").json()["runs"]] == ["lost"]
    host.start()
    second = laptop.farbench("cancel", run_id, "--json")
    assert second.code == 0, second.stderr
    assert second.json()["counts"] == {"ok": 4, "cancelled": 1}


def test_a_run_can_be_ended_without_a_host_that_never_answers_again(laptop: Laptop, host: Sshd) -> None:
    sweep(laptop, host)
    run_id = laptop.farbench("run", "sweep.yaml", "--detach", "--json").json()["run_id"]
    wait_for(lambda: measured_there(host, run_id) == 4, "four results on the host")
    host.stop()
    done = laptop.farbench("cancel", run_id, "--forget", "--json")
    assert done.json()["state"] == "cancelled"
    assert done.json()["counts"] == {"cancelled": 5}
    assert "could not be asked" in laptop.measurements(run_id)[0]["reason"]


def test_a_host_that_comes_back_is_told_while_another_farbench_follows(laptop: Laptop, host: Sshd) -> None:
    sweep(laptop, host)
    follower = laptop.start("run", "sweep.yaml", "--json")
    assert follower.stderr is not None
    run_id = follower.stderr.readline().strip()
    wait_for(lambda: measured_there(host, run_id) == 4, "four results on the host")
    host.stop()
    cancel = laptop.start("cancel", run_id, "--json")
    assert cancel.stderr is not None
    wait_for(lambda: "not told to stop" in cancel.stderr.readline(), "the warning")
    host.start()
    stdout, stderr = cancel.communicate(timeout=90)
    assert cancel.returncode == 0, stderr
    assert json.loads(stdout)["counts"] == {"ok": 4, "cancelled": 1}
    stdout, stderr = follower.communicate(timeout=60)
    assert json.loads(stdout)["state"] == "cancelled", stderr


def test_a_follower_that_is_stopped_holds_up_no_cancel(laptop: Laptop, host: Sshd) -> None:
    """Ctrl-Z, say. The devices are free, and what is left to do is said."""
    sweep(laptop, host)
    follower = laptop.start("run", "sweep.yaml", "--json")
    assert follower.stderr is not None
    run_id = follower.stderr.readline().strip()
    wait_for(lambda: measured_there(host, run_id) == 4, "four results on the host")
    follower.send_signal(signal.SIGSTOP)
    cancelled = laptop.farbench("cancel", run_id)
    assert cancelled.code == 1
    assert (
        "its hosts have stopped; another farbench follows it and has not taken that in yet"
        in cancelled.stderr
    )
    journal = host.home / "farbench" / "runs" / run_id / "events.jsonl"
    assert json.loads(journal.read_text().splitlines()[-1])["state"] == "cancelled"
    follower.kill()
    follower.communicate()
    assert laptop.farbench("cancel", run_id, "--json").json()["counts"] == {"ok": 4, "cancelled": 1}


def test_a_run_that_had_ended_before_it_was_cancelled_is_finished(laptop: Laptop, host: Sshd) -> None:
    sweep(laptop, host)
    laptop.write("sweep.yaml", (laptop.folder / "sweep.yaml").read_text().replace("90.0", "0.0"))
    run_id = laptop.farbench("run", "sweep.yaml", "--detach", "--json").json()["run_id"]
    journal = host.home / "farbench" / "runs" / run_id / "events.jsonl"
    wait_for(lambda: '"agent_finished"' in journal.read_text(), "the end of the run")
    done = laptop.farbench("cancel", run_id, "--json")
    assert (done.code, done.json()["state"], done.json()["counts"]) == (0, "finished", {"ok": 5})
