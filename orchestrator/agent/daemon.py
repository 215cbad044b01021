"""The agent as a process: takes the run's lock, cleans up after a dead predecessor, supervises, and says how it ended.

It is forked by `launcher`, and tells it over a pipe that it lives.
"""

from __future__ import annotations

import contextlib
import os
import platform
import selectors
import shutil
import signal
import socket
import sys
import traceback
from typing import Any, Dict, Mapping, Sequence

from . import AGENT_VERSION, lock, orphans, procs, slurm
from .devices import DeviceError, discover, masks
from .history import History
from .journal import Journal, JournalFull
from .leases import Leases, user
from .logind import kills_at_logout
from .paths import RunPaths, read_json, write_json
from .runsetup import RunSetup
from .spawning import name_process
from .supervisor import Supervisor
from .wire import portable

LEASE_VARIABLE = "FARBENCH_LEASE_DIR"
"""Another folder for the leases of GPUs: for hosts on which several users must not share one, and for tests."""


_GIVEN = ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS")
"""What tells a job which GPUs are its own."""


def run_agent(paths: RunPaths, secrets: Mapping[str, str], first: bool, tell: int) -> None:
    """Run the agent of one run until its end. Says `ok`, `already`, or what went wrong, on the descriptor `tell`.

    `first`: the run was never begun here, so nothing of it can be left but in its folder."""
    lock_fd = lock.acquire(paths)
    if lock_fd is None:
        os.write(tell, b"already")
        return
    run_locked(paths, secrets, first, tell, lock_fd)


def run_locked(paths: RunPaths, secrets: Mapping[str, str], first: bool, tell: int, lock_fd: int) -> None:
    """As `run_agent`, by whoever has the run's lock already (`lock_fd`); it ends with this process."""
    os.umask(0o077)
    os.chdir("/")
    name_process("farbench-agent")
    orphans.adopt()
    signal.signal(signal.SIGHUP, lambda *_: None)  # a terminal that goes away is none of our business
    try:
        job = read_json(paths.job)
        if not isinstance(job, dict):
            raise ValueError(f"{paths.job} is no job")
        before = read_json(paths.identity)
        if not first or os.path.exists(paths.identity):
            _bury_predecessor(paths, before, str(job["nonce"]))
        history = History.replay(paths.journal)
        journal = Journal(paths)
        _introduce(paths, journal, job, before)
    except Exception as error:  # the boundary of the start: whoever waits for us must hear of it
        traceback.print_exc()
        os.write(tell, f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
        raise SystemExit(1) from error
    os.write(tell, b"ok")
    os.close(tell)
    try:
        _work(paths, job, secrets, journal, history, lock_fd)
    except lock.FolderGone:
        # Another agent may be at work by now, whose processes have our marks: end only what is ours for certain.
        for pid in procs.descendants(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        os._exit(1)
    except JournalFull as error:
        print(f"the journal cannot grow any more: {error}", file=sys.stderr)
        raise SystemExit(1) from error
    except Exception:  # noqa: BLE001 - the process's boundary: tell people, let no worker live on, fail
        traceback.print_exc()
        journal.append("problem", message=f"the agent failed: {traceback.format_exc(limit=-3)}"[:4000])
        journal.close()
        raise SystemExit(70) from None
    finally:
        procs.end(lambda: {*procs.find_marked(str(job["nonce"])), *orphans.adopted()}, grace_s=0.0)


def _work(
    paths: RunPaths,
    job: Mapping[str, Any],
    secrets: Mapping[str, str],
    journal: Journal,
    history: History,
    lock_fd: int,
) -> None:
    logout = None if _slurm_job(job) else kills_at_logout(user())
    if logout is not None:
        journal.append("problem", message=logout)
    devices, why_not = _devices(job, secrets, journal)
    for doubt in (_too_few_processors(devices), _gpus_of_others(devices)) if _slurm_job(job) else ():
        if doubt:
            journal.append("problem", message=doubt)
    # The slots of an allocation are its own; nodes that share a work folder do not share their processors.
    slots = paths.root if _slurm_job(job) else paths.workdir
    leases = Leases(slots, os.environ.get(LEASE_VARIABLE), {"run_id": job["run_id"], "host": job["host"]})
    selector = selectors.DefaultSelector()
    setup = RunSetup(paths, job, secrets, selector)
    supervisor = Supervisor(setup, journal, history, devices, leases, selector, why_not, lock_fd)
    signal.signal(signal.SIGTERM, lambda *_: supervisor.stop())
    signal.signal(signal.SIGINT, lambda *_: supervisor.stop())
    state = supervisor.run()
    shutil.rmtree(paths.work, ignore_errors=True)
    if state == "stopped":
        journal.append(
            "problem", message="the agent was asked to end by a signal; launched again, it goes on"
        )
    else:
        journal.append(
            "agent_finished",
            state=state,
            counts=history.counts,
            batch=supervisor.newest_batch,
            sealed=supervisor.sealed,
            reason=supervisor.gave_up or None,
        )
    journal.close()


def _devices(
    job: Mapping[str, Any], secrets: Mapping[str, str], journal: Journal
) -> "tuple[list[Dict[str, Any]], str]":
    """The devices to measure on; and where there are none, why."""
    # A mask that the user sets for the payloads is one for us: we replace it by a device's own.
    environ = {**os.environ, **masks({**(job.get("env") or {}), **secrets})}
    try:
        devices, problems = discover(job.get("devices", "all"), environ)
    except DeviceError as error:
        devices, problems = [], [str(error)]
    for problem in problems:
        journal.append("problem", message=problem)
    journal.append("devices", devices=devices)
    return devices, "" if devices else "; ".join(["no device can be used", *problems])


def _too_few_processors(devices: Sequence[Mapping[str, Any]]) -> str:
    """Each worker launches its own kernels: without a processor of its own it also measures how long it waits for one."""
    processors = len(os.sched_getaffinity(0))
    if processors >= len(devices):
        return ""
    return (
        f"this job has {processors} processor(s) for {len(devices)} devices, and what a worker does on the host "
        "will be slow: ask for more with `cpus_per_task` in hosts.yaml"
    )


def _gpus_of_others(devices: Sequence[Mapping[str, Any]]) -> str:
    """A job that asked for no GPU may see all of its node: those that Slurm has given to others too."""
    if all(device["kind"] == "cpu" for device in devices) or any(map(os.environ.get, _GIVEN)):
        return ""
    return (
        f"Slurm gave this job no GPU, and it measures on all {len(devices)} that it sees, where others may be at work: "
        "ask for them with `gpus_per_node` in hosts.yaml"
    )


def _bury_predecessor(paths: RunPaths, before: Any, nonce: str) -> None:
    """End what a killed agent left running, and remove half-used working folders."""
    nonces = {nonce}
    if isinstance(before, dict) and isinstance(before.get("nonce"), str):
        nonces.add(before["nonce"])
    for name in paths.requests():
        os.unlink(os.path.join(paths.control, name))  # they were for the predecessor
    for each in nonces:
        procs.end_marked(each, grace_s=0.0)
    shutil.rmtree(paths.work, ignore_errors=True)
    os.makedirs(paths.work, mode=0o700, exist_ok=True)


def _slurm_job(job: Mapping[str, Any]) -> Dict[str, str]:
    number = os.environ.get("SLURM_JOB_ID")
    return {"slurm_job": number} if number and slurm.options(job) is not None else {}


def _introduce(paths: RunPaths, journal: Journal, job: Mapping[str, Any], before: Any) -> None:
    """Say who we are, at which byte of this journal, and whether the host was restarted meanwhile."""
    identity = {**procs.identity(), "nonce": job["nonce"], "run_id": job["run_id"], **_slurm_job(job)}
    write_json(paths.identity, identity)
    journal.append(
        "agent_started",
        host=job["host"],
        python=portable(sys.executable),
        version=platform.python_version(),
        hostname=socket.gethostname(),
        agent_version=AGENT_VERSION,
        offset=journal.size,
        **identity,
    )
    elsewhere = "slurm_job" in identity  # a job's node is another one each time
    if (
        isinstance(before, dict)
        and before.get("boot_id") not in (None, identity["boot_id"])
        and not elsewhere
    ):
        journal.append(
            "problem", message="this host was restarted: what has no result yet is measured from here on"
        )
    journal.sync_soon()
