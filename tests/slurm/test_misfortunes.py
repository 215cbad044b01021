"""What a cluster does to jobs, and what its programs say of it: nothing is lost, asked for twice, or told wrongly."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from orchestrator.agent.followers import Followers
from tests.faults.conftest import Desk, assert_complete
from tests.faults.test_gpus import Rack
from tests.slurm.conftest import queued, slurm
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


def test_a_laptop_that_is_gone_while_slurm_is_asked_leaves_one_job(
    desk: Desk, login_whose: Callable[..., Sshd], cluster: Cluster
) -> None:
    busy = desk.folder / "busy"
    busy.touch()
    login = login_whose(sbatch=f'while [ -e "{busy}" ]; do sleep 0.05; done\nexec REAL "$@"\n')
    desk.add_host("c", login, launcher=slurm())
    desk.sweep(3)
    process, run_id = desk.begin()
    wait_for(lambda: any(login.home.glob("farbench/runs/*/slurm.json")), "a job that is asked for")
    process.kill()
    process.communicate()
    (laid_out,) = login.home.glob("farbench/runs/*/job.json")
    before = laid_out.stat().st_ino
    again = desk.start("resume", run_id, "--json")
    wait_for(lambda: laid_out.stat().st_ino != before, "another launch, while the first one is still asking")
    busy.unlink()
    assert desk.end(again)["counts"] == {"ok": 3}
    asked = cluster.ask("squeue", "-h", "-t", "all", "-o", "%A", f"--name=farbench-{run_id}").split()
    assert asked == jobs_of(desk, run_id)


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


def test_a_job_that_is_cancelled_before_it_begins_says_no_more_than_that(
    desk: Desk, login: Sshd, cluster: Cluster
) -> None:
    run_id, job, _ = queued(desk, cluster, login, 1)
    cluster.ask("scancel", job)
    told = desk.json("attach", run_id, code=3)["hosts"]["c"]["error"]
    assert f"the agent is gone (Slurm job {job} ended: CANCELLED, and no agent began in it), and" in told


def test_a_job_whose_agent_cannot_begin_says_why(desk: Desk, login: Sshd, cluster: Cluster) -> None:
    run_id, job, others = queued(desk, cluster, login, 1)
    (run,) = login.home.glob("farbench/runs/*")
    (run / "logs").rmdir()  # what a node sees where the folder is not shared
    cluster.ask("scancel", *others)
    wait_for(lambda: cluster.state(job) == "FAILED", "the job that cannot begin")
    told = desk.json("attach", run_id, code=3)["hosts"]["c"]["error"]
    assert f"Slurm job {job} ended: FAILED" in told
    assert f"does its node see {run}? The work folder must be on a file system that all nodes share" in told


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


def test_a_file_system_without_locks_is_named(tmp_path: Path) -> None:
    source = tmp_path / "no_locks.c"
    source.write_text("#include <errno.h>\nint flock(int fd, int how) { errno = ENOSYS; return -1; }\n")
    library = tmp_path / "no_locks.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    run = tmp_path / "runs/20261130T000000Z-abcdef"
    run.mkdir(parents=True)
    code = "import sys; from orchestrator.agent.slurm_job import main; main(sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(run), "first"],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"farbench: {run}/agent.lock: this file system has no locks (flock)")
    assert "choose another `workdir`" in done.stderr
    assert "Traceback" not in done.stderr


def test_gpus_that_slurm_did_not_give_are_told_of(desk: Desk, rack: Rack, cluster: Cluster) -> None:
    login, _ = rack.host("NVIDIA H200", "NVIDIA H200", **cluster.environment)
    desk.add_host("c", login, devices="all", launcher=slurm(cpus_per_task=2))
    desk.sweep(2)
    done = desk.json("run", "sweep.yaml")
    (told,) = [e["message"] for e in desk.journal(done["run_id"], "c") if e["type"] == "problem"]
    assert "Slurm gave this job no GPU, and it measures on all 2 that it sees" in told
    assert "`gpus_per_node`" in told


def test_a_follower_on_a_machine_whose_locks_are_not_seen_is_there_while_it_gives_signs(
    tmp_path: Path,
) -> None:
    file = tmp_path / "followers"
    file.touch()
    os.utime(file, (0, 1_000))
    here, afar = Followers(str(file), afar=False), Followers(str(file), afar=True)
    assert (here.any(10.0), afar.any(10.0)) == (False, False)
    os.utime(file, (0, 1_005))
    assert (here.any(20.0), afar.any(20.0)) == (False, True)
    assert afar.any(139.0)
    assert not afar.any(140.0)
    os.utime(file, (0, 1_010))
    assert afar.any(150.0)
