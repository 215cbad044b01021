"""Archives with a run in them, and the real command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.archive import Archive, RunFolder
from orchestrator.model import Measurement

DATA = Path(__file__).parent / "data"
ROOT = Path(__file__).resolve().parent.parent.parent
END = "2025-01-02T04:00:00Z"


@dataclass
class Finished:
    code: int
    stdout: str
    stderr: str

    def json(self) -> Any:
        return json.loads(self.stdout)


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "my [archive]")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Archive:
    """The archive of another machine."""
    return Archive(tmp_path / "elsewhere")


def record(run_id: str, **changes: Any) -> dict[str, Any]:
    base = {
        "run_id": run_id, "host": "gpu1", "case_id": "c1", "label": "m=16 [bs=8]", "payload": "gemm",
        "device": {"uuid": "GPU-1", "index": 0, "name": "B200", "compute_capability": "10.0", "kind": "gpu"},
        "params": {"m": 2**53 + 1}, "backend": "torch", "status": "ok", "verdict": "valid",
        "timing": {"timer": "graph", "cache": "cold", "median_us": 12.5, "samples": 2}, "samples_us": [12.0, 13.0],
    }  # fmt: skip
    return {**base, **changes}


@pytest.fixture
def commit() -> Callable[..., RunFolder]:
    """Commit a run of given measurements (changes to `record`), with a log and a script."""

    def make(
        archive: Archive, run_id: str, *changes: dict[str, Any], state: str = "finished", **document: Any
    ) -> RunFolder:
        told = {"sweep": {"name": "fp4"}, "hosts": {"gpu1": {"state": "ok"}}, "started_at": END, **document}
        with archive.create(run_id, told, {"gemm.py": b"print(1)\n"}) as run:
            run.append_events("gpu1", 0, b'{"t": 1, "mono": 1, "type": "problem", "message": "x"}\n')
            run.save_file("gpu1", "logs/worker 1.log", [b"\x1b[31mred\n"])
            rows = [Measurement.model_validate(record(run_id, **c)) for c in changes or ({},)]
            return run.commit(rows, state, ended_at=END)

    return make


@pytest.fixture
def farbench(archive: Archive, tmp_path: Path) -> Callable[..., Finished]:
    """Run `farbench` on the archive."""

    def run(*arguments: str | Path, archive: Archive = archive) -> Finished:
        environ = {k: v for k, v in os.environ.items() if not k.startswith("FARBENCH_")}
        environ |= {"FARBENCH_ARCHIVE": str(archive.path), "COLUMNS": "200", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator", *map(str, arguments)], cwd=tmp_path, env=environ,
            stdin=subprocess.DEVNULL, capture_output=True, timeout=100, encoding="utf-8",
        )  # fmt: skip
        return Finished(done.returncode, done.stdout, done.stderr)

    return run


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder but the lock, which is of one machine."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "coordinator.lock"
    }
