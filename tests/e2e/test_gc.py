"""gc never takes the only copy of results."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.conftest import Laptop, wait_for
from tests.e2e.templates import SLEEPY
from tests.support.sshd import Sshd


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

    assert laptop.farbench("gc", "h1", "--yes").code == 0
    assert folder.is_dir()
    elsewhere = laptop.farbench("gc", "h1", "--yes", "--archive", str(tmp_path / "another"))
    assert elsewhere.code == 0
    assert folder.is_dir()

    assert laptop.farbench("attach", run_id, "--json").json()["counts"] == {"ok": 2}
    gone = laptop.farbench("gc", "h1", "--yes", "--json")
    assert gone.code == 0, gone.stderr
    assert run_id in [thing["name"] for thing in gone.json()["removed"]]
    assert not folder.exists()
