"""What each format says arrives as farbench would have said it: units, samples, names of clocks, failures."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

from orchestrator.errors import FileError
from orchestrator.identity import case_id
from orchestrator.importers import formats
from orchestrator.importers.google_benchmark import parse_name
from orchestrator.importers.measurements import Said, relative_error
from orchestrator.importers.source import Source
from payloads.harness import stats
from tests.importers.conftest import DATA, FORMAT_OF, numbers, read


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


def test_google_benchmark_of_before_it_said_what_is_an_aggregate(tmp_path: Path):
    runs = [
        ("BM_x/8", 10.0),
        ("BM_x/8", 12.0),
        ("BM_x/8_mean", 11.0),
        ("BM_x/8_stddev", 1.0),
        ("BM_mean", 7.0),
    ]
    benchmarks = [
        {"name": name, "iterations": 5, "real_time": us, "cpu_time": us, "time_unit": "us"}
        for name, us in runs
    ]
    (tmp_path / "old.json").write_text(json.dumps({"context": {}, "benchmarks": benchmarks}))
    found = read(tmp_path / "old.json")
    assert [(m.payload, m.params) for m in found] == [("BM_x", {"arg0": 8}), ("BM_mean", {})]
    assert [row[3:] for row in numbers(found)] == [(11.0, 2), (7.0, 1)]


def test_google_benchmark_complexities_are_no_results_and_counters_stay_exact(tmp_path: Path):
    one = {
        "name": "BM_x/8",
        "run_type": "iteration",
        "iterations": 5,
        "real_time": 3,
        "cpu_time": 3,
        "big": 2**53 + 1,
    }
    about = {"run_name": "BM_x", "run_type": "aggregate", "time_unit": "ns"}
    big_o = {**about, "name": "BM_x_BigO", "aggregate_name": "BigO", "big_o": "N", "real_coefficient": 1.2}
    rms = {**about, "name": "BM_x_RMS", "aggregate_name": "RMS", "rms": 0.1}
    (tmp_path / "x.json").write_text(json.dumps({"context": {}, "benchmarks": [one, big_o, rms]}))
    (found,) = read(tmp_path / "x.json")
    assert found.metrics["big"] == 2**53 + 1


def test_a_packed_file_is_unpacked(tmp_path: Path):
    content = (DATA / "pyperf.json").read_bytes()
    packed = tmp_path / "pyperf.json.gz"
    packed.write_bytes(gzip.compress(content))
    assert numbers(read(packed)) == numbers(read(DATA / "pyperf.json"))
    packed.write_bytes(gzip.compress(content)[:-20])
    with pytest.raises(FileError, match="is damaged"):
        read(packed)


def test_pyperf_that_only_calibrated(tmp_path: Path):
    suite = {"version": "1.0", "metadata": {"name": "x"}, "benchmarks": [{"runs": [{"warmups": [[1, 0.1]]}]}]}
    (tmp_path / "x.json").write_text(json.dumps(suite))
    (found,) = read(tmp_path / "x.json")
    assert (found.status, found.reason) == ("error", "it has no values")
