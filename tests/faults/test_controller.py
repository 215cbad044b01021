"""The controller dies, sleeps, or has a double: the run on the host does not care, and coming back finds everything."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from itertools import pairwise

from tests.faults.conftest import Desk, agents, assert_complete, is_running
from tests.support.sshd import Sshd
from tests.support.waiting import wait_for

KILLS = 20
CASES = 8


def test_killed_at_twenty_random_moments_then_resumed(desk: Desk, host: Sshd) -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    desk.add_host("h1", host)
    desk.sweep([{"i": i, "seconds": 0.15} for i in range(CASES)])
    run_ids: list[str] = []
    kills = 0
    while kills < KILLS:
        unfinished = [r["run_id"] for r in desk_runs(desk) if r["state"] in ("detached", "lost")]
        process = desk.start("resume", unfinished[0]) if unfinished else desk.start("run", "sweep.yaml")
        try:
            process.wait(rng.uniform(0.1, 1.8))
        except subprocess.TimeoutExpired:
            process.kill()
            kills += 1
        process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), f"seed {seed}"
    for run in desk_runs(desk):
        if run["state"] != "finished":
            desk.json("resume", run["run_id"])
        run_ids.append(run["run_id"])
    for run_id in run_ids:
        assert_complete(desk, run_id, CASES)
    # Every kill was survived by the agent: nothing was measured a second time.
    assert len(desk.traced()) == CASES * len(run_ids), f"seed {seed}"


def desk_runs(desk: Desk) -> list[dict[str, str]]:
    """The runs of the archive, as its folders tell: asking the command twenty times takes longer than the test."""
    found = []
    for kind, state in (("open", "detached"), ("runs", "finished")):
        folder = desk.folder / "archive" / kind
        names = (
            sorted(p.name for p in folder.iterdir() if not p.name.startswith(".")) if folder.exists() else []
        )
        found += [{"run_id": name, "state": state} for name in names]
    return found


def test_two_controllers_with_one_sweep_on_one_host(desk: Desk, host: Sshd) -> None:
    desk.add_host("h1", host)
    desk.sweep([{"i": i, "how": "wait" if i == 2 else "ok"} for i in range(6)])
    first, first_id = desk.begin()
    wait_for(lambda: (desk.traces / "waiting").exists(), "the first to measure")
    second, second_id = desk.begin()
    said = ""
    assert second.stderr is not None
    while f"held by run {first_id}" not in said:
        line = second.stderr.readline()
        assert line, said
        said += line
    desk.open_gate()
    for process, run_id in ((first, first_id), (second, second_id)):
        assert desk.end(process)["counts"] == {"ok": 6}
        assert_complete(desk, run_id, 6)
    times = sorted((trace["began"], trace["ended"]) for trace in desk.traced())
    assert len(times) == 12
    assert all(before[1] <= after[0] for before, after in pairwise(times))


def test_who_will_not_wait_is_refused_and_told_by_whom(desk: Desk, host: Sshd) -> None:
    desk.add_host("h1", host)
    desk.sweep([{"i": 0, "how": "wait"}])
    run_id = desk.json("run", "sweep.yaml", "--detach")["run_id"]
    wait_for(lambda: (desk.traces / "waiting").exists(), "the first run to measure")
    refused = desk.farbench("run", "sweep.yaml", "--no-wait", "--json")
    assert refused.code == 3
    document = refused.json()
    assert document["hosts"]["h1"]["state"] == "unusable"
    assert f"run {run_id}" in document["hosts"]["h1"]["error"]
    assert document["counts"] == {"lost": 1}

    waiting, waiting_id = desk.begin()
    told = wait_for(lambda: desk.json("status", waiting_id)["hosts"]["h1"]["waiting"], "the wait in `status`")
    assert f"held by run {run_id}" in told
    desk.open_gate()
    assert desk.end(waiting)["counts"] == {"ok": 1}
    assert desk.json("attach", run_id)["counts"] == {"ok": 1}
    # The one that was refused may be taken up again, and waits this time.
    resumed = desk.json("resume", document["run_id"])
    assert resumed["counts"] == {"ok": 1}
    assert_complete(desk, resumed["run_id"], 1)


def test_found_again_from_another_folder_with_the_same_archive(desk: Desk, host: Sshd, tmp_path) -> None:
    desk.add_host("h1", host, env={"TOKEN": {"from_env": "TOKEN"}})
    desk.sweep([{"i": 0}, {"i": 1, "how": "wait"}, {"i": 2}])
    started = desk.farbench("run", "sweep.yaml", "--detach", "--json", TOKEN="very-secret-value")
    run_id = started.json()["run_id"]
    elsewhere = Desk(tmp_path / "elsewhere")
    archive = ("--archive", str(desk.folder / "archive"))
    status = wait_for(lambda: _status(elsewhere, run_id, archive), "two results")
    assert status["hosts"]["h1"]["agent"] == "running"
    desk.open_gate()
    attached = elsewhere.json("attach", run_id, *archive)
    assert attached["counts"] == {"ok": 3}
    assert_complete(desk, run_id, 3)
    kept = [p for p in (*desk.folder.rglob("archive/**/*"), *host.home.rglob("*")) if p.is_file()]
    assert kept
    assert not [p for p in kept if b"very-secret-value" in p.read_bytes()]


def _status(desk: Desk, run_id: str, archive: tuple[str, ...]) -> dict | None:
    status = desk.json("status", run_id, *archive)
    return status if status["hosts"]["h1"]["counts"].get("ok") == 1 else None


def test_no_terminal_no_input_no_matter(desk: Desk, host: Sshd) -> None:
    desk.add_host("h1", host)
    desk.sweep(2)
    command = f"nohup '{sys.executable}' -m orchestrator run sweep.yaml --json <&- >out.json 2>err.txt"
    done = subprocess.run(
        ["/bin/sh", "-c", command], cwd=desk.folder, env=desk.environ, timeout=100, check=False
    )
    assert done.returncode == 0, (desk.folder / "err.txt").read_text()
    assert_complete(desk, desk_runs(desk)[0]["run_id"], 2)


def test_a_controller_that_slept_is_not_obeyed_by_hosts_of_its_successor(desk: Desk, host: Sshd) -> None:
    """The archive is on two laptops. One is closed in the middle; the other takes the run over."""
    desk.add_host("h1", host)
    desk.sweep([{"i": i, "seconds": 0.3} for i in range(6)])
    first, run_id = desk.begin()
    wait_for(lambda: desk.measured_here(run_id), "a first result")
    first.send_signal(signal.SIGSTOP)
    copy = Desk(desk.folder.parent / "other laptop")
    subprocess.run(["cp", "-a", str(desk.folder / "archive"), str(copy.folder / "archive")], check=True)
    assert copy.json("resume", run_id)["counts"] == {"ok": 6}
    assert_complete(copy, run_id, 6)
    assert len(desk.traced()) == 6
    first.send_signal(signal.SIGCONT)
    stdout, stderr = first.communicate(timeout=100)
    # It had nothing to tell the host; what it follows it may still bring home.
    assert first.returncode in (0, 1), stdout + stderr
    assert "Traceback" not in stderr


def test_a_reused_pid_is_never_taken_for_the_agent(desk: Desk, host: Sshd) -> None:
    desk.add_host("h1", host)
    desk.sweep([{"i": 0}, {"i": 1, "how": "wait"}])
    run_id = desk.json("run", "sweep.yaml", "--detach")["run_id"]
    wait_for(lambda: (desk.traces / "waiting").exists(), "the second case")
    (agent,) = agents(host)
    innocent = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        os.kill(agent, signal.SIGKILL)
        identity = host.home / "farbench" / "runs" / run_id / "agent.json"
        identity.write_text(identity.read_text().replace(str(agent), str(innocent.pid)))
        wait_for(lambda: not is_running(agent), "the agent to die")
        assert desk.json("status", run_id)["hosts"]["h1"]["agent"] == "dead"
        desk.open_gate()
        assert desk.json("resume", run_id)["counts"] == {"ok": 2}
        time.sleep(0.1)
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()
    assert_complete(desk, run_id, 2)
