"""Every payload template there is: rendered, clean, true to its header, and run on the CPU as the script it renders to."""

import ast
import json
import os
import subprocess
import sys

import pytest
from payload_helpers import PAYLOADS, make_item

from orchestrator.rendering import Catalogue

RUFF = "E4,E7,E9,F,B,C4,PIE,RET,SIM"
MYPY = """[mypy]
check_untyped_defs = true
ignore_missing_imports = true
[mypy-harness.*]
follow_imports = silent
[mypy-torch.*]
follow_imports = skip
"""

EXAMPLES = PAYLOADS.parent / "examples" / "mistakes" / "payloads"
CATALOGUE = Catalogue([PAYLOADS, EXAMPLES])
ON_A_CPU = {
    "attention_decode": {"batch": 2, "kv_len": 20, "q_heads": 4, "kv_heads": 2, "head_dim": 32},
    "copy": {"bytes": 4096},
    "gemm_bf16": {"m": 4, "n": 32, "k": 64},
    "gemm_fp4": {"m": 4, "n": 32, "k": 64},
    "gemm_fp8": {"m": 4, "n": 32, "k": 64},
    "gemm_int8": {"m": 4, "n": 32, "k": 64},
    "moe_gemm": {"tokens": 4, "experts": 4, "top_k": 2, "n": 128, "k": 128},
    "quantize_fp4": {"m": 4, "k": 64},
    "quantize_fp8": {"m": 4, "k": 64},
}
BUILT_IN = sorted(ON_A_CPU)


def every_backend(name):
    """A case that asks for all backends of the header; parameters without a default get some number."""
    header = CATALOGUE.find(name).header
    known = {"int": 128, "float": 1.0, "str": "x", "bool": True, "list": [], "dict": {}, "any": 1}
    params = {key: known[p.type] for key, p in (header.parameters or {}).items() if p.required}
    return make_item({**params, **ON_A_CPU.get(name, {})}, header.default_backends or ["none"], payload=name)


@pytest.mark.parametrize("name", CATALOGUE.names())
def test_it_renders_to_clean_python_for_old_interpreters(script, name):
    template = CATALOGUE.find(name)
    path = script([every_backend(name)], name, None if template.builtin else template.source)
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
    checked = subprocess.run(
        [
            sys.executable,
            "-m",
            "ruff",
            "check",
            "--isolated",
            "--select",
            RUFF,
            "--target-version",
            "py38",
            str(path),
        ],
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_their_types_fit_the_harness(script, tmp_path):
    config = tmp_path / "mypy.ini"
    config.write_text(MYPY)
    paths = [script([every_backend(name)], name) for name in (*BUILT_IN, "allreduce")]
    checked = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--config-file",
            str(config),
            "--cache-dir",
            str(tmp_path),
            *map(str, paths),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "MYPYPATH": str(paths[0].parent)},
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_header_lists_exactly_the_backends_that_there_are(load, name):
    header = CATALOGUE.find(name).header
    assert set(header.backends) == set(load([every_backend(name)], name).payload.backends)
    assert all(words for words in header.backends.values())
    assert all(p.help for p in header.parameters.values())


@pytest.mark.parametrize("name", BUILT_IN)
def test_it_runs_on_a_cpu_alone(script, name):
    path = script([every_backend(name)], name)
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        timeout=110,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    records = {r["backend"]: r for r in map(json.loads, done.stdout.decode("ascii").splitlines())}
    assert set(records) == set(CATALOGUE.find(name).header.backends)
    assert done.returncode == 0, done.stderr.decode()
    for backend, record in records.items():
        expected = (
            "ok"
            if backend.split(":")[0] in ("numpy", "torch")
            and backend not in ("torch:scaled_mm", "torch:grouped")
            else "unsupported"
        )
        assert record["status"] == expected, (backend, record["reason"])


def test_a_copy_is_exact_and_counts_both_ways(load, measure):
    from harness import Device

    item = make_item({"bytes": 1 << 20}, ["numpy", "torch"], payload="copy", accuracy={"max_rel_error": 0})
    records = measure(load([item], "copy").payload, item, Device()).records
    for record in records.values():
        assert (record["status"], record["accuracy"]["max_abs_error"]) == ("ok", 0.0)
        moved = record["metrics"]["gbps"] * record["timing"]["median_us"] * 1e3
        assert moved == pytest.approx(2 << 20)
    odd = make_item({"bytes": 6}, ["numpy"], payload="copy")
    assert "multiple of 4" in measure(load([odd], "copy").payload, odd, Device()).records["numpy"]["reason"]
