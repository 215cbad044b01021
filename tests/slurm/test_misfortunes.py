"""What a cluster does to jobs, and what its programs say of it: nothing is lost, asked for twice, or told wrongly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.faults.conftest import Desk, assert_complete
from tests.faults.test_gpus import Rack
from tests.slurm.conftest import slurm
from tests.slurm.test_slurm import jobs_of
from tests.support.slurm import CPUS, Cluster
from tests.support.sshd import Sshd
from tests.support.waiting import wait_for

TIMED_OUT = "error: Batch job submission failed: Socket timed out on send/recv operation"


def unless(down: Path) -> str:
    """A program of Slurm, to which its controller does not answer as long as a file is there."""
    told = "Unable to contact slurm controller (connect failure)"
    return f'if [ -e "{down}" ]; then echo "{told}" >&2; exit 1; fi\nexec REAL "$@"\n'


def test_a_job_that_slurm_took_without_saying_so_is_the_runs(
    desk: Desk, login_whose: Callable[..., Sshd], cluster: Cluster
) -> None:
    login = login_whose(
        sbatch=f'case "$*" in --version) exec REAL "$@";; esac\nREAL "$@" >/dev/null\necho "sbatch: {TIMED_OUT}" >&2; exit 1\n'
    )
    desk.add_host("c", login, launcher=slurm())
    desk.sweep(3)
    done = desk.json("run", "sweep.yaml")
    assert (done["state"], done["counts"]) == ("finished", {"ok": 3})
    assert_complete(desk, done["run_id"], 3)
    (job,) = jobs_of(desk, done["run_id"])
    assert cluster.ask("squeue", "-h", "-t", "all", "-o", "%A", f"--name=farbench-{done['run_id']}") == job


def test_a_controller_that_does_not_answer_is_waited_for(
    desk: Desk, login_whose: Callable[..., Sshd], cluster: Cluster
) -> None:
    down = desk.folder / "down"
    down.touch()
    silent = unless(down)
    desk.add_host("c", login_whose(sbatch=silent, squeue=silent, scancel=silent), launcher=slurm())
    desk.sweep(3)
    process, run_id = desk.begin()
    assert process.stderr is not None
    said = next(line for line in process.stderr if "contact slurm controller" in line)
    assert said.startswith("c: running: Slurm job: squeue: Unable to contact")
    down.unlink()
    process.communicate(timeout=100)
    assert process.returncode == 0
    assert_complete(desk, run_id, 3)
    assert len(jobs_of(desk, run_id)) == 1


def test_a_run_is_cancelled_though_slurm_does_not_answer(
    desk: Desk, login_whose: Callable[..., Sshd], cluster: Cluster
) -> None:
    down = desk.folder / "down"
    silent = unless(down)
    others = [cluster.occupy("n1"), cluster.occupy("n2")]
    desk.add_host("c", login_whose(squeue=silent, scancel=silent), launcher=slurm())
    desk.sweep(3)
    run_id = desk.json("run", "sweep.yaml", "--detach")["run_id"]
    (job,) = cluster.jobs()
    down.touch()
    assert desk.json("cancel", run_id)["state"] == "cancelled"
    cluster.ask("scancel", *others)
    wait_for(lambda: cluster.state(job) == "COMPLETED", "the job that nobody took back")
    assert desk.traced() == []


def test_what_a_site_prints_around_slurms_answer_does_no_harm(
    desk: Desk, login_whose: Callable[..., Sshd], cluster: Cluster
) -> None:
    evil = r"printf 'Welcome\n\033]0;title\007 12\n'" + '\nREAL "$@"\n'
    others = [cluster.occupy("n1"), cluster.occupy("n2")]
    login = login_whose(sbatch=evil, squeue=r"""REAL "$@" | sed "s/|.*/|\x1b]0;title\x07Why/" """ + "\n")
    desk.add_host("c", login, launcher=slurm())
    desk.sweep(3)
    process = desk.start("run", "sweep.yaml", "--json")
    assert process.stderr is not None
    said = next(line for line in process.stderr if "waits" in line)
    (job,) = cluster.jobs()
    assert said.startswith(f"c: running: Slurm job {job} waits: ")
    assert "Why" in said
    assert "\x1b" not in said
    cluster.ask("scancel", *others)
    assert desk.end(process)["counts"] == {"ok": 3}


def test_a_job_that_is_cancelled_while_its_node_is_busy_with_its_end_is_not_asked_for_again(
    desk: Desk, login: Sshd, cluster: Cluster
) -> None:
    desk.add_host("c", login, launcher=slurm())
    desk.sweep([{"i": 0}, {"i": 1, "how": "wait"}, {"i": 2}])
    process, run_id = desk.begin()
    wait_for(lambda: (desk.traces / "waiting").exists(), "the second case")
    (job,) = cluster.jobs()
    cluster.busy_after_jobs.touch()
    cluster.ask("scancel", job)
    assert process.stderr is not None
    assert any(line.startswith(f"c: running: Slurm job {job} is completing") for line in process.stderr)
    cluster.busy_after_jobs.unlink()
    stdout, _ = process.communicate(timeout=100)
    told = json.loads(stdout)["hosts"]["c"]
    assert told["state"] == "lost"
    assert f"the agent is gone (Slurm job {job} ended: CANCELLED" in told["error"]
    assert cluster.jobs() == []
    assert jobs_of(desk, run_id) == [job]


def test_the_cases_of_a_node_that_must_queue_again_go_to_the_others(
    desk: Desk, login: Sshd, cluster: Cluster
) -> None:
    desk.add_host("c", login, launcher=slurm(nodes=2, cpus_per_task=CPUS))
    desk.sweep([{"i": i, "how": "wait" if i < 2 else "ok"} for i in range(8)], placement="shard")
    process, run_id = desk.begin("--host", "c")
    wait_for(
        lambda: (desk.traces / "waiting").exists() and (desk.traces / "waiting").read_text().count("\n") == 2,
        "two cases at work",
    )
    lost, _ = (jobs_of(desk, run_id, host)[0] for host in ("c-1", "c-2"))
    node = cluster.ask("squeue", "-h", "-o", "%N", "-j", lost)
    other = cluster.ask(
        "sbatch", "--parsable", f"--nodelist={node}", f"--cpus-per-task={CPUS}", "--nice=-1000", "--chdir=/",
        "--output=/dev/null", "--wrap", "sleep 600",
    )  # fmt: skip
    cluster.ask("scancel", "--batch", "--signal=TERM", lost)  # as when its time is over
    wait_for(lambda: cluster.state(other) == "RUNNING", "somebody else on its node")
    wait_for(lambda: len(cluster.jobs()) == 2, "a job that waits")
    desk.open_gate()
    done = desk.end(process)
    assert done["counts"] == {"ok": 8}
    assert {host: told["state"] for host, told in done["hosts"].items()} == {"c-1": "ok", "c-2": "ok"}
    assert_complete(desk, run_id, 8)
    assert jobs_of(desk, run_id, "c-1") == [lost]
    assert cluster.state(other) == "RUNNING"
    wait_for(lambda: cluster.jobs() == [], "the end of both jobs")


def test_gpus_that_slurm_did_not_give_are_told_of(desk: Desk, rack: Rack, cluster: Cluster) -> None:
    login, _ = rack.host("NVIDIA H200", "NVIDIA H200", **cluster.environment)
    desk.add_host("c", login, devices="all", launcher=slurm(cpus_per_task=2))
    desk.sweep(2)
    done = desk.json("run", "sweep.yaml")
    (told,) = [e["message"] for e in desk.journal(done["run_id"], "c") if e["type"] == "problem"]
    assert "Slurm gave this job no GPU, and it measures on all 2 that it sees" in told
    assert "`gpus_per_node`" in told
