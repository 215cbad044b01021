"""Formats of kernels, collectives and models: flashinfer, Triton, vLLM, nccl-tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.importers.measurements import Said
from tests.importers.conftest import DATA, numbers, read


def test_flashinfer_csv():
    found = read(DATA / "flashinfer.csv", said=Said(device="NVIDIA B200"))
    assert numbers(found) == [
        ("cutlass", "ok", "flashinfer:cupti:graph", 12.5, 0),
        ("cudnn", "ok", "flashinfer:cupti:graph", 15.0, 0),
        ("cutlass", "ok", "flashinfer:cupti:graph", 41.0, 0),
        ("auto", "ok", "flashinfer:events:eager", 200.0, 0),
        ("fa2", "error", None, None, None),
    ]
    assert found[0].params == {
        "n": 2048,
        "use_nvfp4": True,
        "input_dtype": "bfloat16",
        "out_dtype": "bfloat16",
        "m": 16,
        "k": 6144,
    }
    assert found[0].case_id == found[1].case_id != found[2].case_id
    assert (found[0].label, found[2].label) == ("decode m=16", "prefill m=256")
    assert (found[0].metrics["tflops"], found[0].metrics["gbps"]) == (412.5, 1750)
    assert found[0].extra["repro_command"].endswith("--tag a,b")
    assert found[3].extra["random_seed"] == 2**53 + 1
    assert (found[3].resolved_backend, found[3].params["num_tokens"]) == ("trtllm", 512)
    assert found[0].device.name == "NVIDIA B200"


def test_flashinfer_traces():
    found = read(DATA / "trace.jsonl")
    assert numbers(found) == [
        ("triton_v1", "ok", "flashinfer-bench:mean", 8.0, 0),
        ("cuda_v2", "incorrect", None, None, None),
        ("cuda_v3", "error", None, None, None),
        ("slow", "timeout", None, None, None),
    ]
    assert found[0].params == {"batch_size": 16, "eps": 1e-6, "workload": "w1"}
    assert (found[0].accuracy.max_abs_error, found[0].metrics["reference_us"]) == (0.002, 20.0)
    assert found[1].accuracy.max_abs_error is None
    assert found[2].log_tail == "error: \x1b[31mno\x1b[0m \u2028 </script>"
    assert (found[0].device.name, found[0].started_at) == ("NVIDIA H200", "2025-06-27T12:45:00.000Z")


def test_triton_times():
    found = read(DATA / "add-ms.csv")
    assert [(m.payload, m.params, m.backend, m.timing.timer) for m in found][:2] == [
        ("add-ms", {"size": 8}, "Triton", "triton:perf_report"),
        ("add-ms", {"size": 8}, "Torch", "triton:perf_report"),
    ]
    assert [m.timing.median_us for m in found] == pytest.approx([80, 80, 160, 160, 320, 320])


def test_triton_rates_are_metrics():
    found = read(DATA / "softmax.csv")
    assert [(m.params, m.backend, m.status.value, m.timing, m.metrics) for m in found] == [
        ({"M": 128, "N": 256}, "Triton", "ok", None, {"gbps": 12864.0}),
        ({"M": 128, "N": 256}, "cuBLAS", "ok", None, {"gbps": 6432.0}),
        ({"M": 1024, "N": 2**20}, "Triton", "ok", None, {"gbps": 102912.0}),
        ({"M": 1024, "N": 2**20}, "cuBLAS", "error", None, {}),
    ]


@pytest.mark.parametrize(
    ("unit", "metrics"),
    [("GB/s", {"gbps": 12.5}), ("TB/s", {"gbps": 12500.0}), ("TFLOPS", {"tflops": 12.5}), ("GFLOPS", {"tflops": 0.0125}), ("Speedup (%)", {"speedup": 12.5})],
)  # fmt: skip
def test_triton_tables_that_do_not_say_their_unit(unit: str, metrics: dict[str, float]):
    found = read(DATA / "old-style.csv", "triton-csv", unit=unit)
    assert (found[0].params, found[0].backend, found[1].backend) == ({"N": 256}, "Triton", "Torch Native")
    assert found[0].metrics == pytest.approx(metrics)


def test_triton_parameters_that_are_named():
    found = read(DATA / "old-style.csv", "triton-csv", unit="ms", keys=("N", "Triton"))
    assert [(m.params, m.backend, m.timing.median_us) for m in found] == [
        ({"N": 256, "Triton": 12.5}, "Torch Native", 11000.0),
        ({"N": 512, "Triton": 25}, "Torch Native", 22500.0),
    ]


def test_vllm_latency_and_throughput():
    (latency,) = read(DATA / "vllm-latency.json")
    assert numbers([latency]) == [("vllm", "ok", "vllm:host", 1235000.0, 8)]
    assert (latency.params, latency.metrics["p99_us"]) == ({"file": "vllm-latency"}, 1298000.0)
    (named,) = read(DATA / "vllm-latency.json", said=Said(params={"tp": 8}), names_case=True)
    assert named.params == {"tp": 8}
    (throughput,) = read(DATA / "vllm-throughput.json")
    assert numbers([throughput]) == [("vllm", "ok", "vllm:host", 32500000.0, 1)]
    assert throughput.metrics == {
        "requests_per_second": 30.77,
        "tokens_per_second": 13230.8,
        "total_num_tokens": 430000,
    }


def test_vllm_serve():
    found = read(DATA / "vllm-serve.json")
    assert [(m.row, m.timing.median_us, m.timing.samples) for m in found] == [
        ({"time": "duration"}, 2500000.0, 1),
        ({"time": "ttft"}, pytest.approx(53500.0), 4),
        ({"time": "tpot"}, pytest.approx(10200.0), 0),
        ({"time": "itl"}, pytest.approx(10000.0), 6),
    ]
    assert len({m.case_id for m in found}) == 1
    assert found[0].params["request_rate"] == "inf"
    assert (found[0].backend, found[0].metrics["total_token_throughput"]) == ("openai", 192.0)
    assert found[1].metrics["p99_us"] == pytest.approx(59900)
    assert "generated_texts" not in found[0].extra


def test_vllm_results_that_were_appended():
    found = read(DATA / "vllm-serve-appended.json")
    assert [m.params["request_rate"] for m in found] == [1.0] * 4 + [2.0] * 4
    assert len({m.case_id for m in found}) == 2


def test_nccl_tests():
    found = read(DATA / "all_reduce.txt")
    assert [(m.row, m.status.value, m.timing and m.timing.median_us) for m in found] == [
        ({"place": "out_of_place"}, "ok", 12.31),
        ({"place": "in_place"}, "ok", 12.05),
        ({"place": "out_of_place"}, "ok", 187.4),
        ({"place": "in_place"}, "incorrect", None),
    ]
    assert found[0].params == {"size_bytes": 8, "type": "float", "redop": "sum", "root": -1, "ranks": 2}
    assert (found[0].payload, found[0].backend, found[0].timing.timer) == (
        "all_reduce_perf",
        "nccl",
        "nccl-tests:host:mean",
    )
    assert found[2].metrics == {"algbw_gbps": 179.05, "busbw_gbps": 179.05}
    assert found[3].reason == "3 elements of the result are wrong"
    assert (found[0].host, found[0].device.name) == ("node1", "NVIDIA H200")


def test_nccl_tests_of_other_versions(tmp_path: Path):
    """No name of the test, per-iteration columns, time stamps, the processor's time, unchecked results."""
    (tmp_path / "broadcast.log").write_text(
        "mpirun: hello\n"
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 1048576(bytes) warmup iters: 5 iters: 20 agg iters: 1 validation: 0 graph: 0\n"
        "#       size         count      type   redop    root  cputime   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%  cputime   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%           timestamp\n"
        "           8             2     float    none       0     3.50    0.00    0.00     N/A     3.10     9.00     8.50     12.1     3.40    0.00    0.00     N/A     3.00     8.00     7.50     11.0  2025-01-01 00:00:00\n"
        "# Avg bus bandwidth    : 0.1 \n"
    )
    found = read(tmp_path / "broadcast.log")
    assert [(m.payload, m.timing.timer, m.timing.median_us) for m in found] == [
        ("broadcast", "nccl-tests:cpu:mean", 3.5),
        ("broadcast", "nccl-tests:cpu:mean", 3.4),
    ]
    assert found[0].metrics == {
        "algbw_gbps": 0.0,
        "busbw_gbps": 0.0,
        "min_us": 3.1,
        "max_us": 9.0,
        "p99_us": 8.5,
    }
    assert found[0].extra["checked"] is False
    assert found[0].device is None


def test_triton_difference_of_two_columns_is_left_out(tmp_path: Path):
    (tmp_path / "x.csv").write_text("n,A (ms),B (ms),Diff\n1,2.0,3.0,1.0\n")
    assert [(m.params, m.backend) for m in read(tmp_path / "x.csv")] == [({"n": 1}, "A"), ({"n": 1}, "B")]


def test_a_trace_that_ended_in_a_way_not_known_yet_is_an_error(tmp_path: Path):
    traces = map(json.loads, (DATA / "trace.jsonl").read_text().splitlines())
    first = next(trace for trace in traces if trace["evaluation"])
    first["evaluation"] |= {"status": "REWARD_HACK", "performance": None}
    (tmp_path / "x.jsonl").write_text(json.dumps(first) + "\n")
    (found,) = read(tmp_path / "x.jsonl")
    assert (found.status, found.reason) == ("error", "it ended as REWARD_HACK")


@pytest.mark.parametrize("label", ["Time (ms)", "Runtime (ms) ", "ms"])
def test_triton_labels_with_words_around_the_unit(label: str, tmp_path: Path):
    (tmp_path / "x.csv").write_text(f"n,Torch (native) ({label}),Triton ({label})\n256.0,1.5,0.5\n")
    assert [(m.backend, m.timing and m.timing.median_us) for m in read(tmp_path / "x.csv")] == [
        ("Torch (native)", 1500.0),
        ("Triton", 500.0),
    ]


@pytest.mark.parametrize("before", ["[1,0]<stdout>:", "[1,0]<stdout>: ", "0: "])
def test_nccl_tests_below_a_launcher_that_labels_its_lines(before: str, tmp_path: Path):
    text = (DATA / "all_reduce.txt").read_text()
    (tmp_path / "x.txt").write_text("".join(f"{before}{line}\n" for line in text.splitlines()))
    assert numbers(read(tmp_path / "x.txt")) == numbers(read(DATA / "all_reduce.txt"))
