"""A real Slurm cluster for tests: its controller and two nodes, all on this machine, with an sshd's login as the login node."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from .sshd import end_with_the_tests
from .waiting import wait_for

SBIN = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
CPUS = 4
_CONF = """
ClusterName=farbench
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
SlurmctldPort={controller}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/%n.log
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
KillWait=2
Epilog={folder}/epilog
GresTypes=gpu
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={n1} CPUs={cpus} RealMemory=500 Gres=gpu:2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={n2} CPUs={cpus} RealMemory=500 Gres=gpu:2
PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP
"""
# Two files of devices that every machine has stand for the GPUs.
_GRES = "Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n"
# What a node does after each job; a health check may take its time.
_EPILOG = """#!/bin/sh
while [ -e {folder}/busy-after-jobs ]; do sleep 0.1; done
"""


class Cluster:
    """`start` it, give its `environment` to the login node's sshd, `stop` it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._daemons: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> Mapping[str, str]:
        """What the programs of Slurm need to find it."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def start(self) -> None:
        """Returns when both nodes are idle."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "state").mkdir()
        controller, n1, n2 = _free_ports(3)
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        host = socket.gethostname().split(".")[0]
        conf = _CONF.format(
            host=host, user=user, folder=self.folder, controller=controller, n1=n1, n2=n2, cpus=CPUS
        )
        (self.folder / "slurm.conf").write_text(conf)
        (self.folder / "gres.conf").write_text(_GRES)
        (self.folder / "epilog").write_text(_EPILOG.format(folder=self.folder))
        (self.folder / "epilog").chmod(0o755)
        self._daemon("slurmctld", "-D", "-c")
        for node in ("n1", "n2"):
            (self.folder / f"spool-{node}").mkdir()
            self._daemon("slurmd", "-D", "-N", node)
        wait_for(
            lambda: self.ask("sinfo", "-h", "-t", "idle", "-o", "%D", check=False) == "2", "two idle nodes"
        )

    @property
    def busy_after_jobs(self) -> Path:
        """As long as this file is there, a job that has ended keeps its node."""
        return self.folder / "busy-after-jobs"

    def clear(self) -> None:
        """End every job, and wait until the nodes are free."""
        self.busy_after_jobs.unlink(missing_ok=True)
        self.ask("scancel", "--user", str(os.getuid()), check=False)
        wait_for(lambda: not self.ask("squeue", "-h"), "the end of every job")

    def stop(self) -> None:
        """End every job and every daemon."""
        self.clear()
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in self._daemons:
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()

    def ask(self, *line: str, check: bool = True) -> str:
        """What a program of Slurm prints."""
        done = subprocess.run(
            line, env={**os.environ, **self.environment}, capture_output=True, text=True, check=check
        )
        return done.stdout.strip()

    def occupy(self, node: str, cpus: int = CPUS) -> str:
        """A job of somebody else's on a node; its number. Returns when it runs."""
        number = self.ask(
            "sbatch", "--parsable", f"--nodelist={node}", f"--cpus-per-task={cpus}", "--chdir=/",
            "--output=/dev/null", "--wrap", "sleep 600",
        )  # fmt: skip
        wait_for(lambda: self.state(number) == "RUNNING", "the other job")
        return number

    def state(self, number: str) -> str:
        """As squeue says it, or empty when it does not know the job."""
        return self.ask("squeue", "-h", "-t", "all", "-o", "%T", "-j", number, check=False)

    def jobs(self) -> list[str]:
        """Numbers of the jobs of farbench that wait or run, in order."""
        lines = self.ask("squeue", "-h", "-o", "%i %j").splitlines()
        return sorted((line.split()[0] for line in lines if line.split()[1].startswith("farbench-")), key=int)

    def _daemon(self, name: str, *arguments: str) -> None:
        program = shutil.which(name, path=SBIN) or name
        log = (self.folder / f"{name}-{len(self._daemons)}.out").open("wb")
        self._daemons.append(
            subprocess.Popen(
                [program, *arguments],
                env={**os.environ, **self.environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=end_with_the_tests,
            )
        )


def _free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in held]
    for one in held:
        one.close()
    return ports
