"""A case on two devices at once, as a user runs it: an all-reduce over CPU slots."""

from __future__ import annotations

import json

import pytest

from tests.e2e.conftest import Laptop
from tests.support.sshd import Sshd

SWEEP = {
    "name": "two-ranks",
    "payload": "allreduce",
    "matrix": {"size_bytes": [4096, 65536]},
    "backends": ["torch", "sgl_kernel"],
    "devices_per_case": 2,
    "measure": {"min_time_ms": 10, "max_time_ms": 100, "rounds": 2, "retries": 0},
}


def test_an_all_reduce_over_two_slots_is_one_measurement_a_case(laptop: Laptop, host: Sshd) -> None:
    laptop.hosts(host, devices={"cpu": 2}, env={"OMP_NUM_THREADS": "1"})
    laptop.write("sweep.yaml", json.dumps(SWEEP))

    done = laptop.farbench("run", "sweep.yaml", "--json")

    assert done.code == 0, done.stderr
    assert done.json()["counts"] == {"ok": 2, "unsupported": 2}
    for record in laptop.measurements():
        if record["backend"] == "sgl_kernel":
            assert record["reason"] == "no CUDA device; sgl_kernel is not installed"
            continue
        assert record["resolved_backend"] == "torch:gloo"
        assert record["extra"]["ranks"] == 2
        assert record["accuracy"]["cosine"] > 0.9999
        time_us = record["timing"]["median_us"]
        assert record["metrics"]["bus_gbps"] == pytest.approx(record["params"]["size_bytes"] / time_us / 1e3)
