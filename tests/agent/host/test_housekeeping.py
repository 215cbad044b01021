from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent import procs
from orchestrator.agent.housekeeping import collect_garbage, list_runs

from .conftest import Spawn

HOUR, DAY = 3600.0, 86400.0
SLEEP = "import time; print('up', flush=True); time.sleep(600)"
# An agent as the host sees it: it holds the run's lock.
AGENT = """
import fcntl, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(fd, fcntl.LOCK_EX)
print("up", flush=True)
time.sleep(600)
"""


class Host:
    """A workdir with runs and uploads of given age."""

    def __init__(self, workdir: Path) -> None:
        self.workdir = workdir
        self.runs = workdir / "runs"
        self.cache = workdir / "cache"
        self.runs.mkdir(parents=True)
        self.cache.mkdir()

    def upload(self, content: bytes, age_s: float = DAY) -> str:
        sha256 = hashlib.sha256(content).hexdigest()
        (self.cache / sha256).write_bytes(content)
        aged(self.cache / sha256, age_s)
        return sha256

    def run(
        self,
        run_id: str,
        *events: dict[str, Any],
        tree: dict[str, str] | None = None,
        agent: dict[str, Any] | None = None,
        age_s: float = DAY,
    ) -> Path:
        root = self.runs / run_id
        (root / "queue").mkdir(parents=True)
        (root / "control").mkdir()
        (root / "logs").mkdir()
        (root / "logs" / "w1.log").write_bytes(b"x" * 1000)
        (root / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        if tree is not None:
            (root / "tree.json").write_text(json.dumps(tree))
        if agent is not None:
            (root / "agent.json").write_text(json.dumps(agent))
        for path in (*root.iterdir(), root):
            aged(path, age_s)
        return root

    def collect(self, *keep: str, dry_run: bool = False) -> dict[str, Any]:
        return collect_garbage(str(self.workdir), keep, dry_run)

    def states(self) -> dict[str, str]:
        return {run["run_id"]: run["state"] for run in list_runs(str(self.workdir))}


def aged(path: Path, age_s: float) -> None:
    os.utime(path, (time.time() - age_s,) * 2, follow_symlinks=False)


def removed(report: dict[str, Any], kind: str) -> list[str]:
    return [entry["name"] for entry in report["removed"] if entry["kind"] == kind]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "work")


STARTED = {"type": "agent_started"}
FINISHED = {"type": "agent_finished", "state": "finished"}
CANCELLED = {"type": "agent_finished", "state": "cancelled"}
GONE = {"pid": 1, "start_time": -1, "boot_id": procs.boot_id()}
ELSEWHERE = {"pid": 77, "start_time": 5, "boot_id": "another-boot"}


def test_each_run_is_listed_with_its_state(host: Host, python_process: Spawn) -> None:
    host.run("r1", STARTED, FINISHED, agent=GONE)
    host.run("r2", STARTED, CANCELLED, agent=GONE)
    host.run("r3", STARTED, {"type": "measurement"}, agent=GONE)
    host.run("r4", age_s=60)
    host.run("r5", age_s=2 * HOUR)
    host.run("r6", STARTED, agent=ELSEWHERE, age_s=60)
    host.run("r7", STARTED, agent=ELSEWHERE, age_s=2 * HOUR)
    host.run("r8", STARTED, FINISHED, STARTED, agent=GONE)
    host.run("r9", STARTED, agent=GONE)
    agent = python_process(AGENT, str(host.runs / "r9" / "agent.lock"))
    assert agent.stdout is not None
    agent.stdout.readline()
    assert host.states() == {
        "r9": "running",
        "r8": "dead",
        "r7": "dead",
        "r6": "elsewhere",
        "r5": "dead",
        "r4": "starting",
        "r3": "dead",
        "r2": "cancelled",
        "r1": "finished",
    }
    first = list_runs(str(host.workdir))[-1]
    assert first["run_id"] == "r1"
    assert first["agent"] is False
    assert first["bytes"] >= 1000
    assert DAY - 60 < first["age_s"] < DAY + HOUR
    agent.kill()
    agent.wait()
    assert host.states()["r9"] == "dead"


def test_a_torn_last_line_does_not_hide_the_end(host: Host) -> None:
    journal = host.run("r1", STARTED, FINISHED, agent=GONE) / "events.jsonl"
    with journal.open("ab") as file:
        file.write(b'{"type": "agent_sta\xc3')
    assert host.states() == {"r1": "finished"}


def test_an_agent_is_known_by_its_identity_too(host: Host, python_process: Spawn) -> None:
    process = python_process(SLEEP)
    host.run("r1", STARTED, FINISHED, agent=procs.identity(process.pid))
    assert host.states() == {"r1": "running"}
    assert host.collect()["removed"] == []
    process.kill()
    process.wait()
    assert host.states() == {"r1": "finished"}


def test_ended_runs_go_and_kept_ones_stay(host: Host) -> None:
    for run_id in ("r1", "r2", "r3"):
        host.run(run_id, STARTED, FINISHED if run_id != "r2" else CANCELLED, agent=GONE, tree={})
    report = host.collect("r3", "no-such-run")
    assert removed(report, "run") == ["r1", "r2"]
    assert report["bytes"] >= 2000
    assert report["kept"] == [{"run_id": "r3", "reason": "asked to keep it"}]
    assert report["problems"] == []
    assert [path.name for path in host.runs.iterdir()] == ["r3"]


def test_a_dry_run_says_the_same_and_does_nothing(host: Host, python_process: Spawn, nonce: str) -> None:
    stray = python_process(SLEEP, env={"FARBENCH_NONCE": nonce})
    assert stray.stdout is not None
    stray.stdout.readline()
    host.run(
        "r1", STARTED, FINISHED, agent={**GONE, "nonce": nonce}, tree={"a": host.upload(b"needed by r1")}
    )
    host.upload(b"needed by none")
    before = sorted(str(path) for path in host.workdir.rglob("*"))
    plan = host.collect(dry_run=True)
    assert sorted(str(path) for path in host.workdir.rglob("*")) == before
    assert stray.poll() is None
    done = host.collect()
    assert done == {**plan, "dry_run": False}
    assert {entry["kind"] for entry in done["removed"]} == {"process", "run", "upload"}
    stray.wait()
    assert list(host.runs.iterdir()) == []
    assert list(host.cache.iterdir()) == []


def test_a_live_run_is_never_touched(host: Host, python_process: Spawn, nonce: str) -> None:
    root = host.run(
        "r1", STARTED, agent={**GONE, "nonce": nonce}, tree={"a": host.upload(b"needed")}, age_s=99 * DAY
    )
    agent = python_process(AGENT, str(root / "agent.lock"))
    worker = python_process(SLEEP, env={"FARBENCH_NONCE": nonce})
    for process in (agent, worker):
        assert process.stdout is not None
        process.stdout.readline()
    report = host.collect()
    assert report["removed"] == []
    assert report["kept"] == [{"run_id": "r1", "reason": "running"}]
    assert worker.poll() is None
    assert (root / "logs" / "w1.log").exists()


def test_a_run_that_is_followed_or_starting_is_left(host: Host) -> None:
    followed = host.run("r1", STARTED, FINISHED, agent=GONE)
    host.run("r2", age_s=60)
    host.run("r3", STARTED, agent=ELSEWHERE, age_s=60)
    with (followed / "followers.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        report = host.collect()
    assert report["removed"] == []
    assert {entry["run_id"]: entry["reason"] for entry in report["kept"]} == {
        "r1": "somebody follows it",
        "r2": "starting",
        "r3": "elsewhere",
    }


def test_a_run_that_may_be_resumed_stays_for_a_week(host: Host) -> None:
    host.run("r1", STARTED, agent=GONE, age_s=6 * DAY)
    host.run("r2", STARTED, agent=GONE, age_s=8 * DAY)
    report = host.collect()
    assert removed(report, "run") == ["r2"]
    assert [entry["run_id"] for entry in report["kept"]] == ["r1"]


def test_uploads_that_a_kept_run_refers_to_stay(host: Host) -> None:
    kept, shared, gone = host.upload(b"kept"), host.upload(b"shared"), host.upload(b"gone")
    fresh = host.upload(b"just arriving", age_s=60)
    agent_zip = host.upload(b"PK\x03\x04 the agent")
    old_zip = host.upload(b"PK\x03\x04 an old agent", age_s=8 * DAY)
    (host.cache / "notes.txt").write_text("not an upload")
    host.run("r1", STARTED, FINISHED, agent=GONE, tree={"a.py": gone, "b.py": shared})
    host.run("r2", STARTED, FINISHED, agent=GONE, tree={"scripts/a.py": kept, "scripts/b.py": shared})
    report = host.collect("r2")
    assert sorted(removed(report, "upload")) == sorted([gone, old_zip])
    assert {path.name for path in host.cache.iterdir()} == {kept, shared, fresh, agent_zip, "notes.txt"}


@pytest.mark.parametrize("content", ["", "{", "[1, 2]"])
def test_a_run_whose_needs_cannot_be_read_keeps_the_whole_cache(host: Host, content: str) -> None:
    sha256 = host.upload(b"who knows")
    (host.run("r1", STARTED, FINISHED, agent=GONE, tree={}) / "tree.json").write_text(content)
    report = host.collect("r1")
    assert report["removed"] == []
    assert "the cache is left alone" in report["problems"][0]
    assert (host.cache / sha256).exists()


def test_links_are_never_followed(host: Host, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("precious")
    root = host.run("r1", STARTED, FINISHED, agent=GONE)
    (root / "work").symlink_to(outside)
    (root / "collected").mkdir()
    (root / "collected" / "file").symlink_to(outside / "precious")
    (host.runs / "r2").symlink_to(outside)
    (host.cache / ("0" * 64)).symlink_to(outside / "precious")
    aged(host.cache / ("0" * 64), DAY)
    (host.runs / ".gc-r3-00000000").symlink_to(outside)
    report = host.collect()
    assert removed(report, "run") == ["r1"]
    assert removed(report, "upload") == []
    assert report["problems"] == [f"{host.runs / 'r2'} is no folder: left alone"]
    assert (outside / "precious").read_text() == "precious"
    assert (host.runs / "r2").is_symlink()
    assert not root.exists()


@pytest.mark.parametrize("folder", ["runs", "cache"])
def test_a_folder_that_leads_out_of_the_workdir_is_left_alone(
    host: Host, tmp_path: Path, folder: str
) -> None:
    other = Host(tmp_path / "other")
    other.run("r1", STARTED, FINISHED, agent=GONE)
    sha256 = other.upload(b"of another workdir")
    (host.workdir / folder).rmdir()
    (host.workdir / folder).symlink_to(other.workdir / folder)
    report = host.collect()
    assert report["removed"] == []
    assert report["problems"] == [f"{host.workdir / folder} is a link: left alone"]
    assert (other.runs / "r1").exists()
    assert (other.cache / sha256).exists()


def test_folders_that_a_payload_closed_are_removed_all_the_same(host: Host) -> None:
    root = host.run("r1", STARTED, FINISHED, agent=GONE)
    closed = root / "work" / "a" / "b"
    closed.mkdir(parents=True)
    (closed / "file").touch()
    for folder in (closed, closed.parent):
        folder.chmod(0o000)
    report = host.collect()
    assert removed(report, "run") == ["r1"]
    assert report["problems"] == []
    assert list(host.runs.iterdir()) == []


def test_what_an_interrupted_collection_left_is_removed(host: Host) -> None:
    (host.runs / ".gc-r1-0badcafe" / "logs").mkdir(parents=True)
    assert host.states() == {}
    host.collect(dry_run=True)
    assert (host.runs / ".gc-r1-0badcafe").exists()
    host.collect()
    assert list(host.runs.iterdir()) == []


def test_processes_of_a_dead_run_are_ended_and_its_folder_kept(
    host: Host, python_process: Spawn, nonce: str
) -> None:
    host.run("r1", STARTED, agent={**GONE, "nonce": nonce}, age_s=60)
    stray = python_process(SLEEP, env={"FARBENCH_NONCE": nonce}, start_new_session=True)
    other = python_process(SLEEP, env={"FARBENCH_NONCE": "of-another-run"})
    for process in (stray, other):
        assert process.stdout is not None
        process.stdout.readline()
    report = host.collect()
    assert [(entry["kind"], entry["name"], entry["reason"]) for entry in report["removed"]] == [
        ("process", str(stray.pid), "outlived run r1 (dead)")
    ]
    assert stray.wait() != 0
    assert other.poll() is None


def test_an_empty_or_missing_workdir_has_nothing(tmp_path: Path) -> None:
    assert list_runs(str(tmp_path / "none")) == []
    assert collect_garbage(str(tmp_path / "none"), (), False) == {
        "removed": [],
        "kept": [],
        "problems": [],
        "dry_run": False,
        "bytes": 0,
    }
    assert not (tmp_path / "none").exists()
