"""What happens on the host: agents, workers and their children die, disks fill, clocks are wrong, the machine restarts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from orchestrator.agent.logind import kills_at_logout
from tests.faults.conftest import Desk, agents, assert_complete, is_running, kill_host
from tests.support.sshd import Sshd
from tests.support.waiting import wait_for

IS_ROOT = os.geteuid() == 0
MIB = 1024 * 1024


def test_the_agent_is_killed(desk: Desk, host: Sshd) -> None:
    desk.add_host("h1", host)
    desk.sweep([{"i": i, "seconds": 0.2} for i in range(6)])
    process, run_id = desk.begin()
    for count in (1, 3):
        wait_for(lambda: desk.measured_here(run_id) >= count, "results")  # noqa: B023
        for agent in agents(host):
            os.kill(agent, signal.SIGKILL)
    done = desk.end(process)
    assert done["counts"] == {"ok": 6}
    assert "the agent is gone; starting it again" in done["said"]
    assert_complete(desk, run_id, 6)
    starts = [event for event in desk.journal(run_id, "h1") if event["type"] == "agent_started"]
    assert len(starts) >= 2


def test_a_worker_is_killed_and_only_what_it_did_is_crashed(desk: Desk, host: Sshd) -> None:
    desk.add_host("h1", host)
    desk.sweep([{"i": i, "how": "wait" if i == 2 else "ok"} for i in range(5)])
    process, run_id = desk.begin()
    wait_for(lambda: (desk.traces / "waiting").exists(), "the third case")
    os.kill(int((desk.traces / "waiting").read_text()), signal.SIGKILL)
    process.communicate(timeout=100)
    assert process.returncode == 1
    results = assert_complete(desk, run_id, 5, bad={2: "crashed"})
    assert "killed by signal 9 (SIGKILL)" in results[2]["reason"]


def test_an_open_run_is_completed_before_what_failed_is_tried_again(desk: Desk, host: Sshd) -> None:
    desk.add_host("h1", host)
    desk.sweep([{"i": i, "how": "kill" if i == 1 else "ok"} for i in range(3)])
    run_id = desk.json("run", "sweep.yaml", "--detach")["run_id"]
    tried = desk.farbench("resume", run_id, "--retry", "crashed", "--json")
    assert "host entries stored in the run; `farbench run` takes changed ones\n" in tried.stderr
    assert tried.code == 1
    assert_complete(desk, run_id, 3, bad={1: "crashed"})
    again = tried.json()
    assert again["run_id"] != run_id
    assert again["counts"] == {"crashed": 1}
    (result,) = desk.results(again["run_id"])
    assert result["params"]["i"] == 1
    whole, part = desk.json("query", "select expected from runs order by resumes nulls first")["rows"]
    assert (whole["expected"], part["expected"]) == (3, 1)


def test_workers_that_do_not_end_and_children_that_left(desk: Desk, host: Sshd) -> None:
    """One ignores SIGTERM past its time; one dies and leaves a child in a session of its own."""
    desk.add_host("h1", host)
    desk.sweep(
        [{"i": 0}, {"i": 1, "how": "deaf"}, {"i": 2, "how": "orphan"}, {"i": 3}],
        timeout_s=1,
        compile_timeout_s=1,
    )
    process, run_id = desk.begin()
    process.communicate(timeout=100)
    results = assert_complete(desk, run_id, 4, bad={1: "timeout", 2: "crashed"})
    assert "_timeout_s = 1 s" in results[1]["reason"] or "timeout_s = 1 s" in results[1]["reason"]
    (orphan,) = map(int, (desk.traces / "orphans").read_text().split())
    assert not is_running(orphan)
    assert not agents(host)


def test_a_gigabyte_of_output_goes_to_a_bounded_log(desk: Desk, host: Sshd) -> None:
    desk.add_host("h1", host)
    desk.sweep([{"i": 0, "how": "flood"}, {"i": 1}, {"i": 2}])
    process, run_id = desk.begin()
    (agent,) = wait_for(lambda: agents(host), "the agent")
    peak = 0
    while process.poll() is None:
        status = Path(f"/proc/{agent}/status")
        try:
            peak = max(
                peak,
                *(
                    int(line.split()[1])
                    for line in status.read_text().splitlines()
                    if line.startswith("VmHWM")
                ),
            )
        except (OSError, TypeError):
            break
    process.communicate(timeout=100)
    results = assert_complete(desk, run_id, 3, bad={0: "error"})
    assert 0 < peak < 40 * 1024
    tail = results[0]["log_tail"]
    assert "last words" in tail
    assert tail.endswith("ValueError: after the flood")
    assert "99%" in tail
    assert "98%" not in tail
    assert not any(char in tail for char in "\0\x1b\r")
    assert len(tail) <= 4096
    logs = list((host.home / "farbench" / "runs" / run_id / "logs").glob("cpu0-*.log"))
    assert 0 < sum(log.stat().st_size for log in logs) < 66 * MIB
    shown = desk.farbench("logs", run_id, "--tail", "40")
    assert shown.code == 0
    assert "h1/cpu0-001  last words\n" in shown.stdout
    assert "\x1b" not in shown.stdout


@pytest.fixture
def small_disk(host: Sshd) -> Iterator[dict[str, str]]:
    """The workdir on a disk of 16 MiB; where mounting is not allowed, files that may not grow beyond 8 MiB."""
    if not IS_ROOT:
        yield {"activate": "ulimit -f 8192"}
        return
    workdir = host.home / "farbench"
    workdir.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=0700", "none", str(workdir)], check=True)
    yield {}
    subprocess.run(["umount", "-l", str(workdir)], check=True)


def test_a_payload_fills_the_disk(desk: Desk, host: Sshd, small_disk: dict[str, str]) -> None:
    """Its case is an error. What the full disk cost besides is measured by `resume`, in the same run."""
    desk.add_host("h1", host, **small_disk)
    desk.sweep([{"i": i, "how": "fill" if i == 1 else "ok"} for i in range(5)])
    process, run_id = desk.begin()
    stdout, stderr = process.communicate(timeout=100)
    document = json.loads(stdout)
    tries = 0
    while document["state"] == "lost" and tries < 3:
        assert "the disk is full" in document["hosts"]["h1"]["error"], stderr
        document = json.loads(desk.farbench("resume", run_id, "--json").stdout)
        tries += 1
    assert document["counts"] == {"ok": 4, "error": 1}
    assert_complete(desk, run_id, 5, bad={1: "error"})
    if IS_ROOT:
        assert "h1: running: work folder: 1" in stderr  # … MiB free


def test_a_case_that_eats_all_memory_is_out_of_memory(desk: Desk, make_sshd: Callable[..., Sshd]) -> None:
    """By the kernel where a control group can be had, else by its own limit."""
    within: tuple[str, ...] = ()
    changes = {"activate": "ulimit -v 1500000"}
    group = Path(f"/sys/fs/cgroup/memory/farbench-test-{os.getpid()}")
    if IS_ROOT and group.parent.is_dir():
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(700 * MIB))
        within, changes = ("sh", "-c", f'echo $$ >{group}/cgroup.procs; exec "$@"', "sh"), {}
    host = make_sshd(within=within)
    try:
        desk.add_host("h1", host, **changes)
        desk.sweep([{"i": i, "how": "eat" if i == 1 else "ok"} for i in range(3)])
        process, run_id = desk.begin()
        process.communicate(timeout=100)
        results = assert_complete(desk, run_id, 3, bad={1: "oom"})
        assert "memory" in results[1]["reason"].lower()
    finally:
        kill_host(host)
        if group.exists():
            wait_for(lambda: not (group / "cgroup.procs").read_text(), "the group to be empty")
            group.rmdir()


@pytest.mark.parametrize("loses_files", [False, True], ids=["files stay", "files are lost"])
def test_the_host_restarts_in_the_middle(
    desk: Desk, make_sshd: Callable[..., Sshd], tmp_path: Path, loses_files: bool
) -> None:
    boot_id = tmp_path / "boot_id"
    within: tuple[str, ...] = ()
    if IS_ROOT:
        mount = 'mount --bind "$0" /proc/sys/kernel/random/boot_id; exec "$@"'
        within = ("unshare", "-m", "sh", "-c", mount, str(boot_id))
    boot_id.write_text(f"{uuid.uuid4()}\n")
    host = make_sshd(within=within)
    desk.add_host("h1", host)
    desk.sweep([{"i": i, "seconds": 0.2} for i in range(6)])
    process, run_id = desk.begin()
    wait_for(lambda: desk.measured_here(run_id) >= 2, "two results")
    kill_host(host)
    before = desk.measured_here(run_id)
    if loses_files:
        shutil.rmtree(host.home / "farbench")  # a work folder in memory
    boot_id.write_text(f"{uuid.uuid4()}\n")
    host.start()
    done = desk.end(process)
    assert done["counts"] == {"ok": 6}
    assert_complete(desk, run_id, 6)
    assert len(desk.traced()) <= 6 + 1 + (
        before < 2
    )  # what was on when the power went, and what had not come home
    problems = [event["message"] for event in desk.journal(run_id, "h1") if event["type"] == "problem"]
    if IS_ROOT and not loses_files:
        assert any("this host was restarted" in problem for problem in problems)


def test_the_clock_of_the_host_is_two_hours_off(
    desk: Desk, make_sshd: Callable[..., Sshd], tmp_path: Path
) -> None:
    """The agent's Python sees another time of day; the laptop is in Kolkata."""
    folder = tmp_path / "shifted"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "shifted.py").write_text("import time\nreal = time.time\ntime.time = lambda: real() + 7200\n")
    (packages / "shifted.pth").write_text("import shifted\n")
    shifted, right = make_sshd(), make_sshd()
    desk.environ["TZ"] = "Asia/Kolkata"
    desk.add_host("h1", shifted, agent_python=str(folder / "bin" / "python"))
    desk.add_host("h2", right)
    desk.sweep(3)
    began = datetime.now(UTC)
    process, run_id = desk.begin()
    done = desk.end(process)
    assert (
        "its clock is 2:00:00 h ahead of this machine's" in done["said"]
        or "its clock is 1:59:59 h ahead" in done["said"]
    )
    results = desk.results(run_id)
    assert sorted((r["host"], r["params"]["i"]) for r in results) == sorted(
        (h, i) for h in ("h1", "h2") for i in range(3)
    )
    for result in results:
        started = datetime.fromisoformat(result["started_at"])
        hours = (started - began).total_seconds() / 3600
        assert round(hours) == (2 if result["host"] == "h1" else 0)
        assert started.utcoffset() is not None
        assert started.utcoffset().total_seconds() == 0  # type: ignore[union-attr]
        assert 0 <= result["duration_s"] < 60
    run = json.loads((desk.folder / "archive" / "runs" / run_id / "run.json").read_text())
    assert abs(run["hosts"]["h1"]["clock_offset_s"] - 7200) < 30
    assert abs(run["hosts"]["h2"]["clock_offset_s"]) < 30
    assert run["started_at"].endswith("Z")


def test_cancel_ends_what_is_left_also_of_a_dead_agent(desk: Desk, host: Sshd) -> None:
    desk.add_host("h1", host)
    desk.sweep([{"i": 0}, {"i": 1, "how": "deaf"}, {"i": 2}])
    process, run_id = desk.begin()
    wait_for(lambda: desk.measured_here(run_id), "a first result")
    cancelled = desk.json("cancel", run_id)
    assert cancelled["state"] == "cancelled"
    assert cancelled["counts"] == {"ok": 1, "cancelled": 2}
    stdout, stderr = process.communicate(timeout=100)
    assert json.loads(stdout)["state"] == "cancelled", stderr
    assert not agents(host)
    # A second run, whose agent is killed before it is cancelled.
    process, run_id = desk.begin()
    wait_for(lambda: desk.measured_here(run_id), "a first result")
    process.kill()
    process.communicate()
    for agent in agents(host):
        os.kill(agent, signal.SIGKILL)
    cancelled = desk.json("cancel", run_id)
    assert (cancelled["state"], cancelled["counts"]) == ("cancelled", {"ok": 1, "cancelled": 2})
    # The device is free at once.
    desk.sweep([{"i": 5}])
    assert desk.json("run", "sweep.yaml", "--no-wait")["counts"] == {"ok": 1}


def test_a_host_that_kills_at_logout_is_told_of_while_the_run_goes_on(
    desk: Desk, make_sshd: Callable[..., Sshd], tmp_path: Path
) -> None:
    """And when it has done so, the run is taken up again."""
    conf = tmp_path / "logind.conf"
    conf.write_text("[Login]\nKillUserProcesses=yes\nKillExcludeUsers=\n")
    if not IS_ROOT:
        (tmp_path / "run/systemd/system").mkdir(parents=True)
        (tmp_path / "etc/systemd").mkdir(parents=True)
        shutil.copy(conf, tmp_path / "etc/systemd/logind.conf")
        assert "enable-linger" in str(kills_at_logout("anna", str(tmp_path)))
        return
    script = (
        "mount -t tmpfs none /run && mkdir -p /run/sshd /run/systemd/system && "
        'mount -t tmpfs none /etc/systemd && cp "$0" /etc/systemd/logind.conf && exec "$@"'
    )
    host = make_sshd(within=("unshare", "-m", "sh", "-c", script, str(conf)))
    desk.add_host("h1", host)
    desk.sweep([{"i": i, "seconds": 0.2} for i in range(4)])
    run_id = desk.json("run", "sweep.yaml", "--detach")["run_id"]
    for agent in agents(host):
        os.kill(agent, signal.SIGKILL)  # what logind does
    assert desk.json("resume", run_id)["counts"] == {"ok": 4}
    assert_complete(desk, run_id, 4)
    problems = [event["message"] for event in desk.journal(run_id, "h1") if event["type"] == "problem"]
    assert any("enable-linger" in problem for problem in problems)
