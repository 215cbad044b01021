"""Sweeps on a cluster: the agent runs in jobs of a real Slurm, and nothing is lost by what happens to those."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.faults.conftest import Desk, agents, assert_complete
from tests.faults.test_gpus import Rack
from tests.slurm.conftest import at_the_second_of_three, queued, slurm
from tests.support.slurm import CPUS, Cluster
from tests.support.sshd import Sshd
from tests.support.waiting import wait_for


def jobs_of(desk: Desk, run_id: str, host: str = "c") -> list[str]:
    """The jobs in which the agents of a run began, in order."""
    return [e["slurm_job"] for e in desk.journal(run_id, host) if e["type"] == "agent_started"]


def test_a_sweep_is_measured_in_a_job(desk: Desk, login: Sshd, cluster: Cluster) -> None:
    desk.add_host("c", login, devices={"cpu": 2}, launcher=slurm(cpus_per_task=2, time=5))
    desk.sweep([{"i": i, "seconds": 0.2} for i in range(4)])
    done = desk.json("run", "sweep.yaml")
    assert (done["state"], done["counts"], done["hosts"]["c"]["state"]) == ("finished", {"ok": 4}, "ok")
    assert_complete(desk, done["run_id"], 4)
    (job,) = jobs_of(desk, done["run_id"])
    wait_for(lambda: cluster.state(job) == "COMPLETED", "the end of the job")
    shown = cluster.ask("scontrol", "show", "job", job)
    assert f"JobName=farbench-{done['run_id']}" in shown
    assert "NumCPUs=2" in shown
    assert "TimeLimit=00:05:00" in shown


def test_a_job_that_waits_is_told_of_and_the_laptop_may_close(
    desk: Desk, login: Sshd, cluster: Cluster
) -> None:
    run_id, job, others = queued(desk, cluster, login, 3)
    status = desk.json("status", run_id)
    assert status["hosts"]["c"]["agent"] == "running"
    assert f"Slurm job {job} waits" in status["hosts"]["c"]["waiting"]
    assert f"Slurm job {job} waits" in desk.farbench("status", run_id).stdout
    collected = desk.json("gc", "c")
    assert (collected["removed"], collected["problems"]) == ([], [])
    process = desk.start("attach", run_id, "--json")
    assert process.stderr is not None
    assert any(f"c: running: Slurm job {job} waits" in line for line in process.stderr)  # reads to that line
    cluster.ask("scancel", *others)
    process.communicate(timeout=100)
    assert process.returncode == 0
    assert_complete(desk, run_id, 3)
    assert jobs_of(desk, run_id) == [job]


def test_a_run_whose_job_waits_is_cancelled_with_it(desk: Desk, login: Sshd, cluster: Cluster) -> None:
    run_id, job, _ = queued(desk, cluster, login, 3)
    done = desk.json("cancel", run_id, code=0)
    assert done["state"] == "cancelled"
    assert cluster.state(job) == "CANCELLED"
    assert cluster.jobs() == []


def test_a_run_is_cancelled_while_it_measures(desk: Desk, login: Sshd, cluster: Cluster) -> None:
    desk.add_host("c", login, launcher=slurm())
    desk.sweep([{"i": 0}, {"i": 1, "how": "wait"}, {"i": 2}])
    run_id = desk.json("run", "sweep.yaml", "--detach")["run_id"]
    wait_for(lambda: (desk.traces / "waiting").exists(), "the second case")
    desk.json("cancel", run_id)
    wait_for(lambda: cluster.jobs() == [], "the end of the job")
    assert {r["params"]["i"]: r["status"] for r in desk.results(run_id)} == {
        0: "ok", 1: "cancelled", 2: "cancelled",
    }  # fmt: skip


@pytest.mark.parametrize("how", ["killed", "time is over"])
def test_an_agent_that_ends_before_its_time_goes_on_in_another_job(
    desk: Desk, login: Sshd, cluster: Cluster, how: str
) -> None:
    process, run_id, job = at_the_second_of_three(desk, cluster, login)
    if how == "killed":
        os.kill(agents(login)[0], signal.SIGKILL)
    else:  # what Slurm does half a minute before the job's time is over
        cluster.ask("scancel", "--batch", "--signal=TERM", job)
    desk.open_gate()
    done = desk.end(process)
    assert done["counts"] == {"ok": 3}
    assert f"the agent is gone (Slurm job {job} ended: " in done["said"]
    assert "starting it again" in done["said"]
    assert_complete(desk, run_id, 3)
    first, second = jobs_of(desk, run_id)
    assert (first, int(second) > int(first)) == (job, True)
    told = [e["message"] for e in desk.journal(run_id, "c") if e["type"] == "problem"]
    assert not any("host was restarted" in message for message in told)


def test_a_job_that_somebody_cancels_is_not_asked_for_again_until_resume(
    desk: Desk, login: Sshd, cluster: Cluster
) -> None:
    process, run_id, job = at_the_second_of_three(desk, cluster, login)
    cluster.busy_after_jobs.touch()  # meanwhile Slurm does not say yet how the job has ended
    sign = next(login.home.glob("farbench/runs/*/followers.lock"))
    before = sign.stat().st_mtime_ns
    assert process.stderr is not None
    next(line for line in process.stderr if line == "c: running\n")
    cluster.ask("scancel", job)
    said = next(line for line in process.stderr if "Slurm job" in line)
    assert said.startswith(f"c: running: Slurm job {job} is completing")
    assert sign.stat().st_mtime_ns > before  # a follower's, for agents that do not see its lock
    cluster.busy_after_jobs.unlink()
    stdout, stderr = process.communicate(timeout=100)
    assert process.returncode == 1, stderr
    told = json.loads(stdout)["hosts"]["c"]
    assert told["state"] == "lost"
    assert f"the agent is gone (Slurm job {job} ended: CANCELLED" in told["error"]
    assert "`farbench resume` starts it again" in told["error"]
    assert cluster.jobs() == []
    desk.open_gate()
    assert desk.json("resume", run_id)["counts"] == {"ok": 3}
    assert_complete(desk, run_id, 3)
    assert [t["case"] for t in desk.traced()].count(0) == 1


def test_cases_are_shared_by_the_nodes_of_one_entry(desk: Desk, login: Sshd, cluster: Cluster) -> None:
    desk.add_host("c", login, devices={"cpu": 2}, launcher=slurm(nodes=2, cpus_per_task=CPUS))
    desk.sweep([{"i": i, "how": "wait"} for i in range(8)], placement="shard")
    plan = desk.json("plan", "sweep.yaml")
    assert {placement["host"] for placement in plan["placements"]} == {"c-1", "c-2"}
    process, run_id = desk.begin("--host", "c")
    for host in ("c-1", "c-2"):
        wait_for(
            lambda: any(event["type"] == "case_started" for event in desk.journal(run_id, host)),  # noqa: B023
            "a case on each node",
        )
    desk.open_gate()
    done = desk.end(process)
    assert (done["counts"], set(done["hosts"])) == ({"ok": 8}, {"c-1", "c-2"})
    assert_complete(desk, done["run_id"], 8)
    shares = [desk.measured_here(done["run_id"], host) for host in ("c-1", "c-2")]
    assert sum(shares) == 8
    assert min(shares) > 0


def test_a_node_that_is_still_waited_for_when_all_is_measured_is_given_up(
    desk: Desk, login: Sshd, cluster: Cluster
) -> None:
    cluster.occupy("n1")
    desk.add_host("c", login, launcher=slurm(nodes=2, cpus_per_task=CPUS))
    desk.sweep(4, placement="shard")
    done = desk.json("run", "sweep.yaml")
    assert (done["state"], done["counts"]) == ("finished", {"ok": 4})
    assert {host: told["state"] for host, told in done["hosts"].items()} == {"c-1": "ok", "c-2": "ok"}
    assert_complete(desk, done["run_id"], 4)
    wait_for(lambda: cluster.jobs() == [], "the end of both jobs")
    assert sorted(len(jobs_of(desk, done["run_id"], host)) for host in ("c-1", "c-2")) == [0, 1]


def test_an_agent_measures_on_the_gpus_of_its_allocation_only(
    desk: Desk, rack: Rack, cluster: Cluster
) -> None:
    login, uuids = rack.host("NVIDIA H200", "NVIDIA H200", **cluster.environment)
    desk.add_host("c", login, devices="all", launcher=slurm(gpus_per_node=1))
    desk.sweep(3)
    done = desk.json("run", "sweep.yaml")
    assert done["counts"] == {"ok": 3}
    assert {trace["visible"] for trace in desk.traced()} == {uuids[0]}
    assert [d["uuid"] for d in json.loads(
        (desk.folder / "archive/runs" / done["run_id"] / "run.json").read_text()
    )["hosts"]["c"]["devices"]] == [uuids[0]]  # fmt: skip


def test_what_slurm_refuses_is_told_in_its_words(desk: Desk, login: Sshd, cluster: Cluster) -> None:
    desk.add_host("c", login, launcher={"slurm": {"partition": "gpus"}})
    desk.sweep(1)
    done = desk.farbench("run", "sweep.yaml")
    assert done.code == 3
    assert "invalid partition specified: gpus" in done.stderr
    assert "Traceback" not in done.stderr
    told = desk.json("doctor", "c", code=3)["hosts"]["c"]["checks"]
    (check,) = [check for check in told if check["name"] == "slurm"]
    assert check["state"] == "failed"
    assert "invalid partition" in check["found"]
    assert "hosts.yaml" in check["fix"]


def test_doctor_asks_slurm_and_judges_no_gpus_of_the_login_node(
    desk: Desk, login: Sshd, cluster: Cluster
) -> None:
    desk.add_host("c", login, launcher=slurm(nodes=2))
    checks = {c["name"]: c for c in desk.json("doctor", "c")["hosts"]["c"]["checks"]}
    assert checks["slurm"]["state"] == "ok"
    assert "to start at" in checks["slurm"]["found"]
    assert checks["shell"]["state"] == "ok"
    assert {checks[name]["state"] for name in ("load", "driver")} == {"skipped"}


def test_a_host_without_slurm_says_so(desk: Desk, host_without_slurm: Sshd) -> None:
    desk.add_host("c", host_without_slurm, launcher=slurm())
    desk.sweep(1)
    done = desk.farbench("run", "sweep.yaml")
    assert done.code == 3
    assert "there is no sbatch here: is this a login node of the cluster?" in done.stderr


def test_a_secret_is_not_given_to_slurm(desk: Desk, login: Sshd) -> None:
    desk.add_host("c", login, launcher=slurm(), env={"HF_TOKEN": {"from_env": "MY_TOKEN"}})
    desk.sweep(1)
    done = desk.farbench("run", "sweep.yaml", MY_TOKEN="hunter2")
    assert done.code == 2
    assert "host 'c': HF_TOKEN is `from_env`, and Slurm would write it to its own files" in done.stderr
    assert "Export it in `activate`" in done.stderr
    doctor = desk.farbench("doctor", "c", "--json", MY_TOKEN="hunter2")
    assert doctor.code == 3
    (check,) = [check for check in doctor.json()["hosts"]["c"]["checks"] if check["name"] == "env"]
    assert (check["state"], "Slurm would write it" in check["found"]) == ("failed", True)


def test_a_node_that_does_not_see_the_work_folder_says_so(tmp_path) -> None:
    code = "import sys; from orchestrator.agent.slurm_job import main; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "runs/r1"), "first"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "the work folder must be on a file system that all nodes share" in done.stderr
