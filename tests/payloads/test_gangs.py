"""Ranks that measure together: as many calls on each, decided by rank 0; and all-reduces, right and wrong."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from harness.gang import SOLO, Gang
from payload_helpers import PAYLOADS, STANDINS, make_item

from orchestrator.rendering import Catalogue, render

RANK = Path(__file__).with_name("gang_rank.py")
QUICK = {"cache": "cold", "min_time_ms": 30, "max_time_ms": 300, "target_rel_error": 0.2, "rounds": 2}

COUNTING = """
import json
import os
import time

from harness import Call, Needs, Payload, main

CASES = json.loads({{ cases | literal }})


class Problem:
    def __init__(self, params, device):
        self.gang, self.params, self.calls, self.sizes = device.gang, params, 0, []
        if params.get("prepare_fails_on") == self.gang.rank:
            raise RuntimeError("no such thing here")

    def close(self):
        print(json.dumps({"rank": self.gang.rank, "calls": self.calls}), flush=True)


payload = Payload(json.loads({{ payload | literal }}), prepare=Problem, collective=True)


@payload.backend("counting", Needs())
def counting(problem):
    import torch

    dist = problem.gang.process_group("gloo")
    rank = problem.gang.rank
    if problem.params.get("build_fails_on") == rank:
        raise ValueError("cannot be built")

    def run(inputs, out):
        problem.calls += 1
        if problem.params.get("dies_alone_on") == rank and problem.calls == 3:
            raise ValueError("one rank has had enough")
        # Ranks of different speed: what each would decide for itself differs.
        time.sleep(0.0005 * (rank + 1) ** 2)
        out.copy_(inputs)
        dist.all_reduce(out)
        if problem.params.get("wrong_on") == rank:
            out.zero_()
        return out

    x = torch.arange(1.0, 9.0)
    return Call(run=run, inputs=x, make_out=lambda: torch.empty_like(x), reference=lambda: x * problem.gang.size)


@payload.backend("second", Needs())
def second(problem):
    return counting(problem)


if __name__ == "__main__":
    main(payload, CASES)
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ranks(argv, size=2, env=None, timeout=110):
    """Run `argv` as `size` ranks; each one's exit code, and the JSON lines it printed."""
    port = free_port()
    started = [
        subprocess.Popen(
            argv,
            env={
                **os.environ, "OMP_NUM_THREADS": "1", "RANK": str(rank), "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **(env or {}),
            },
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
        for rank in range(size)
    ]  # fmt: skip
    deadline = time.monotonic() + timeout
    found = []
    try:
        for process in started:
            out, _ = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
            found.append((process.returncode, [json.loads(line) for line in out.decode().splitlines()]))
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.wait()
    return found


def by_case(lines):
    """What a rank printed, by the case's label: records by backend, and the rest by key."""
    found = {}
    for line in lines:
        if "case" in line:
            case = found[line["case"]] = {}
        elif "backend" in line:
            case[line["backend"]] = line
        else:
            case.update(line)
    return found


def rendered(folder, items, name, source=None):
    """A rendered payload with the harness beside it."""
    shutil.copytree(PAYLOADS / "harness", folder / "harness", ignore=shutil.ignore_patterns("__pycache__"))
    if source is not None:
        (folder / f"{name}.py.j2").write_text(source)
    path = folder / f"{name}.py"
    path.write_text(render(Catalogue([folder, PAYLOADS]).find(name), items))
    return [sys.executable, str(RANK), str(path), str(STANDINS), json.dumps(items)]


def test_ranks_make_the_same_calls_and_share_every_mishap(tmp_path):
    cases = {
        "plain": {},
        "wrong": {"wrong_on": 1},
        "unbuilt": {"build_fails_on": 1},
        "unprepared": {"prepare_fails_on": 2},
    }
    items = [
        make_item(params, ["counting", "second"], label, "counting", measure={**QUICK, "cache": "hot"})
        for label, params in cases.items()
    ]
    found = ranks(rendered(tmp_path, items, "counting", COUNTING), size=3)
    assert [code for code, _ in found] == [0, 0, 0]
    seen = [by_case(lines) for _, lines in found]
    assert all(case["healthy"] for rank in seen for case in rank.values())

    plain = [rank["plain"] for rank in seen]
    assert plain[0]["calls"] == plain[1]["calls"] == plain[2]["calls"] > 20
    assert {(case["counting"]["status"], case["second"]["status"]) for case in plain} == {("ok", "ok")}

    for rank in seen:
        record = rank["wrong"]["counting"]
        assert (record["status"], record["timing"]) == ("incorrect", None)
        assert record["reason"] == "rank 1: the output is zero everywhere, the reference is not"

    for label, failing, own in (
        ("unbuilt", 1, "ValueError: cannot be built"),
        ("unprepared", 2, "RuntimeError: no such thing here"),
    ):
        for number, rank in enumerate(seen):
            told = own if number == failing else f"PeerFailed: rank {failing}: {own}"
            assert {rank[label][backend]["reason"] for backend in ("counting", "second")} == {told}


def test_a_rank_that_fails_while_others_wait_for_it_ends_and_frees_them(tmp_path):
    item = make_item({"dies_alone_on": 1}, ["counting"], "alone", "counting", measure=QUICK)
    (code, lead), (other, _) = ranks(rendered(tmp_path, [item], "counting", COUNTING))
    assert other == 70
    assert code in (0, 70)
    assert by_case(lead)["alone"].get("counting", {"status": "error"})["status"] == "error"


def test_without_a_gang_nothing_is_exchanged():
    assert SOLO.decide({"a": 1}) == {"a": 1}
    assert SOLO.every(3) == [3]
    assert SOLO.first_objection("why") == "why"
    with pytest.raises(KeyError):
        SOLO.together(lambda: {}["missing"])
    assert Gang.of({}).size == 1
    assert Gang.of({"WORLD_SIZE": "1", "RANK": "0"}).size == 1


def test_half_a_description_of_a_gang_is_refused():
    with pytest.raises(ValueError, match="WORLD_SIZE is 4, but MASTER_ADDR and MASTER_PORT is not set"):
        Gang.of({"WORLD_SIZE": "4", "RANK": "1"})


def test_every_library_sums_the_messages_of_all_ranks(tmp_path):
    cudart = tmp_path / "libcudart.so.13"
    source = Path(__file__).with_name("fake_cudart.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(cudart), str(source)], check=True)
    cases = {
        "all": ({"hidden": 1024}, ["torch:gloo", "sgl_kernel", "flashinfer:vllm", "flashinfer:trtllm"]),
        "odd size": ({"size_bytes": 40}, ["sgl_kernel"]),
        "odd rows": ({"hidden": 1000}, ["flashinfer:trtllm"]),
        "wide": ({"dtype": "float32"}, ["flashinfer:trtllm"]),
    }
    items = [
        make_item({"size_bytes": 32768, **params}, backends, label, "allreduce", measure=QUICK)
        for label, (params, backends) in cases.items()
    ]
    found = ranks(rendered(tmp_path, items, "allreduce"), env={"LD_LIBRARY_PATH": str(tmp_path)})
    assert [code for code, _ in found] == [0, 0]
    for rank in (by_case(lines) for _, lines in found):
        assert all(case["healthy"] for case in rank.values())
        for backend in cases["all"][1]:
            record = rank["all"][backend]
            assert record["status"] == "ok", (backend, record["reason"])
            assert record["accuracy"]["cosine"] > 0.9999
            metrics, median = record["metrics"], record["timing"]["median_us"]
            assert metrics["algo_gbps"] * median * 1e3 == pytest.approx(32768)
            assert metrics["bus_gbps"] == pytest.approx(metrics["algo_gbps"])  # 2 · (2 - 1) / 2 = 1
            assert record["extra"]["ranks"] == 2
        for label, backend, reason in (
            ("odd size", "sgl_kernel", "the custom all-reduce needs size_bytes % 16 = 0"),
            (
                "odd rows",
                "flashinfer:trtllm",
                "flashinfer's fused all-reduce needs whole rows of `hidden` elements",
            ),
            ("wide", "flashinfer:trtllm", "flashinfer's fused all-reduce is measured with 16-bit elements"),
        ):
            record = rank[label][backend]
            assert (record["status"], record["reason"]) == ("unsupported", reason)


def test_bus_bandwidth_of_three_ranks(tmp_path):
    item = make_item({"size_bytes": 32768}, ["torch:gloo", "sgl_kernel"], "three", "allreduce", measure=QUICK)
    (_, lead), *_ = ranks(rendered(tmp_path, [item], "allreduce"), size=3)
    case = by_case(lead)["three"]
    metrics = case["torch:gloo"]["metrics"]
    assert metrics["bus_gbps"] == pytest.approx(metrics["algo_gbps"] * 4 / 3)
    assert case["sgl_kernel"]["status"] == "unsupported"
    assert case["sgl_kernel"]["reason"] == "the custom all-reduce is for 2, 4, 6 or 8 ranks, not 3"


def test_one_device_is_no_all_reduce(script):
    path = script(
        [make_item({"size_bytes": 1024}, ["torch"], payload="allreduce", measure=QUICK)], "allreduce"
    )
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, timeout=100, stdin=subprocess.DEVNULL
    )
    record = json.loads(done.stdout)
    assert record["status"] == "unsupported"
    assert record["reason"].startswith("an all-reduce needs two ranks or more: set devices_per_case")


def test_standing_alone_only_rank_0_speaks(script):
    item = make_item({"size_bytes": 4096}, ["torch"], payload="allreduce", measure=QUICK)
    (code, lead), (other_code, other) = ranks([sys.executable, str(script([item], "allreduce"))])
    assert (code, other_code) == (0, 0)
    assert [record["resolved_backend"] for record in lead] == ["torch:gloo"]
    assert other == []
