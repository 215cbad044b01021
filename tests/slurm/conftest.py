"""A cluster, and a desk from which its login node is reached."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agent.host.conftest import fake_nvml_library
from tests.faults.conftest import Desk, desk
from tests.faults.test_gpus import Rack
from tests.support.slurm import Cluster
from tests.support.sshd import Sshd
from tests.support.waiting import wait_for

__all__ = ["desk", "fake_nvml_library"]


@pytest.fixture(scope="session")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("slurm") / "cluster")
    made.start()
    yield made
    made.stop()


@pytest.fixture
def cluster(running_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster without a job."""
    yield running_cluster
    running_cluster.clear()


@pytest.fixture
def login(make_sshd: Callable[..., Sshd], cluster: Cluster, tmp_path: Path) -> Sshd:
    """The cluster's login node."""
    known = " ".join(f'{name}="{value}"' for name, value in cluster.environment.items())
    return make_sshd(SetEnv=f'HOME="{tmp_path}/outer_home" {known}')


@pytest.fixture
def rack(
    fake_nvml_library: Path,
    make_sshd: Callable[..., Sshd],
    tmp_path: Path,
) -> Rack:
    return Rack(fake_nvml_library, make_sshd, tmp_path)


@pytest.fixture
def host_without_slurm(make_sshd: Callable[..., Sshd], tmp_path: Path) -> Sshd:
    """A host on which nobody finds Slurm's programs, as they are on another one's path only."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("python3", "sh", "id", "env"):
        (folder / name).symlink_to(shutil.which(name) or name)
    return make_sshd(shell="/bin/sh", SetEnv=f'HOME="{tmp_path}/outer_home" PATH="{folder}"')


@pytest.fixture
def login_whose(make_sshd: Callable[..., Sshd], cluster: Cluster, tmp_path: Path) -> Callable[..., Sshd]:
    """A login node where a program of Slurm is a script of the site's, in which REAL is that program."""

    def make(**scripts: str) -> Sshd:
        folder = tmp_path / "site"
        folder.mkdir()
        for name, text in scripts.items():
            script = folder / name
            script.write_text("#!/bin/sh\n" + text.replace("REAL", shutil.which(name) or name))
            script.chmod(0o755)
        known = " ".join(f'{name}="{value}"' for name, value in cluster.environment.items())
        return make_sshd(SetEnv=f'HOME="{tmp_path}/outer_home" PATH="{folder}:{os.environ["PATH"]}" {known}')

    return make


def slurm(**asked: object) -> dict[str, object]:
    """The `launcher` of an entry of hosts.yaml."""
    return {"slurm": {"partition": "main", **asked}}


def queued(desk: Desk, cluster: Cluster, login: Sshd, cases: int) -> tuple[str, str, list[str]]:
    """A run, left alone, whose job waits for nodes that others have: its id, its job, and those of the others."""
    others = [cluster.occupy("n1"), cluster.occupy("n2")]
    desk.add_host("c", login, launcher=slurm())
    desk.sweep(cases)
    run_id = desk.json("run", "sweep.yaml", "--detach")["run_id"]
    (job,) = cluster.jobs()
    return run_id, job, others


def at_the_second_of_three(
    desk: Desk, cluster: Cluster, login: Sshd
) -> tuple[subprocess.Popen[str], str, str]:
    """A run that is followed, and waits at its second case: the command, the run's id, and its job."""
    desk.add_host("c", login, launcher=slurm())
    desk.sweep([{"i": 0}, {"i": 1, "how": "wait"}, {"i": 2}])
    process, run_id = desk.begin()
    wait_for(lambda: (desk.traces / "waiting").exists(), "the second case")
    (job,) = cluster.jobs()
    return process, run_id, job
