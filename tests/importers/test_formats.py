"""What each format says arrives as farbench would have said it: units, samples, names of clocks, failures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from orchestrator.identity import case_id
from orchestrator.importers import formats
from orchestrator.importers.google_benchmark import parse_name
from orchestrator.importers.measurements import Said, relative_error
from orchestrator.importers.source import Source
from payloads.harness import stats
from tests.importers.conftest import DATA, numbers, read

FORMAT_OF = {
    "nvbench.json": "nvbench", "google-benchmark.json": "google-benchmark", "pyperf.json": "pyperf",
    "vllm-latency.json": "vllm", "vllm-throughput.json": "vllm", "vllm-serve.json": "vllm",
    "vllm-serve-appended.json": "vllm", "trace.jsonl": "flashinfer-trace", "flashinfer.csv": "flashinfer-csv",
    "all_reduce.txt": "nccl-tests", "softmax.csv": "triton-csv", "add-ms.csv": "triton-csv",
}  # fmt: skip


@pytest.mark.parametrize("name", FORMAT_OF)
def test_a_format_is_told_by_its_content(name: str, tmp_path: Path):
    for file in (DATA / name, tmp_path / "renamed.bin"):
        if not file.exists():
            shutil.copy(DATA / name, file)
        assert formats.detect(Source.read(file)) == FORMAT_OF[name]


@pytest.mark.parametrize("name", FORMAT_OF)
def test_windows_line_ends_and_a_byte_order_mark_change_nothing(name: str, tmp_path: Path):
    file = tmp_path / name
    file.write_bytes(b"\xef\xbb\xbf" + (DATA / name).read_bytes().replace(b"\n", b"\r\n"))
    shutil.copytree(DATA / "nvbench.json-bin", tmp_path / "nvbench.json-bin")
    assert [m.model_dump(exclude={"case_id"}) for m in read(file)] == [
        m.model_dump(exclude={"case_id"}) for m in read(DATA / name)
    ]


@pytest.mark.parametrize("name", FORMAT_OF)
def test_a_case_is_known_by_payload_and_typed_parameters(name: str):
    for m in read(DATA / name):
        assert m.case_id == case_id(m.payload, m.params)
        assert m.accuracy is None or m.accuracy.reference
        assert (m.verdict == "valid") == (m.status == "ok")


def test_nvbench():
    found = read(DATA / "nvbench.json")
    assert numbers(found) == [
        ("nvbench", "ok", "nvbench:events", 12.0, 9),
        ("nvbench", "ok", "nvbench:events:mean", 2.5, 400),
        ("nvbench", "unsupported", None, None, None),
        ("nvbench", "error", None, None, None),
        ("nvbench", "ok", "nvbench:cpu", 1900.0, 12),
    ]
    first = found[0]
    assert (first.payload, first.params) == ("copy_kernel", {"T": "I32", "Elements": 2**53 + 1, "Fill": 0.5})
    assert first.label == "T=I32 Elements=9007199254740993"
    assert [round(s, 3) for s in first.samples_us or ()] == [12, 11, 13, 12, 12, 14, 10, 12, 13]
    assert (first.timing.cache, round(first.timing.p20_us, 3)) == ("cold", 11.6)
    assert (first.device.name, first.device.index, first.device.compute_capability) == (
        "NVIDIA H200",
        0,
        "9.0",
    )
    assert found[1].device.compute_capability == "12.0"
    assert first.metrics["gbps"] == pytest.approx(3200)
    assert (first.metrics["batch_mean_us"], first.metrics["my_metric"]) == (10.0, 7.5)
    assert first.telemetry.sm_clock_mhz == 1980
    assert found[2].reason == "Not enough memory"
    assert "no positive number" in found[3].reason
    assert found[4].device is None


def test_nvbench_without_its_samples_takes_the_median(tmp_path: Path):
    file = Path(shutil.copy(DATA / "nvbench.json", tmp_path))
    assert numbers(read(file))[0] == ("nvbench", "ok", "nvbench:events", 12.0, 9)
    assert read(file)[0].samples_us is None
    _, found = formats.read(Source.read(file), "auto", formats.Wishes())
    assert found.remarks == [
        "the samples in nvbench.json-bin/0.bin are not beside the file: the summaries were taken"
    ]


@pytest.mark.parametrize("name", ["/etc/hostname", "../../../etc/hostname", "..", "", "/", "a/../b"])
def test_nvbench_samples_are_only_looked_for_beside_the_file(tmp_path: Path, name: str):
    file = tmp_path / "deep" / "x.json"
    file.parent.mkdir()
    file.write_text((DATA / "nvbench.json").read_text().replace("nvbench.json-bin/0.bin", name))
    assert read(file)[0].samples_us is None


def test_google_benchmark():
    found = read(DATA / "google-benchmark.json")
    raw = [
        b
        for b in json.loads((DATA / "google-benchmark.json").read_text())["benchmarks"]
        if b["run_type"] == "iteration"
    ]
    assert [(m.payload, m.params, m.status.value) for m in found] == [
        ("copy_list", {"m": 64, "n": 128}, "ok"),
        ("copy_list", {"m": 128, "n": 128}, "ok"),
        ("sort_list", {}, "ok"),
        ("refuses", {}, "error"),
    ]
    assert found[0].samples_us == pytest.approx(
        [b["real_time"] / 1e3 for b in raw if b["run_name"] == "copy_list/m:64/n:128"]
    )
    assert found[2].samples_us == pytest.approx(
        [b["real_time"] * 1e3 for b in raw if b["name"] == "sort_list"]
    )
    assert numbers(found)[2][2:] == (
        "google-benchmark:wall",
        pytest.approx(sorted(found[2].samples_us)[3], abs=1e-4),
        7,
    )
    assert found[0].metrics["gbps"] == pytest.approx(raw[0]["bytes_per_second"] / 1e9)
    assert found[3].reason == "no such device [bs=8]"
    assert (found[0].host, found[0].device.kind) == ("bench1", "cpu")
    assert found[0].started_at == "2025-03-03T23:36:07.000Z"


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("BM_Copy", ("BM_Copy", {}, "wall")),
        (
            "BM_Gemm<float, a/b>/64/M:128/real_time/threads:4",
            ("BM_Gemm<float, a/b>", {"arg0": 64, "M": 128, "threads": 4}, "wall"),
        ),
        ("Fixture/Method/8/x:y/manual_time", ("Fixture/Method", {"arg0": 8, "x": "y"}, "manual")),
        ("BM/iterations:5/repeats:3/min_time:0.1/9007199254740993", ("BM", {"arg0": 2**53 + 1}, "wall")),
    ],
)
def test_the_names_of_google_benchmark(name: str, parsed: tuple[object, ...]):
    assert parse_name(name) == parsed


def test_google_benchmark_with_aggregates_only(tmp_path: Path):
    report = json.loads((DATA / "google-benchmark.json").read_text())
    report["benchmarks"] = [b for b in report["benchmarks"] if b["run_type"] == "aggregate"]
    (tmp_path / "x.json").write_text(json.dumps(report))
    found = read(tmp_path / "x.json")
    assert [m.timing.timer for m in found] == ["google-benchmark:wall"] * 3
    median = next(
        b
        for b in report["benchmarks"]
        if b["name"].startswith("copy_list/m:64") and b["aggregate_name"] == "median"
    )
    assert found[0].timing.median_us == pytest.approx(median["real_time"] / 1e3)
    assert found[0].samples_us is None


def test_pyperf():
    found = read(DATA / "pyperf.json")
    raw = json.loads((DATA / "pyperf.json").read_text())["benchmarks"]
    assert [(m.params, m.label) for m in found] == [
        ({"benchmark": "sort [n=1000]"}, "sort [n=1000]"),
        ({"benchmark": "join é\u2028x"}, "join é\u2028x"),
    ]
    assert found[0].samples_us == [v * 1e6 for run in raw[0]["runs"] for v in run["values"]]
    assert numbers(found)[0][2:] == ("pyperf:wall", round(sorted(found[0].samples_us)[4], 4), 9)
    assert (found[0].timing.calls_per_sample, found[0].host, found[0].device.name) == (
        128,
        "bench2",
        "AMD EPYC",
    )
    assert found[0].started_at is None  # its dates do not say their zone
    assert found[0].extra["local_date"].startswith("2026-11-29 ")


def test_pyperf_of_bytes_is_no_time(tmp_path: Path):
    suite = {
        "version": "1.0",
        "metadata": {"unit": "byte", "name": "mem"},
        "benchmarks": [{"runs": [{"values": [7, 9, 8]}]}],
    }
    (tmp_path / "x.json").write_text(json.dumps(suite))
    (only,) = read(tmp_path / "x.json")
    assert (only.timing, only.metrics) == (None, {"bytes": 8})


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


def test_a_case_that_a_file_measures_twice_is_kept_twice(tmp_path: Path):
    (tmp_path / "x.csv").write_text("n,A (ms)\n1,2.0\n1,3.0\n1,4.0\n")
    assert [(m.row, m.timing.median_us) for m in read(tmp_path / "x.csv")] == [
        (None, 2000.0),
        ({"repeat": 2}, 3000.0),
        ({"repeat": 3}, 4000.0),
    ]


def test_what_the_person_says_wins():
    said = Said(device="NVIDIA H200 NVL", host="gpu7", backend="mine", params={"tp": 8})
    found = read(DATA / "nvbench.json", said=said)
    assert {(m.device and m.device.name, m.host, m.backend) for m in found} == {
        ("NVIDIA H200 NVL", "gpu7", "mine")
    }
    assert found[0].params["tp"] == 8
    assert found[0].device.index == 0
    assert read(DATA / "pyperf.json", said=Said(device="x"))[0].device.kind == "cpu"


def test_many_samples_are_thinned_and_counted(tmp_path: Path):
    suite = {
        "version": "1.0",
        "metadata": {"name": "x"},
        "benchmarks": [{"runs": [{"values": [i * 1e-6 for i in range(1, 10001)]}]}],
    }
    (tmp_path / "x.json").write_text(json.dumps(suite))
    (only,) = read(tmp_path / "x.json")
    assert (only.timing.samples, only.timing.median_us, len(only.samples_us)) == (
        10000,
        pytest.approx(5000.5),
        2000,
    )


@pytest.mark.parametrize("count", [0, 5, 6, 7, 20, 50, 51, 1000])
def test_the_error_of_a_median_is_the_payloads_own(count: int):
    samples = [1 + (i * 7919 % 101) / 100 for i in range(count)]
    assert relative_error(samples) == pytest.approx(stats.relative_error(samples))
