"""Eight devices of one host, as CPU slots: shares, gangs of every size between single cases, and a case that kills its process.

The judge is `benchmarks/many_gpus.py`, the same program that judges a host of eight GPUs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import TIMEOUT_S, Laptop
from tests.support.sshd import Sshd

ROOT = Path(__file__).parents[2]

PAYLOAD = """{#- farbench
summary: sleeps, tells how many ranks there are, and dies where it is told to
parameters: {i: {type: int}, crash: {type: bool, default: false}}
backends: {one: the only one}
-#}
import json
import os
import signal
import time

from harness import Needs, Payload, Reported, main

CASES = json.loads({{ cases | literal }})
payload = Payload("slots", prepare=lambda params, device: params)


@payload.backend("one", Needs(device="any"))
def one(params):
    if params.get("crash"):
        os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(0.15)
    extra = {"ranks": int(os.environ.get("WORLD_SIZE", "1"))}
    return Reported(samples_us=[10.0] * 10, extra=extra)


if __name__ == "__main__":
    main(payload, CASES)
"""


@pytest.fixture
def eight(laptop: Laptop, host: Sshd) -> Laptop:
    laptop.write("payloads/slots.py.j2", PAYLOAD)
    laptop.hosts(host, host, devices={"cpu": 8})
    hosts = json.loads((laptop.folder / "hosts.yaml").read_text())
    hosts["hosts"]["h2"]["devices"] = {"cpu": 1}
    laptop.write("hosts.yaml", json.dumps(hosts))
    return laptop


def judged(laptop: Laptop, *more: str) -> str:
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "many_gpus.py", "h1", "h2", "--sweeps", "slots", *more],
        cwd=laptop.folder, env=laptop.environ, capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_gangs_of_two_four_and_eight_between_single_cases(eight: Laptop) -> None:
    parts = [
        {
            "payload": "slots",
            "matrix": {"i": [100 * size + n for n in range(16 if size == 1 else 2)]},
            "devices_per_case": size,
        }
        for size in (1, 2, 4, 8)
    ]
    parts.append({"payload": "slots", "matrix": {"i": list(range(16))}})
    eight.write("slots-gangs.yaml", json.dumps({"name": "gangs", "placement": "shard", "parts": parts}))
    found = judged(eight)
    assert "holds: gangs ended {'ok': 38}" in found
    assert "- holds: cases without a backend that is ok: none" in found
    assert "- devices of a measurement: 1: 32, 2: 2, 4: 2, 8: 2" in found


def test_a_case_that_kills_its_process_is_the_matter_of_one_slot(eight: Laptop) -> None:
    cases = [{"i": i, "crash": i == 4} for i in range(24)]
    eight.write(
        "slots-crash.yaml",
        json.dumps({"name": "crash", "payload": "slots", "matrix": {"case": cases}, "placement": "shard"}),
    )
    found = judged(eight)
    assert "holds: one case crashed: {'ok': 23, 'crashed': 1}" in found.replace(
        "{'crashed': 1, 'ok': 23}", "{'ok': 23, 'crashed': 1}"
    )
    assert "holds: other workers were needed only on the device of the crash (cpu-" in found


def test_every_slot_has_its_share_and_measures_every_case_when_asked(eight: Laptop) -> None:
    sweep = {"payload": "slots", "matrix": {"i": list(range(24))}}
    eight.write("slots-scaling.yaml", json.dumps({"name": "scaling", "placement": "shard", **sweep}))
    spread = {"name": "spread", "payload": "slots", "matrix": {"i": [1]}, "placement": "replicate_devices"}
    eight.write("slots-spread.yaml", json.dumps(spread))
    found = judged(eight)
    assert "holds: every case was measured on all 8 devices" in found
    assert found.count("\n- cpu-") == 8, "each slot took part"
    assert "over 1 measurements" in found


def test_what_was_not_measured_is_no_bound_that_holds(eight: Laptop) -> None:
    """A gang larger than the host, and a device of which nothing came."""
    parts = [{"payload": "slots", "matrix": {"i": [n]}, "devices_per_case": n} for n in (1, 16)]
    eight.write("slots-gangs.yaml", json.dumps({"name": "gangs", "placement": "shard", "parts": parts}))
    eight.write(
        "slots-scaling.yaml",
        json.dumps({"payload": "slots", "matrix": {"i": list(range(7))}, "placement": "shard"}),
    )
    spread = {"payload": "slots", "matrix": {"case": [{"i": 1, "crash": True}]}}
    eight.write("slots-spread.yaml", json.dumps({**spread, "placement": "replicate_devices"}))
    found = judged(eight, "--archive", "kept elsewhere")
    assert "**does not hold**: cases without a backend that is ok: i=16" in found
    assert "**does not hold**: each of 8 devices measured within 25% of the mean of 0.9" in found
    assert ": 0 measurements" in found
    assert "**does not hold**: every case was measured on all 8 devices" in found
    assert len(list((eight.folder / "kept elsewhere" / "runs").iterdir())) == 5


def test_a_folder_without_the_sweeps_is_told(eight: Laptop) -> None:
    assert "this folder has none of slots-spread.yaml, slots-scaling.yaml" in judged(eight)
