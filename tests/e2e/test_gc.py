"""gc never takes the only copy of results."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.conftest import Laptop
from tests.e2e.templates import SLEEPY
from tests.support.sshd import Sshd
from tests.support.waiting import wait_for


def test_results_that_are_not_home_yet_stay_on_the_host(laptop: Laptop, host: Sshd, tmp_path: Path) -> None:
    laptop.hosts(host, devices={"cpu": 1})
    laptop.write("payloads/sleepy.py.j2", SLEEPY)
    laptop.write(
        "sweep.yaml",
        json.dumps({"name": "s", "payload": "sleepy", "matrix": {"i": [1, 2]}, "backends": ["one"]}),
    )
    run_id = laptop.farbench("run", "sweep.yaml", "--detach", "--json").json()["run_id"]
    folder = host.home / "farbench" / "runs" / run_id
    wait_for(lambda: '"agent_finished"' in (folder / "events.jsonl").read_text(), "the end of the run")
    wait_for(lambda: not list(folder.glob("*.sock")), "quiet")

    here = laptop.farbench("gc", "h1", "--yes")
    assert here.code == 0
    assert f"run {run_id} stays: it is open in this archive" in here.stderr
    assert folder.is_dir()
    elsewhere = laptop.farbench("gc", "h1", "--yes", "--archive", str(tmp_path / "another"))
    assert elsewhere.code == 0
    assert f"run {run_id} stays: its results are not in this archive; kept for 7 days" in elsewhere.stderr
    assert folder.is_dir()

    assert laptop.farbench("attach", run_id, "--json").json()["counts"] == {"ok": 2}
    gone = laptop.farbench("gc", "h1", "--yes", "--json")
    assert gone.code == 0, gone.stderr
    assert run_id in [thing["name"] for thing in gone.json()["removed"]]
    assert not folder.exists()


def test_what_cannot_be_cleaned_up_is_said(laptop: Laptop, host: Sshd) -> None:
    laptop.hosts(host, devices={"cpu": 1})
    runs = host.home / "farbench" / "runs"
    runs.parent.mkdir()
    (host.home / "elsewhere").mkdir()
    runs.symlink_to(host.home / "elsewhere")
    done = laptop.farbench("gc", "h1", "--yes")
    assert done.code == 0
    assert f"warning: {runs} is a link: left alone" in done.stderr
    assert laptop.farbench("gc", "h1", "--json").json() == {
        "host": "h1", "dry_run": True, "removed": [], "bytes": 0, "kept": [], "problems": [f"{runs} is a link: left alone"],
    }  # fmt: skip
