"""The payload library from outside: several payloads in one run, one of them called like a module of Python's, and a user's
payload that makes a mistake."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.e2e.conftest import Laptop
from tests.support.sshd import Sshd

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
QUICK = "measure: {cache: hot, min_time_ms: 5, max_time_ms: 100, target_rel_error: 0.1, retries: 0}"

SEVERAL = f"""
name: several
{QUICK}
parts:
  - {{payload: copy, matrix: {{bytes: [65536]}}, backends: [numpy, torch]}}
  - {{payload: gemm_fp8, matrix: {{m: [4], n: [32], k: [128], scaling: [per_tensor, blockwise]}}}}
  - {{payload: quantize_fp8, matrix: {{m: [4], k: [128]}}, backends: [numpy, torch, sgl_kernel]}}
"""


def test_payloads_run_side_by_side_whatever_they_are_called(laptop: Laptop, host: Sshd) -> None:
    laptop.hosts(host)
    laptop.write("several.yaml", SEVERAL)
    done = laptop.farbench("run", "several.yaml", OMP_NUM_THREADS="1")
    assert done.code == 0, done.stdout + done.stderr
    found = laptop.measurements()
    statuses = {(m["payload"], m["label"], m["backend"]): m["status"] for m in found}
    assert len(statuses) == 2 + 2 * 10 + 3
    for (_, label, backend), status in statuses.items():
        runs = backend in ("numpy", "torch", "torch:dequant", "torch:fast_accum")
        if "blockwise" in label and backend in ("torch", "torch:fast_accum"):
            runs = False  # torch has no scales of blocks on a CPU
        assert status == ("ok" if runs else "unsupported"), (label, backend)
    assert all(m["accuracy"]["rel_error"] < 0.01 for m in found if m["status"] == "ok")


def test_an_output_that_is_not_written_never_has_a_speed(laptop: Laptop, host: Sshd) -> None:
    laptop.hosts(host)
    shutil.copytree(EXAMPLES / "mistakes", laptop.folder, dirs_exist_ok=True)
    done = laptop.farbench("run", "no_output.yaml", OMP_NUM_THREADS="1")
    assert done.code == 1
    found = {m["backend"]: m for m in laptop.measurements()}
    assert {name: m["status"] for name, m in found.items()} == {
        "right": "ok",
        "no_output": "incorrect",
        "half_output": "incorrect",
    }
    assert "16384 of 16384 output elements are NaN" in found["no_output"]["reason"]
    assert found["no_output"]["timing"] is None
    assert "incorrect" in done.stdout
