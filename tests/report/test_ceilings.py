"""The share of the ceilings measured on the same device, where a run or an earlier one knows them."""

from __future__ import annotations

import csv
import io
import json

import pytest

from orchestrator.archive import Archive
from orchestrator.report import build, lay_out, render, to_text
from orchestrator.report.ceilings import measured, share_of

GPU = {"uuid": "GPU-1", "index": 0, "name": "NVIDIA H200", "kind": "gpu"}
OTHER = {**GPU, "uuid": "GPU-2", "index": 1}
SIDES = {"m": 8192, "n": 8192, "k": 8192}


@pytest.fixture
def gemm(ok):
    """An FP8 product: `gemm("c1", "torch", 9.0, tflops=45.0, gbps=1400.0)`."""

    def make(case, backend, us, tflops, gbps, precision="fp8", **changes):
        metrics = {"tflops": tflops, "gbps": gbps, "peak_fraction": tflops / 1979}
        more = {"device": GPU, "payload": "gemm_fp8", "metrics": metrics, "extra": {"precision": precision}}
        return ok(case, backend, us, **{**more, **changes})

    return make


@pytest.fixture
def ceilings(ok, gemm):
    """A copy and a large product."""

    def make(**changes):
        copy = {"device": GPU, "payload": "copy", "metrics": {"gbps": 4200.0}, "label": "1 GiB", **changes}
        return [
            ok("c8", "torch", 511.3, **copy),
            gemm("c9", "cublas", 733.0, 1500.0, 275.0, params=SIDES, label="8192³", **changes),
        ]

    return make


def test_a_share_is_of_the_nearer_of_two_ceilings(gemm, ceilings):
    known = measured(ceilings())
    decode = share_of(gemm("c1", "torch", 9.0, 45.0, 1400.0), known)
    assert (decode.fraction, decode.bound) == (pytest.approx(1 / 3), "memory")
    assert decode.arithmetic == pytest.approx(0.03)
    prefill = share_of(gemm("c2", "torch", 20.0, 1200.0, 1050.0), known)
    assert (prefill.fraction, prefill.bound) == (pytest.approx(0.8), "arithmetic")


def test_ceilings_are_of_one_device_and_one_precision(gemm, ceilings, ok):
    known = measured(ceilings())
    assert share_of(gemm("c1", "torch", 9.0, 45.0, 1400.0, device=OTHER), known) is None
    other_precision = share_of(gemm("c1", "torch", 9.0, 45.0, 1400.0, precision="bf16"), known)
    assert (other_precision.arithmetic, other_precision.bound) == (None, "memory")
    assert share_of(ok("c1", "torch", 1.0, device=GPU, metrics={"tflops": 3.0}), known) is None
    hot = {"timing": {"timer": "graph", "cache": "hot", "median_us": 7.0, "samples": 9}}
    assert share_of(gemm("c1", "torch", 7.0, 58.0, 1800.0, **hot), known).memory is None


def test_a_faster_product_than_the_large_one_is_the_ceiling_and_small_ones_alone_are_none(gemm, ceilings):
    small = gemm("c1", "torch", 60.0, 1661.0, 700.0)
    assert measured([small]) == {}
    assert measured([*ceilings(), small])["GPU-1", "fp8"].rate == 1661.0


@pytest.mark.parametrize(
    "changes",
    [
        {"verdict": "suspect", "reasons": ["throttled"]},
        {"device": {**GPU, "kind": "cpu"}},
        {"device": None},
    ],
)
def test_doubtful_times_and_cpus_make_no_ceiling(ceilings, changes):
    assert measured(ceilings(**changes)) == {}


def test_a_small_copy_may_stay_in_the_cache_and_is_no_ceiling(ok):
    small = ok("c8", "torch", 2.0, device=GPU, payload="copy", metrics={"gbps": 9000.0})
    assert measured([small]) == {}


def test_every_format_shows_it(gemm, ceilings, document):
    report = lay_out(document(), "finished", [gemm("c1", "torch", 9.0, 45.0, 1400.0), *ceilings()])
    text = to_text(render(report), 160)
    assert "45.0 TFLOP/s  2.3% / 33%" in text
    assert "% of the device's peak / of the ceilings measured on it" in text
    assert "fp8 ceiling of blackwell:0: 1500 TFLOP/s (gemm_fp8 cublas, 8192³)" in text
    assert "memory ceiling of blackwell:0: 4200 GB/s (copy torch, 1 GiB)" in text
    assert "4200 GB/s  – / 100%" in text
    assert "9.000, 45.0 TFLOP/s, 2.3% / 33%" in render(report, "markdown")
    told = json.loads(render(report, "json"))["measurements"][0]["ceilings"]
    assert (told["ceiling_fraction"], told["bound"]) == (pytest.approx(1 / 3), "memory")
    assert told["arithmetic"] == {
        "fraction": pytest.approx(0.03), "tflops": 1500.0, "run_id": report.run.run_id, "payload": "gemm_fp8",
        "backend": "cublas", "label": "8192³",
    }  # fmt: skip
    assert told["memory"]["gbps"] == 4200.0
    line = next(csv.DictReader(io.StringIO(render(report, "csv"))))
    assert (float(line["ceiling_fraction"]), line["ceiling_bound"]) == (pytest.approx(1 / 3), "memory")


def test_without_ceilings_nothing_changes(gemm, document):
    report = lay_out(document(), "finished", [gemm("c1", "torch", 9.0, 45.0, 1400.0)])
    text = to_text(render(report), 160)
    assert "2.3%" in text
    assert "ceiling" not in text + render(report, "csv") + render(report, "json")


def commit(archive: Archive, document, run_id, measurements):
    """A committed run of these."""
    run = archive.create(run_id, document(run_id=run_id), {})
    folder = archive.path / "runs" / run_id
    lines = [m.model_copy(update={"run_id": run_id}).model_dump_json() for m in measurements]
    (run.folder.path / "results.jsonl").write_text("".join(f"{line}\n" for line in lines))
    folder.parent.mkdir(exist_ok=True)
    run.folder.path.rename(folder)
    return archive.find(run_id)


def test_failing_its_own_a_run_takes_those_of_the_newest_earlier_run(archive, document, gemm, ceilings):
    small = gemm("c1", "torch", 9.0, 45.0, 1400.0)
    commit(archive, document, "20250101T000000Z-aaaaaa", ceilings())
    newer = [m.model_copy(update={"metrics": {**m.metrics, "gbps": 2800.0}}) for m in ceilings()]
    commit(archive, document, "20250102T000000Z-bbbbbb", newer)
    commit(archive, document, "20250103T000000Z-cccccc", [small])
    run = commit(archive, document, "20250104T000000Z-dddddd", [small])
    commit(archive, document, "20250105T000000Z-eeeeee", ceilings())
    (archive.path / "runs" / "20250103T000000Z-cccccc" / "results.jsonl").write_text("damaged\n")
    report = build(archive, run)
    (share,) = report.shares
    assert (share.fraction, share.bound) == (pytest.approx(0.5), "memory")
    assert {c.by.run_id for c in share.ceilings} == {"20250102T000000Z-bbbbbb"}
    assert "2800 GB/s (copy torch, 1 GiB, run 20250102T000000Z-bbbbbb)" in to_text(render(report), 160)


def test_many_small_runs_do_not_hide_the_one_that_measured_the_ceilings(
    archive, document, gemm, ceilings, monkeypatch
):
    small = gemm("c1", "torch", 9.0, 45.0, 1400.0)
    commit(archive, document, "20250101T000000Z-aaaaaa", ceilings())
    for minute in range(20):
        commit(archive, document, f"20250102T00{minute:02}00Z-bbbbbb", [small])
    run = commit(archive, document, "20250104T000000Z-dddddd", [small])
    assert "fp8 ceiling of blackwell:0: 1500 TFLOP/s (gemm_fp8 cublas" in to_text(
        render(build(archive, run)), 160
    )
    monkeypatch.setattr("orchestrator.report.ceilings.MEASUREMENTS_READ", 20)
    assert "ceiling" not in to_text(render(build(archive, run)), 160)
