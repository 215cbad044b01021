"""An archive on a file system that knows no locks: reading works, writing is refused with the reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.archive import Archive

ROOT = Path(__file__).resolve().parents[2]
WHY = "its file system has no locks (flock), and only those keep two commands from writing at once"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A flock that answers as NFS without a lock manager does."""
    made = tmp_path_factory.mktemp("locks") / "no_locks.so"
    source = Path(__file__).with_name("no_locks.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
    return made


@pytest.fixture
def farbench(
    archive: Archive, document, line, measurement, library: Path, tmp_path: Path
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command, on an archive with a complete run and an open one."""
    with archive.create("r1", document(), {}) as run:
        run.commit([measurement("r1")], "finished", ended_at="2025-01-02T04:00:00Z")
    with archive.create("r2", document(), {}) as run:
        run.append_events("gpu1", 0, line("r2"))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FARBENCH_")}
    environ |= {"LD_PRELOAD": str(library), "FARBENCH_ARCHIVE": str(archive.path), "PYTHONPATH": str(ROOT)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "orchestrator", *arguments], cwd=tmp_path, env=environ,
            stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", timeout=100,
        )  # fmt: skip

    return run


def test_reading_needs_no_lock(farbench) -> None:
    listed = farbench("runs", "--json")
    assert listed.stderr == ""
    assert {run["run_id"]: run["state"] for run in json.loads(listed.stdout)["runs"]} == {
        "r1": "finished",
        "r2": "detached",
    }
    counted = farbench("query", "select count(*) as n from results", "--format", "csv")
    assert counted.stdout.split() == ["n", "2"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "sweep.yaml"],
        ["attach", "r2"],
        ["runs", "r1", "--add-tag", "x"],
        ["runs", "--prune", "r1", "--yes"],
        ["import", "bench.csv", "--format", "triton-csv"],
    ],
)
def test_writing_is_refused_and_leaves_nothing(
    farbench, archive: Archive, tmp_path: Path, arguments: list[str]
) -> None:
    (tmp_path / "bench.csv").write_text("M,torch (Time (us))\n16,1.5\n")
    (tmp_path / "bench.py").write_text("")
    (tmp_path / "hosts.yaml").write_text('{"hosts": {"local": {"embedded": true, "devices": {"cpu": 1}}}}')
    sweep = {"name": "s", "payload": {"script": "bench.py"}, "matrix": {"m": [1]}}
    (tmp_path / "sweep.yaml").write_text(json.dumps(sweep))
    done = farbench(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.endswith(f"{WHY}\n")
    assert [run.run_id for run in archive.runs()] == ["r2", "r1"]
    assert not [path for kind in ("open", "runs", ".moving") for path in (archive.path / kind).glob(".*")]
    assert not list((archive.path / ".moving").glob("*"))
