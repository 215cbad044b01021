"""`farbench setup`: real pip and uv, offline, on a real sshd."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.environments import PROFILES
from tests.e2e.conftest import Laptop
from tests.support.places import Place, namespaces_work
from tests.support.sshd import Sshd
from tests.support.waiting import wait_for

from .conftest import make_wheel

BASE = ("--base-python", sys.executable)


def snapshot(folder: Path) -> dict[str, tuple[int, float, int]]:
    """Every path below a folder with what would show a change."""
    found = {}
    for path in [folder, *folder.rglob("*")]:
        entry = path.lstat()
        found[str(path)] = (entry.st_mode, entry.st_mtime, entry.st_ino)
    return found


def say(python: str, code: str) -> str:
    return subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=True, cwd="/"
    ).stdout.strip()


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_an_environment_is_made_used_and_left_alone(
    installer: str, laptop: Laptop, host: Sshd, wheelhouse: Path, with_uv: Callable[[Sshd], None]
) -> None:
    laptop.hosts(host, workdir="~/work dir é'")
    laptop.write("reqs.txt", "# what we compare\nkernels\n")
    if installer == "uv":
        with_uv(host)
    # Settings of the host that would lead an installation elsewhere.
    elsewhere = host.folder / "elsewhere"
    conf = host.home / ".config/pip/pip.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text(f"[global]\ntarget = {elsewhere}\nuser = true\ncache-dir = {elsewhere}/cache\n")
    (host.home / ".config/uv").mkdir()
    (host.home / ".config/uv/uv.toml").write_text(
        f'cache-dir = "{elsewhere}/uv"\n[pip]\ntarget = "{elsewhere}"\n'
    )
    before = snapshot(host.home)
    command = ("setup", "h1", "--requirements", "reqs.txt", "--wheelhouse", str(wheelhouse), *BASE)

    done = laptop.farbench(*command)
    assert done.code == 0, done.stderr
    python = str(host.home / "work dir é'" / "envs/reqs/python")
    assert done.stdout == f"python: {python}\n"
    assert f"making it with {installer}" in done.stderr
    assert say(python, "import kernels, tensors; print(kernels.VERSION, tensors.VERSION)") == "1.0 2.1"
    freeze = json.loads(Path(say(python, "import sys; print(sys.prefix)"), "freeze.json").read_text())
    assert (freeze["name"], freeze["profile"], freeze["installer"]) == ("reqs", "reqs", installer)
    assert {"kernels": "1.0", "tensors": "2.1"}.items() <= freeze["packages"].items()

    # Nothing but the work folder is new, and nothing else was changed.
    after = snapshot(host.home)
    outside = {
        path: facts for path, facts in after.items() if "/work dir é'" not in path and path != str(host.home)
    }
    assert outside == {path: facts for path, facts in before.items() if path != str(host.home)}
    assert not elsewhere.exists()
    root = host.home / "work dir é'" / "envs/reqs"
    assert {path.name for path in root.iterdir()} == {"python", "current", "builds", "log", "lock"}
    for path in [root.parent, root, root / "builds"]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path
    assert stat.S_IMODE((root / "log").stat().st_mode) == 0o600

    again = laptop.farbench(*command, "--json")
    assert again.code == 0, again.stderr
    assert again.json() == {
        "host": "h1", "environment": "reqs", "changed": False, "python": python, "reasons": [], "freeze": freeze,
    }  # fmt: skip
    assert snapshot(root) == {path: facts for path, facts in after.items() if path in snapshot(root)}


def test_a_worker_goes_on_in_its_build_while_the_environment_is_updated(
    laptop: Laptop, host: Sshd, wheelhouse: Path, with_uv: Callable[[Sshd], None]
) -> None:
    with_uv(host)
    laptop.hosts(host)
    laptop.write("reqs.txt", "kernels\n")
    command = ("setup", "h1", "--requirements", "reqs.txt", "--wheelhouse", str(wheelhouse), *BASE)
    assert laptop.farbench(*command).code == 0
    python = str(host.home / "farbench/envs/reqs/python")
    code = "import sys, kernels; print('in', flush=True); sys.stdin.readline(); import kernels.later as l; print(l.VERSION)"
    worker = subprocess.Popen(
        [python, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == "in\n"

    make_wheel(wheelhouse, "kernels", "1.1", "tensors==2.1", {"kernels/later.py": "VERSION = '1.1'\n"})
    updated = laptop.farbench(*command, "--json")
    assert updated.json()["changed"] is True
    assert updated.json()["reasons"] == ["was installed from other requirements, or other wheels"]
    assert say(python, "import kernels.later; print(kernels.later.VERSION)") == "1.1"
    assert len(list((host.home / "farbench/envs/reqs/builds").iterdir())) == 2
    assert worker.communicate("go\n", timeout=60)[0] == "1.0\n"

    assert laptop.farbench(*command, "--force").code == 0
    assert len(list((host.home / "farbench/envs/reqs/builds").iterdir())) == 1, (
        "old builds go when nobody runs in them"
    )


def test_a_failed_update_leaves_the_environment_usable(
    laptop: Laptop, host: Sshd, wheelhouse: Path, with_uv: Callable[[Sshd], None]
) -> None:
    with_uv(host)
    laptop.hosts(host)
    laptop.write("env.txt", "kernels\n")
    command = ("setup", "h1", "--requirements", "env.txt", "--wheelhouse", str(wheelhouse), *BASE)
    assert laptop.farbench(*command).code == 0
    laptop.write("env.txt", "kernels\nsomething-else==7\n")
    done = laptop.farbench(*command)
    assert done.code == 3
    assert "something-else" in done.stderr
    python = str(host.home / "farbench/envs/env/python")
    assert say(python, "import kernels; print(kernels.VERSION)") == "1.0"
    laptop.write("env.txt", "kernels\n")
    assert laptop.farbench(*command, "--json").json()["changed"] is False


def test_an_interrupted_update_leaves_the_environment_usable_and_no_process(
    laptop: Laptop, host: Sshd, wheelhouse: Path, with_uv: Callable[[Sshd], None]
) -> None:
    with_uv(host)
    laptop.hosts(host)
    laptop.write("env.txt", "kernels\n")
    command = ("setup", "h1", "--requirements", "env.txt", "--wheelhouse", str(wheelhouse), *BASE)
    assert laptop.farbench(*command).code == 0
    uv = host.home / ".local/bin/uv"
    real = os.readlink(uv)
    uv.unlink()
    # An installer that has begun, and will not end.
    uv.write_text(
        f'#!/bin/sh\nfor last; do :; done\nmkdir -p "$last/bin"\necho $$ > {host.folder}/pid\nexec sleep 1000\n'
    )
    uv.chmod(0o755)
    process = laptop.start(*command, "--force")
    pid_file = host.folder / "pid"
    pid = int(wait_for(lambda: pid_file.exists() and pid_file.read_text().strip(), "the installer to begin"))
    busy = laptop.farbench(*command, "--force")
    assert busy.code == 3
    assert "another setup is at work on it" in busy.stderr
    process.send_signal(signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the installer to be ended with its controller")

    python = str(host.home / "farbench/envs/env/python")
    assert say(python, "import kernels; print(kernels.VERSION)") == "1.0"
    uv.unlink()
    uv.symlink_to(real)
    wait_for(lambda: laptop.farbench(*command, "--force").code == 0, "the lock to be free")
    assert len(list((host.home / "farbench/envs/env/builds").iterdir())) == 1


def test_what_was_changed_by_hand_is_mended_and_named(
    laptop: Laptop, host: Sshd, wheelhouse: Path, with_uv: Callable[[Sshd], None]
) -> None:
    with_uv(host)
    laptop.hosts(host)
    laptop.write("env.txt", "kernels\n")
    command = ("setup", "h1", "--requirements", "env.txt", "--wheelhouse", str(wheelhouse), *BASE)
    assert laptop.farbench(*command).code == 0
    root = host.home / "farbench/envs/env"
    site = Path(say(str(root / "python"), "import tensors; print(tensors.__path__[0])")).parent
    (site / "tensors-2.1.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: tensors\nVersion: 9.9\n"
    )
    done = laptop.farbench(*command, "--json")
    assert done.json()["reasons"] == ["was changed since it was installed: tensors is 9.9 instead of 2.1"]
    assert done.json()["freeze"]["packages"]["tensors"] == "2.1"


def test_an_environment_that_is_a_link_is_not_followed(laptop: Laptop, host: Sshd, wheelhouse: Path) -> None:
    laptop.hosts(host)
    laptop.write("env.txt", "kernels\n")
    target = host.home / "precious"
    target.mkdir()
    (host.home / "farbench/envs").mkdir(parents=True)
    (host.home / "farbench/envs/env").symlink_to(target)
    done = laptop.farbench("setup", "h1", "--requirements", "env.txt", "--wheelhouse", str(wheelhouse))
    assert done.code == 3
    assert "link to somewhere else" in done.stderr
    assert list(target.iterdir()) == []


def test_indexes_come_from_the_host_and_their_passwords_are_told_nobody(
    laptop: Laptop, host: Sshd, with_uv: Callable[[Sshd], None]
) -> None:
    laptop.hosts(host)
    laptop.write("env.txt", "kernels\n")
    (host.home / ".pip").mkdir()
    (host.home / ".pip/pip.conf").write_text(
        "[global]\nindex-url = http://ann:hunter2@127.0.0.1:9/simple\nretries = 0\ntimeout = 1\n"
    )
    done = laptop.farbench(
        "setup", "h1", "--requirements", "env.txt", "--extra-index", "http://bob:s3cret@127.0.0.1:9/more", "--installer", "pip", *BASE
    )  # fmt: skip
    assert done.code == 3
    assert "http://***@127.0.0.1:9/simple" in done.stderr, "the host's own index was asked"
    assert "127.0.0.1:9/more" in done.stderr
    everything = done.stdout + done.stderr
    for path in (host.home / "farbench").rglob("*"):
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 1_000_000:
            everything += path.read_bytes().decode("utf-8", "replace")
    assert "hunter2" not in everything
    assert "s3cret" not in everything


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("numpy\n--index-url http://x\n", "reqs.txt:2: --index-url has no meaning on a host"),
        ("-r other.txt\n", "reqs.txt:1: -r has no meaning on a host"),
        ("./local.whl\n", "reqs.txt:1: a local path does not travel"),
        ("# nothing\n\n", "reqs.txt: no requirement in it"),
    ],
)
def test_requirements_that_cannot_travel(text: str, message: str, laptop: Laptop, host: Sshd) -> None:
    laptop.hosts(host)
    laptop.write("reqs.txt", text)
    done = laptop.farbench("setup", "h1", "--requirements", "reqs.txt")
    assert done.code == 2
    assert message in done.stderr


def test_wrong_usage(laptop: Laptop, host: Sshd, tmp_path: Path) -> None:
    laptop.hosts(host)
    (tmp_path / "empty").mkdir()
    for arguments, message in (
        (("setup", "h1"), "name either --profile or --requirements"),
        (("setup", "h1", "--profile", "fp4-slg"), "did you mean"),
        (("setup", "h1", "--profile", "cpu", "--name", "../x"), "no name for an environment"),
        (("setup", "h1", "--profile", "cpu", "--wheelhouse", str(tmp_path / "empty")), "no wheel in it"),
        (("setup", "nobody", "--profile", "cpu"), "no host 'nobody'"),
    ):
        done = laptop.farbench(*arguments)
        assert (done.code, message in done.stderr) == (2, True), done.stderr


def test_a_python_that_has_no_wheels_of_the_profile_is_refused(
    laptop: Laptop, host: Sshd, wheelhouse: Path
) -> None:
    laptop.hosts(host)
    done = laptop.farbench(
        "setup", "h1", "--profile", "cpu", "--wheelhouse", str(wheelhouse), "--base-python", "/bin/true"
    )
    assert done.code == 3
    assert (
        "no interpreter to make the environment from (Python 3.10 to 3.13 is needed; /bin/true: does not work)"
        in done.stderr
    )
    assert "--base-python" in done.stderr
    assert "PyTorch's own index" not in done.stderr
    online = laptop.farbench("setup", "h1", "--profile", "cpu", "--base-python", "/bin/true")
    assert online.code == 3
    assert "cpu: the usual index has torch with CUDA's libraries only" in online.stderr


@pytest.mark.parametrize("profile", [name for name in PROFILES if name != "cpu"])
def test_a_profile_for_gpus_is_not_installed_where_there_is_none(
    laptop: Laptop, host: Sshd, wheelhouse: Path, profile: str
) -> None:
    laptop.hosts(host, devices={"cpu": 1})
    command = (
        "setup", "h1", "--profile", profile, "--wheelhouse", str(wheelhouse), "--base-python", "/bin/true"
    )  # fmt: skip
    done = laptop.farbench(*command)
    assert done.code == 2
    assert "h1 has no GPU" in done.stderr
    assert "several gigabytes" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (host.home / "farbench" / "envs").exists()
    insisted = laptop.farbench(*command, "--yes")
    assert insisted.code == 3
    assert "no interpreter to make the environment from" in insisted.stderr


def test_every_profile_pins_a_pair_that_fits() -> None:
    from orchestrator.doctor.fit import build_of, misfit

    pinned = {
        name: dict(line.split("==") for line in profile.requirements if "==" in line)
        for name, profile in PROFILES.items()
    }
    cuda = {"gpu-cu130": "13.0", "gpu-cu129": "12.9", "fp4-sgl": "12.8"}
    for name, pins in pinned.items():
        for distribution in pins.keys() & {"sgl-kernel", "sglang-kernel"}:
            assert build_of(distribution, pins[distribution]) is not None
            assert misfit(distribution, pins[distribution], pins["torch"], cuda[name]) is None
    assert (pinned["fp4-sgl"]["torch"], pinned["fp4-sgl"]["sgl-kernel"]) == ("2.9.1", "0.3.21")


def test_a_work_folder_without_programs_is_refused_before_anything_is_installed(
    laptop: Laptop, make_sshd: Callable[..., Sshd], wheelhouse: Path, tmp_path: Path
) -> None:
    """The environment's `python` is a program that lies there."""
    work = tmp_path / "noexec"
    work.mkdir()
    place = Place(tmp_path, [f"mount -t tmpfs -o noexec tmpfs '{work}'"]) if namespaces_work() else None
    try:
        server = make_sshd(shell=place.shell if place is not None else "/bin/bash")
        laptop.hosts(server, workdir=str(work))
        laptop.write("reqs.txt", "kernels\n")
        done = laptop.farbench(
            "setup", "h1", "--requirements", "reqs.txt", "--wheelhouse", str(wheelhouse), *BASE
        )
    finally:
        if place is not None:
            place.close()
    if place is None:  # nothing can be mounted here
        assert done.code == 0
        return
    assert done.code == 3
    assert "programs cannot be run there (Permission denied): mounted noexec?" in done.stderr
    assert "Installing" not in done.stderr
