from __future__ import annotations

import json
import os
import platform
import socket
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from orchestrator.agent import probe as probe_module
from orchestrator.agent import procs
from orchestrator.agent.logind import kills_at_logout
from orchestrator.agent.probe import probe
from tests.support.waiting import wait_for

from .conftest import FakeDriver, gpu

CPU = {"devices": {"cpu": 1}}


def test_a_host_is_described(tmp_path: Path) -> None:
    before = time.time()
    facts = probe({**CPU, "workdir": str(tmp_path / "not" / "there" / "yet"), "modules": []})
    assert facts["problems"] == []
    assert facts["hostname"] == socket.gethostname()
    assert facts["boot_id"] == procs.boot_id()
    assert facts["uid"] == os.getuid()
    assert before <= facts["time"] <= time.time()
    assert len(facts["load_average"]) == 3
    free = os.statvfs(tmp_path)
    assert 0 < facts["disk_free_bytes"] <= free.f_blocks * free.f_frsize
    assert facts["python"] == sys.executable
    assert facts["payload_python"] == sys.executable
    assert facts["payload_python_version"] == platform.python_version().rstrip("+")
    assert [device["uuid"] for device in facts["devices"]] == ["cpu-0"]
    assert not (tmp_path / "not").exists(), "looking changes nothing"
    json.dumps(facts, allow_nan=False)


def test_modules_are_told_by_version_and_not_imported(tmp_path: Path) -> None:
    for name in ("plain", "explodes"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')\n")
    dist = tmp_path / "other_name-3.1.dist-info"
    dist.mkdir()
    (dist / "METADATA").write_text("Metadata-Version: 2.1\nName: other-name\nVersion: 3.1\n")
    (dist / "top_level.txt").write_text("explodes\n")
    (dist / "RECORD").write_text("explodes.py,,\n")
    facts = probe(
        {
            **CPU,
            "workdir": str(tmp_path),
            "env": {"PYTHONPATH": str(tmp_path)},
            "modules": ["numpy", "plain", "explodes", "no_such_module_anywhere", "a.b", ""],
        }
    )
    assert facts["modules"] == {
        "numpy": version("numpy"),
        "plain": "unknown",
        "explodes": "3.1",
        "no_such_module_anywhere": None,
        "a.b": None,
        "": None,
    }


def test_activate_is_sourced_and_may_print(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "from_activate.py").write_text("")
    (tmp_path / "env.sh").write_text(f'echo \'{{"hello": 1}}\'\nexport PYTHONPATH="{tmp_path}/lib"\n')
    facts = probe(
        {**CPU, "activate": f". '{tmp_path}/env.sh'", "modules": ["from_activate"], "workdir": str(tmp_path)}
    )
    assert facts["problems"] == []
    assert facts["modules"] == {"from_activate": "unknown"}


def test_an_activate_that_leaves_something_running_does_not_hold_us_up(tmp_path: Path) -> None:
    facts = probe({**CPU, "activate": "/bin/sleep 3 &", "workdir": str(tmp_path)})
    assert facts["payload_python"] == sys.executable


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ({"python": "/no/such/python"}, "/no/such/python cannot be started: No such file or directory"),
        ({"python": "/bin/false"}, "/bin/false ended with exit code 1"),
        ({"activate": "echo no such environment >&2; exit 3"}, "ended with exit code 3: no such environment"),
        ({"activate": ". /no/such/file"}, "/no/such/file"),
    ],
)
def test_an_interpreter_that_cannot_be_used_is_a_problem(
    tmp_path: Path, command: dict[str, str], message: str
) -> None:
    facts = probe({**CPU, "workdir": str(tmp_path), "modules": ["torch"], **command})
    assert facts["payload_python"] is None
    assert facts["modules"] == {"torch": None}
    (problem,) = facts["problems"]
    assert message in problem


def test_an_interpreter_that_hangs_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nonce: str
) -> None:
    monkeypatch.setattr(probe_module, "TIMEOUT_S", 0.5)
    facts = probe(
        {**CPU, "workdir": str(tmp_path), "activate": "/bin/sleep 600", "env": {"FARBENCH_NONCE": nonce}}
    )
    assert "did not answer within" in facts["problems"][0]
    wait_for(
        lambda: procs.find_marked(nonce) == []
    )  # killed, which the system may take a moment to carry out


def test_devices_and_their_problems_are_told(driver: FakeDriver, tmp_path: Path) -> None:
    driver.say(gpu("GPU-aaaa"))
    command = {"env": driver.environ, "workdir": str(tmp_path), "python": sys.executable}
    facts = probe(command)
    assert [device["name"] for device in facts["devices"]] == ["NVIDIA H200"]
    assert facts["problems"] == []
    facts = probe({**command, "devices": [7]})
    assert facts["devices"] == []
    assert facts["problems"] == ["devices 7 names no device of this host: it has 0: NVIDIA H200 (GPU-aaaa)"]
    driver.say("init 9")
    facts = probe(command)
    assert facts["devices"] == []
    assert facts["problems"] == ["NVIDIA driver: nvmlInit_v2: Driver Not Loaded (9)"]


def test_a_host_that_kills_at_logout_is_known(tmp_path: Path) -> None:
    root = str(tmp_path)
    etc = tmp_path / "etc/systemd"
    (etc / "logind.conf.d").mkdir(parents=True)
    (etc / "logind.conf").write_text("[Login]\n#KillUserProcesses=no\nKillUserProcesses=yes\n")
    assert kills_at_logout("ann", root) is None, "no systemd runs here"
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    told = kills_at_logout("ann", root)
    assert told is not None
    assert "loginctl enable-linger ann" in told
    assert kills_at_logout("root", root) is None
    (tmp_path / "var/lib/systemd/linger").mkdir(parents=True)
    (tmp_path / "var/lib/systemd/linger/ann").touch()
    assert kills_at_logout("ann", root) is None
    assert kills_at_logout("bob", root) is not None
    (etc / "logind.conf.d/50-spare.conf").write_text("[Login]\nKillExcludeUsers=root bob\n")
    assert kills_at_logout("bob", root) is None
    (etc / "logind.conf.d/60-off.conf").write_text("[Login]\nKillUserProcesses = no\n")
    assert kills_at_logout("cid", root) is None
