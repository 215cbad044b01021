"""Hosts with GPUs, whose driver is a program of ours: pinned by UUID, leased, in gangs, and never mixed with other models."""

from __future__ import annotations

import json
import os
import re
import signal
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.agent.leases import Leases
from tests.agent.host.conftest import FakeDriver, fake_nvml_library, gpu
from tests.faults.conftest import Desk, agents, assert_complete, is_running
from tests.support.sshd import Sshd
from tests.support.waiting import wait_for

__all__ = ["fake_nvml_library"]
H200, B200 = "NVIDIA H200", "NVIDIA B200"


class Rack:
    """Makes hosts with GPUs; every UUID is its own, since leases of GPUs are shared by the whole machine."""

    def __init__(self, library: Path, make_sshd: Callable[..., Sshd], folder: Path) -> None:
        self._library, self._make, self._folder = library, make_sshd, folder
        self._count = 0

    def host(self, *models: str, **environ: str) -> tuple[Sshd, list[str]]:
        """(sshd, UUIDs of its GPUs in PCI order)."""
        self._count += 1
        driver = FakeDriver(self._library, self._folder / f"nvml-{self._count}")
        uuids = [f"GPU-{uuid.uuid4()}" for _ in models]
        driver.say(
            *(
                gpu(u, model, f"00000000:{n + 1:02x}:00.0")
                for n, (u, model) in enumerate(zip(uuids, models, strict=True))
            )
        )
        variables = {
            "FARBENCH_NVML_LIBRARY": str(driver.library), "FAKE_NVML": str(driver.answers),
            "FARBENCH_LEASE_DIR": str(self._folder / "leases"), **environ,
        }  # fmt: skip
        folder = self._folder / f"sshd{self._count}"
        pairs = " ".join(f'{name}="{value}"' for name, value in variables.items())
        return self._make(SetEnv=f'HOME="{folder}/outer_home" {pairs}'), uuids


@pytest.fixture
def rack(fake_nvml_library: Path, make_sshd: Callable[..., Sshd], tmp_path: Path) -> Rack:
    return Rack(fake_nvml_library, make_sshd, tmp_path)


def test_one_worker_a_gpu_pinned_by_uuid_and_none_twice_after_a_kill(desk: Desk, rack: Rack) -> None:
    host, uuids = rack.host(*[H200] * 4)
    desk.add_host("h1", host, devices="all")
    desk.sweep([{"i": i, "seconds": 0.3} for i in range(12)])
    process, run_id = desk.begin()
    wait_for(lambda: desk.measured_here(run_id), "a first result")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert desk.json("resume", run_id)["counts"] == {"ok": 12}
    assert_complete(desk, run_id, 12)
    traced = desk.traced()
    assert {trace["visible"] for trace in traced} == set(uuids)
    workers = {trace["pid"] for trace in traced}
    assert len(workers) == 4
    assert len([e for e in desk.journal(run_id, "h1") if e["type"] == "worker_starting"]) == 4


def test_a_gpu_that_is_not_there_is_refused_before_anything_runs(desk: Desk, rack: Rack) -> None:
    host, _ = rack.host(H200)
    desk.add_host("h1", host, devices=[7])
    desk.sweep(2)
    done = desk.farbench("run", "sweep.yaml", "--json")
    assert done.code == 3
    refused = done.json()["hosts"]["h1"]
    assert refused["state"] == "unusable"
    assert re.search(r"7.*NVIDIA H200", refused["error"])
    assert not desk.traced()


@pytest.mark.parametrize("where", ["on the host", "in hosts.yaml"])
def test_a_mask_of_the_host_is_kept_to(desk: Desk, rack: Rack, where: str) -> None:
    mask = {"CUDA_VISIBLE_DEVICES": "1"}
    host, _ = rack.host(H200, H200, H200, **(mask if where == "on the host" else {}))
    desk.add_host("h1", host, devices="all", env=mask if where == "in hosts.yaml" else {})
    shown = desk.json("hosts")["hosts"]["h1"]
    assert [device["index"] for device in shown["devices"]] == [1]
    desk.sweep(3)
    process, run_id = desk.begin()
    desk.end(process)
    results = assert_complete(desk, run_id, 3)
    assert {r["device"]["index"] for r in results} == {1}
    assert {r["device"]["uuid"] for r in results} == {trace["visible"] for trace in desk.traced()}


def test_a_host_with_two_models_measures_each_case_on_each(desk: Desk, rack: Rack) -> None:
    host, _ = rack.host(H200, B200)
    desk.add_host("h1", host, devices="all")
    desk.sweep(4, placement="shard")
    process, run_id = desk.begin()
    assert desk.end(process)["counts"] == {"ok": 8}
    measured = Counter((r["device"]["name"], r["params"]["i"]) for r in desk.results(run_id))
    assert measured == {(model, i): 1 for model in (H200, B200) for i in range(4)}


def test_hosts_of_different_models_share_only_within_a_model_and_are_never_in_one_table(
    desk: Desk, rack: Rack
) -> None:
    mixed, _ = rack.host(H200, B200)
    second, _ = rack.host(H200)
    desk.add_host("mixed", mixed, devices="all")
    desk.add_host("second", second, devices="all")
    desk.sweep(
        [{"i": i, "seconds": 0.1} for i in range(6)],
        placement="shard",
        backends=["one", "two"],
        baseline="two",
    )
    process, run_id = desk.begin()
    assert desk.end(process)["counts"] == {"ok": 24}
    measured = Counter((r["device"]["name"], r["params"]["i"], r["backend"]) for r in desk.results(run_id))
    assert measured == {(model, i, b): 1 for model in (H200, B200) for i in range(6) for b in ("one", "two")}
    hosts = {r["host"] for r in desk.results(run_id) if r["device"]["name"] == H200}
    assert hosts == {"mixed", "second"}
    tables = desk.farbench("report", run_id, "--format", "markdown").stdout
    parts = re.split(r"(?=^#+ .*NVIDIA)", tables, flags=re.MULTILINE)
    titled = [part for part in parts if re.match(r"#+ .*NVIDIA", part)]
    assert len(titled) == 2
    assert all((H200 in part) != (B200 in part) for part in titled)


def test_a_gang_runs_between_single_cases_and_dies_as_one(desk: Desk, rack: Rack) -> None:
    """Rank 1 exits; rank 0 waits for it and ignores SIGTERM. The devices are free for what comes next."""
    host, uuids = rack.host(H200, H200, H200)
    desk.write("payloads/ranks.py.j2", RANKS)
    desk.add_host("h1", host, devices="all")
    single = {
        "payload": "odd",
        "matrix": {"case": [{"i": i, "seconds": 0.1} for i in range(6)]},
        "backends": ["one"],
    }
    gang = {
        "payload": "ranks",
        "matrix": {"how": ["ok", "die", "ok again"]},
        "backends": ["one"],
        "devices_per_case": 2,
    }
    desk.write("sweep.yaml", json.dumps({"name": "gangs", "parts": [single, gang], "timeout_s": 20}))
    process, run_id = desk.begin()
    stdout, stderr = process.communicate(timeout=100)
    assert json.loads(stdout)["counts"] == {"ok": 8, "crashed": 1}, stderr
    by_how = {r["params"]["how"]: r for r in desk.results(run_id) if r["payload"] == "ranks"}
    assert by_how["die"]["status"] == "crashed"
    assert "rank 1: exit code 3" in by_how["die"]["reason"]
    for how in ("ok", "ok again"):
        assert by_how[how]["extra"]["world"] == "2"
        assert set(by_how[how]["extra"]["visible"].split(",")) < set(uuids)
    pids = [int(line) for line in (desk.traces / "ranks").read_text().split()]
    assert not any(map(is_running, pids))
    ports = {r["extra"]["port"] for r in by_how.values() if r["status"] == "ok"}
    assert len(ports) == 2  # each case has one of its own


RANKS = """{#- farbench
summary: a case for several devices at once
parameters: {how: {type: str}}
backends: {one: the only one}
-#}
import json
import os
import signal
import time

from harness import Needs, Payload, Reported, main

CASES = json.loads({{ cases | literal }})
payload = Payload("ranks", prepare=lambda params, device: params)


@payload.backend("one", Needs(device="any"))
def one(params):
    with open(os.path.join(os.environ["TRACES"], "ranks"), "a") as traces:
        traces.write("%d\\n" % os.getpid())
    if params["how"] == "die":
        if os.environ["RANK"] == "1":
            os._exit(3)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    extra = {
        "world": os.environ["WORLD_SIZE"], "port": os.environ["MASTER_PORT"],
        "visible": os.environ["CUDA_VISIBLE_DEVICES"],
    }
    return Reported(samples_us=[5.0] * 10, extra=extra)


if __name__ == "__main__":
    main(payload, CASES)
"""


def test_gangs_of_two_models_wait_in_one_run_without_losing_their_places(
    desk: Desk, rack: Rack, tmp_path: Path
) -> None:
    host, uuids = rack.host(H200, H200, B200, B200)
    desk.write("payloads/ranks.py.j2", RANKS)
    desk.add_host("h1", host, devices="all")
    gang = {"payload": "ranks", "matrix": {"how": ["ok"]}, "backends": ["one"], "devices_per_case": 2}
    desk.write("sweep.yaml", json.dumps({"name": "gangs", **gang, "placement": "shard"}))
    held = Leases(str(tmp_path), str(tmp_path / "leases"), "other").try_claim(uuids)
    assert held is not None

    def tickets() -> dict[str, float]:
        return {path.name: path.stat().st_mtime for path in (tmp_path / "leases").glob("ticket-*")}

    with held:
        process, run_id = desk.begin()
        wait_for(lambda: len(tickets()) == 2, "both gangs to take a place in the line")
        first = tickets()
        wait_for(lambda: all(t > first.get(name, t) for name, t in tickets().items()), "both to try again")
        assert tickets().keys() == first.keys()
    assert desk.end(process)["counts"] == {"ok": 2}
    assert {r["device"]["name"] for r in desk.results(run_id)} == {H200, B200}
    assert not tickets()


def test_a_gang_larger_than_any_model_of_the_host_is_unsupported(desk: Desk, rack: Rack) -> None:
    host, _ = rack.host(H200, H200, B200)
    desk.write("payloads/ranks.py.j2", RANKS)
    desk.add_host("h1", host, devices="all")
    sweep = {
        "name": "gangs",
        "payload": "ranks",
        "matrix": {"how": ["ok"]},
        "backends": ["one"],
        "devices_per_case": 2,
    }
    desk.write("sweep.yaml", json.dumps({**sweep, "placement": "shard"}))
    process, run_id = desk.begin()
    assert desk.end(process)["counts"] == {"ok": 1, "unsupported": 1}
    by_model = {r["device"]["name"]: r for r in desk.results(run_id)}
    assert by_model[B200]["status"] == "unsupported"
    assert "2 devices of one model" in by_model[B200]["reason"]
    desk.write("sweep.yaml", json.dumps({**sweep, "devices_per_case": 3}))
    process, run_id = desk.begin()
    process.communicate(timeout=100)
    (result,) = desk.results(run_id)
    assert result["status"] == "unsupported"
    assert not agents(host)
    assert os.path.exists(host.home)
