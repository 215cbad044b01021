"""A table has the whole of what was asked for: what is not measured yet, what is lost, and what an earlier run had."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable

import pytest

from orchestrator.archive import Archive, RunDocument
from orchestrator.archive.openrun import OpenRun
from orchestrator.model import Measurement
from orchestrator.report import build, list_runs, render, runs_table, to_text

FIRST, SECOND = "20250101T000000Z-aaaaaa", "20250102T000000Z-bbbbbb"
END = "2025-01-02T04:00:00Z"
Made = Callable[..., Measurement]


@pytest.fixture
def opened(archive: Archive, document: Callable[..., RunDocument]) -> Callable[..., OpenRun]:
    """An open run of six measurements, of which these have come home."""

    def make(measurements: Iterable[Measurement]) -> OpenRun:
        run = archive.create(FIRST, document(), {})
        records = (m.model_copy(update={"run_id": FIRST}).model_dump(mode="json") for m in measurements)
        lines = (json.dumps({"type": "measurement", "measurement": record}) + "\n" for record in records)
        run.append_events("blackwell", 0, "".join(lines).encode())
        return run

    return make


@pytest.fixture
def shown(archive: Archive) -> Callable[..., str]:
    """The report of a run in a format, as a wide terminal has it."""

    def show(run_id: str, form: str = "table") -> str:
        made = render(build(archive, archive.find(run_id)), form)
        return made if isinstance(made, str) else to_text(made, 160)

    return show


def cells(text: str, case: str) -> list[str]:
    return next(line for line in text.split("\n") if line.startswith(case)).removeprefix(case).split()


def test_what_is_not_measured_yet_has_its_rows_and_a_footnote(
    opened: Callable[..., OpenRun], shown: Callable[..., str], ok: Made, archive: Archive
) -> None:
    run = opened([ok("c1", "torch", 2.0)])
    text = shown(FIRST)
    assert "1 of 6 measurements so far: 1 ok" in text
    assert cells(text, "Expert batch=16 (decode)") == ["…", "[1]", "…", "[1]", "2.000"]
    assert cells(text, "Expert batch=256") == ["…", "[1]", "…", "[1]", "…", "[1]"]
    assert "[1] not yet measured" in text
    assert "| Expert batch=256 | … [1] | … [1] | … [1] |" in shown(FIRST, "markdown")
    rows = list(csv.DictReader(io.StringIO(shown(FIRST, "csv"))))
    assert [(row["status"], row["reason"]) for row in rows] == [("ok", ""), *[("", "not yet measured")] * 5]
    told = json.loads(shown(FIRST, "json"))
    assert len(told["measurements"]) == 1
    assert {(one["label"], one["backend"]) for one in told["pending"]} == {
        (row["label"], row["backend"]) for row in rows[1:]
    }
    assert shown(FIRST, "html").count("not yet measured") >= 5
    assert "1 of 6: 1 ok" in to_text(runs_table(list_runs(archive)))
    run.close()


def test_before_anything_is_measured_the_table_is_there_already(
    opened: Callable[..., OpenRun], shown: Callable[..., str]
) -> None:
    run = opened([])
    text = shown(FIRST)
    assert "gemm_fp4 on a device that is not known yet" in text
    assert cells(text, "Expert batch=256") == ["…", "[1]", "…", "[1]", "…", "[1]"]
    run.close()


def test_what_a_lost_run_lacks_is_lost_and_how_to_get_it_is_said(
    opened: Callable[..., OpenRun], shown: Callable[..., str], ok: Made, archive: Archive
) -> None:
    run = opened([ok("c1", "torch", 2.0), ok("c1", "flashinfer:cutlass", 4.0)])
    run.update_run_document({"state": "lost"})
    run.close()
    text = shown(FIRST)
    assert "6 measurements: 2 ok, 4 lost" in text
    assert cells(text, "Expert batch=256") == ["lost", "[1]", "lost", "[1]", "lost", "[1]"]
    assert f"[1] lost: no result of it has come home; farbench resume {FIRST} measures it" in text
    assert shown(FIRST, "csv").count(",lost,no result") == 4
    assert [m["status"] for m in json.loads(shown(FIRST, "json"))["measurements"]].count("lost") == 4
    assert "2 of 6: 2 ok, 4 lost" in to_text(runs_table(list_runs(archive)))


@pytest.fixture
def resumed(
    archive: Archive, document: Callable[..., RunDocument], ok: Made, bad: Made
) -> Callable[[], None]:
    """A cancelled run and the run that takes it up, of which the baseline of the second case is in the first."""

    def make() -> None:
        first = [
            ok("c1", "torch", 2.0), ok("c1", "flashinfer:cutlass", 4.0), bad("c1", "sgl_kernel", "crashed", "signal 11"),
            bad("c2", "torch", "cancelled", "the run was cancelled"), ok("c2", "flashinfer:cutlass", 8.0),
            bad("c2", "sgl_kernel", "cancelled", "the run was cancelled"),
        ]  # fmt: skip
        second = [ok("c2", "torch", 5.0), ok("c2", "sgl_kernel", 6.0)]
        whole = document().plan.model_dump(mode="json")
        rest = {**whole, "cases": [{**whole["cases"][1], "backends": ["torch", "sgl_kernel"]}], "expected": 2}
        for run_id, measured, changes in (
            (FIRST, first, {}),
            (SECOND, second, {"resumes": FIRST, "plan": rest}),
        ):
            mine = [m.model_copy(update={"run_id": run_id}) for m in measured]
            archive.create(run_id, document(**changes), {}).commit(mine, "finished", ended_at=END)

    return make


def test_a_cancelled_run_says_how_the_rest_is_measured(
    resumed: Callable[[], None], shown: Callable[..., str], archive: Archive
) -> None:
    resumed()
    text = shown(FIRST)
    assert f"cancelled: the run was cancelled; farbench resume {FIRST} measures it" in text
    assert "4 of 6: 3 ok, 1 crashed, 2 cancelled" in to_text(runs_table(list_runs(archive)))


def test_a_resumed_run_shows_what_the_run_before_it_had(
    resumed: Callable[[], None], shown: Callable[..., str]
) -> None:
    resumed()
    text = shown(SECOND)
    assert f"takes up what run {FIRST} left, of which the tables have the other results, too" in text
    assert "2 measurements: 2 ok" in text, "counts are of this run alone"
    assert cells(text, "Expert batch=16 (decode)") == [
        "crashed",
        "[1]",
        "4.000",
        "[2]",
        "2.000",
        "2.00×",
        "[2]",
    ]
    assert cells(text, "Expert batch=256") == ["6.000", "[3]", "8.000", "[2]", "5.000", "[3]"]
    assert f"[1] crashed: signal 11; of run {FIRST}" in text
    assert f"[2] of run {FIRST}" in text
    assert f"[3] no speed-up: the baseline is of another run, {FIRST}" in text
    assert "| Expert batch=256 | 6.000 [3] | 8.000 [2] | 5.000 [3] |" in shown(SECOND, "markdown")
    assert shown(SECOND, "html").count(f"of run {FIRST}") >= 4
    assert {m["run_id"] for m in json.loads(shown(SECOND, "json"))["measurements"]} == {SECOND}


def test_a_resumed_run_whose_first_is_gone_says_where_the_rest_is(
    resumed: Callable[[], None], shown: Callable[..., str], archive: Archive
) -> None:
    resumed()
    first = archive.find(FIRST).path
    first.rename(first.parent.parent / "elsewhere")
    text = shown(SECOND)
    assert cells(text, "Expert batch=256") == ["6.000", "5.000"]
    assert f"takes up what run {FIRST} left, which is not in this archive" in text
    assert "of run" not in text
