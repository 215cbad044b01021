"""An imported file is a run like any other: listed, reported, queried, exported; the same file twice is one run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from orchestrator.archive import Archive, read_document, read_results
from orchestrator.archive.query import query
from orchestrator.cli.exchange_commands import ForeignFormat
from orchestrator.importers.formats import FORMATS
from orchestrator.importers.land import import_file
from orchestrator.importers.measurements import Said
from orchestrator.importers.source import Source
from orchestrator.report import build, render, to_text
from tests.importers.conftest import DATA, FORMAT_OF

NOW = 1_735_787_045.0
HOSTILE = "</script><img src=x onerror=alert(1)> [bs=8] [/b] \x1b[31mred \u2028 \u202e é"
BIG = 2**53 + 1


def land(archive: Archive, file: Path, said: Said | None = None):
    return import_file(archive, Source.read(file), "auto", said or Said(), clock=lambda: NOW)


def test_the_command_knows_every_format():
    assert [f.value for f in ForeignFormat] == ["auto", *FORMATS]


@pytest.mark.parametrize("name", FORMAT_OF)
def test_a_run_that_reports_and_queries(archive: Archive, name: str):
    landed = land(archive, DATA / name)
    assert (landed.format, landed.already_here) == (FORMAT_OF[name], False)
    folder = archive.find("latest")
    assert folder == landed.folder
    assert archive.scan()[1] == []
    found = list(read_results(folder))
    assert len(found) == landed.measurements
    report = build(archive, folder)
    assert report.state == "finished"
    for format in ("table", "markdown", "csv", "json", "html"):
        shown = render(report, format)
        text = shown if isinstance(shown, str) else to_text(shown)
        assert (landed.folder.run_id if format == "html" else found[0].payload) in text
    rows = query(
        archive, "select case_id, backend, status, timing.median_us, len(samples_us) from results"
    ).rows
    assert rows == [
        (
            m.case_id,
            m.backend,
            m.status.value,
            m.timing and m.timing.median_us,
            m.samples_us and len(m.samples_us),
        )
        for m in found
    ]
    document = read_document(folder.run_json)
    assert {case.id for case in document.plan.cases} == {m.case_id for m in found}
    assert {m.environment_id for m in found} - {None} == set(document.environments)
    assert (folder.path / "imported" / name).read_bytes() == (DATA / name).read_bytes()


def test_the_same_file_in_the_same_way_is_one_run(archive: Archive, tmp_path: Path):
    first = land(archive, DATA / "add-ms.csv")
    again = land(archive, Path(shutil.copy(DATA / "add-ms.csv", tmp_path)))
    assert (again.already_here, again.folder, again.measurements) == (True, first.folder, 6)
    other = land(archive, DATA / "add-ms.csv", Said(device="NVIDIA H200"))
    assert not other.already_here
    assert len(archive.runs()) == 2
    assert query(
        archive, "select count(*), count(distinct case_id), count(distinct device.name) from results"
    ).rows == [(12, 3, 1)]


def test_samples_that_arrive_later_make_another_run(archive: Archive, tmp_path: Path):
    file = Path(shutil.copy(DATA / "nvbench.json", tmp_path))
    land(archive, file)
    shutil.copytree(DATA / "nvbench.json-bin", tmp_path / "nvbench.json-bin")
    assert not land(archive, file).already_here
    assert land(archive, file).already_here


def test_when_a_run_began_is_what_the_file_says(archive: Archive):
    assert (
        read_document(land(archive, DATA / "trace.jsonl").folder.run_json).started_at
        == "2025-06-27T12:45:00.000Z"
    )
    document = read_document(land(archive, DATA / "add-ms.csv").folder.run_json)
    assert document.imported["dated_by"] == "the file's modification time"
    assert {run.run_id[:16] for run in archive.runs()} == {"20250102T030405Z"}  # when it was imported


def test_a_wrong_file_leaves_nothing(archive: Archive, farbench, tmp_path: Path):
    (tmp_path / "x.csv").write_text("n,A (ms)\n1,2\n2,fast\n")
    done = farbench("import", "x.csv")
    assert (done.code, done.stdout) == (2, "")
    assert done.stderr == "error: x.csv:3: A: 'fast' is no number\n"
    assert archive.runs() == []


def hostile_trace(log: str) -> dict[str, object]:
    return {
        "definition": HOSTILE,
        "workload": {"uuid": HOSTILE, "axes": {HOSTILE: BIG}, "inputs": {}},
        "solution": HOSTILE,
        "evaluation": {
            "status": "RUNTIME_ERROR", "log": log, "timestamp": HOSTILE,
            "environment": {"hardware": HOSTILE, "libs": {HOSTILE: HOSTILE}},
        },
    }  # fmt: skip


def test_what_is_odd_survives_every_format(archive: Archive, farbench, tmp_path: Path):
    """Integers beyond 2⁵³, line separators, brackets, ANSI codes and a log of 1 MB."""
    log = HOSTILE + "\r\n\0" + "x" * 2**20
    (tmp_path / "trace.jsonl").write_text(json.dumps(hostile_trace(log)) + "\n")
    folder = land(archive, tmp_path / "trace.jsonl", Said(host=HOSTILE, label=HOSTILE)).folder
    (kept,) = read_results(folder)
    assert kept.log_tail == log
    assert (kept.params[HOSTILE], kept.backend, kept.host) == (BIG, HOSTILE, HOSTILE)
    sql = f"select backend, params->>'$.\"{HOSTILE}\"', length(log_tail), host from results"
    assert query(archive, sql).rows == [(HOSTILE, str(BIG), len(log), HOSTILE)]
    for format in ("table", "markdown", "csv", "json", "html"):
        done = farbench("report", "--format", format)
        assert done.code == 0, done.stderr
        assert str(BIG) in done.stdout
        assert "\x1b" not in done.stdout
        if format != "json":
            assert "\u202e" not in done.stdout
        if format == "html":
            assert "<img" not in done.stdout
    assert farbench("runs").code == 0
    assert farbench("export", "latest", "-o", "x.tar.zst").code == 0
    there = Archive(tmp_path / "there")
    assert farbench("import", "x.tar.zst", archive=there).code == 0
    assert list(read_results(there.find("latest"))) == [kept]


def test_the_command(archive: Archive, farbench):
    done = farbench("import", DATA / "vllm-latency.json", "--device", "NVIDIA H200", "--host", "gpu1", "--backend", "v1",
                    "--label", "nightly", "--param", "tp=8", "--param", "model=[a, 1]", "--json")  # fmt: skip
    assert done.code == 0, done.stderr
    answer = done.json()
    assert (answer["format"], answer["already_here"], answer["measurements"]) == ("vllm", False, 1)
    done_again = farbench(
        "import", DATA / "add-ms.csv", "--host", b"caf\xe9".decode(errors="surrogateescape")
    )
    assert done_again.code == 0, done_again.stderr
    assert query(archive, "select distinct host from results where payload = 'add-ms'").rows == [
        ("caf\ufffd",)
    ]
    rows = query(
        archive,
        "select run_id, host, device.name, backend, params from results where payload = 'vllm-latency'",
    ).rows
    assert rows == [(answer["run_id"], "gpu1", "NVIDIA H200", "v1", '{"tp":8,"model":["a",1]}')]
    assert ("nightly",) in query(archive, "select sweep from runs").rows
    for wrong in (["--param", "tp"], ["--param", "tp=[1"], ["--format", "xml"]):
        done = farbench("import", DATA / "vllm-latency.json", *wrong)
        assert (done.code, "Traceback" in done.stderr) == (2, False)


def test_two_runs_of_another_tool_compare(archive: Archive, farbench, tmp_path: Path):
    """The same benchmark, once six times as slow: matched by case, backend, device and timer, and found slower."""
    suite = json.loads((DATA / "pyperf.json").read_text())
    for name, factor in (("before.json", 1.0), ("after.json", 6.0)):
        for benchmark in suite["benchmarks"]:
            for i, run in enumerate(benchmark["runs"]):
                run["values"] = [factor * (1e-5 + 1e-8 * (i * 20 + j)) for j in range(20)]
        (tmp_path / name).write_text(json.dumps(suite))
    runs = [
        farbench("import", name, "--device", "EPYC").stdout.strip() for name in ("before.json", "after.json")
    ]
    done = farbench("compare", *runs, "--json")
    assert done.code == 5, done.stderr
    answer = done.json()
    assert (answer["counts"]["slower"], answer["left_out"]) == (2, [])
    assert [round(pair["change_percent"]) for pair in answer["pairs"]] == [500, 500]
