"""Runs of GPU hosts, made up: whole run folders with journals, several hosts and devices, every status, hostile text."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.archive import Archive, RunFolder
from orchestrator.model import Measurement

EVIL = "</script><img src=x onerror=alert(1)>"
RUN_ID = "20250102T030405Z-abcdef"
MODEL = "NVIDIA RTX PRO 6000 Blackwell"
BACKENDS = ("flashinfer:cutlass", "sgl_kernel", "torch")
SPEED = {"flashinfer:cutlass": 1.0, "sgl_kernel": 1.35, "torch": 0.45}
NK = ((2048, 6144), (768, 6144))
START = 1735787045.0


def devices(host: str, count: int) -> list[dict[str, Any]]:
    return [
        {"uuid": f"GPU-{host}-{i}", "index": i, "name": MODEL, "compute_capability": "12.0", "kind": "gpu"}
        for i in range(count)
    ]


def measurement(
    host: str, device: dict[str, Any], case: dict[str, Any], backend: str, us: float
) -> dict[str, Any]:
    p = case["params"]
    flops, moved = (
        2 * p["m"] * p["n"] * p["k"],
        (p["m"] * p["k"] + p["n"] * p["k"]) * 0.5625 + 2 * p["m"] * p["n"],
    )
    return {
        "run_id": RUN_ID, "host": host, "device": device, "case_id": case["id"], "label": case["label"],
        "payload": "gemm_fp4", "params": p, "backend": backend, "resolved_backend": backend, "status": "ok",
        "verdict": "valid", "started_at": "2025-01-02T03:04:06Z", "duration_s": 0.4, "environment_id": "e1",
        "timing": {
            "timer": "graph", "cache": "cold", "median_us": us, "p20_us": us * 0.99, "p80_us": us * 1.02, "rel_error": 0.003,
            "samples": 120, "compile_s": 1.5,
        },
        "metrics": {"tflops": flops / us / 1e6, "gbps": moved / us / 1e3, "peak_fraction": flops / us / 1e6 / 2015},
        "accuracy": {"cosine": 0.9999},
        "telemetry": {"sm_clock_mhz": 2400 + 10 * device["index"], "power_w": 420, "temperature_c": 61},
    }  # fmt: skip


def failed(record: dict[str, Any], status: str, reason: str, log: str | None = None) -> dict[str, Any]:
    gone = {"timing": None, "verdict": None, "metrics": {}, "accuracy": None, "telemetry": None}
    return {**record, **gone, "status": status, "reason": reason, "log_tail": log}


def make_run(folder: Path, *, ms: tuple[int, ...] = (16, 64, 256, 1024), hosts: tuple[str, ...] = ("gpu-a", "gpu-b")) -> RunFolder:  # fmt: skip
    """A committed run: each case by three backends on two devices of two hosts; one label is an attack, as are a log and
    what a host calls itself."""
    random.seed(7)
    cases = [
        {
            "id": f"{number:016x}", "label": f"m={m} n={n}", "payload": "gemm_fp4", "params": {"m": m, "n": n, "k": k},
            "backends": list(BACKENDS),
        }
        for number, (n, k, m) in enumerate((n, k, m) for n, k in NK for m in ms)
    ]  # fmt: skip
    cases[0]["label"] = f"{EVIL} [bs=8]"
    records = []
    for host in hosts:
        for device in devices(host, 2):
            for case in cases:
                p = case["params"]
                base = 4.0 + p["m"] * p["n"] * p["k"] / 6e8
                for backend in BACKENDS:
                    us = base / SPEED[backend] * (1 + 0.01 * device["index"]) * random.uniform(0.995, 1.005)
                    record = measurement(host, device, case, backend, us)
                    if p["m"] == ms[-1] and backend == "sgl_kernel":
                        record = failed(record, "crashed", f"signal SIGSEGV {EVIL}", f"line\x1b[31m red\n{EVIL}\n{'x' * 50}")  # fmt: skip
                    elif p["m"] == ms[0] and backend == "torch":
                        record |= {"verdict": "suspect", "reasons": ["noisy"]}
                    records.append(record)
    return write_run(folder, cases, records, hosts, replicate="replicate_devices")


def make_big_run(folder: Path, rows: int) -> RunFolder:
    """A committed run of this many measurements on one device."""
    device = devices("gpu-a", 1)[0]
    cases, records = [], []
    for number in range(math.ceil(rows / len(BACKENDS))):
        params = {"m": 1 + number, "n": 2048, "k": 6144}
        cases.append(
            {"id": f"{number:016x}", "label": f"m={1 + number}", "payload": "gemm_fp4", "params": params}
        )
        records += [
            measurement("gpu-a", device, cases[-1], backend, (4 + number / 50) / SPEED[backend])
            for backend in BACKENDS
        ]
    return write_run(
        folder, cases, records[:rows], ("gpu-a",), replicate="replicate", backends=list(BACKENDS)
    )


def write_run(
    folder: Path, cases: list[dict[str, Any]], records: list[dict[str, Any]], hosts: tuple[str, ...], *,
    replicate: str, backends: list[str] | None = None,
) -> RunFolder:  # fmt: skip
    archive = Archive(folder)
    document = {
        "sweep": {"name": "fp4-gemm", "path": "sweep.yaml", "source": f"name: fp4-gemm\n# {EVIL}\n", "sha256": "ab" * 32},
        "placement": replicate,
        "plan": {
            "cases": cases, "backends": backends or list(BACKENDS), "baselines": {"gemm_fp4": "flashinfer:cutlass"},
        },
        "hosts": {
            host: {
                "state": "ok", "devices": devices(host, 2),
                "agent": {"hostname": EVIL, "python": "/usr/bin/python3", "version": "3.10.12"},
            }
            for host in hosts
        },
        "environments": {"e1": {"driver": "570.1", "packages": {"torch": "2.9", "evil": EVIL}}},
        "versions": {"farbench": "0.1.0", "python": "3.11.7"},
        "started_at": "2025-01-02T03:04:05Z",
        "argv": ["farbench", "run", "sweep.yaml"],
    }  # fmt: skip
    run = archive.create(RUN_ID, document, {"gemm_fp4.py": b"print('x')\n"})
    for host in hosts:
        run.append_events(host, 0, b"".join(journal(host, records)))
    return run.commit(
        (Measurement.model_validate(r) for r in records), "finished", ended_at="2025-01-02T03:05:05Z"
    )


def journal(host: str, records: list[dict[str, Any]]) -> Iterator[bytes]:
    """A journal as an agent writes it. In the middle the wall clock is set back by an hour."""
    state = {"mono": 100.0, "shift": 0.0}

    def event(kind: str, after: float = 0.0, **fields: Any) -> bytes:
        state["mono"] += after
        wall = START - 100.0 + state["mono"] + state["shift"]
        return json.dumps({"t": wall, "mono": state["mono"], "type": kind, **fields}).encode() + b"\n"

    yield event("agent_started", host=host, boot_id="b1", pid=1)
    for device in devices(host, 2):
        mine = [r for r in records if r["host"] == host and r["device"]["uuid"] == device["uuid"]]
        if not mine:
            continue
        worker, uuid = f"gpu{device['index']}-001", device["uuid"]
        yield event("lease_wait", 0.1, device=uuid, holder={"user": EVIL})
        yield event("worker_starting", 2.0, worker=worker, devices=[uuid], payload="gemm_fp4")
        yield event("worker_ready", 3.0, worker=worker, devices=[uuid], payload="gemm_fp4")
        for r in mine:
            for phase, seconds in (("compile", 0.0), ("check", 0.5), ("measure", 0.1)):
                yield event(
                    "phase", seconds, case_id=r["case_id"], worker=worker, backend=r["backend"], phase=phase
                )
            yield event("measurement", 0.4, measurement=r)
            yield event("case_finished", case_id=r["case_id"], worker=worker, devices=[uuid])
        state["shift"] -= 3600.0
        yield event("worker_exited", 0.1, worker=worker, exit_code=0)
    yield event("agent_finished", state="finished", counts={})
