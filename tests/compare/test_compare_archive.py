"""Comparing runs of an archive, and the trend of a case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.archive import Archive, RunFolder
from orchestrator.archive.notes import annotate
from orchestrator.compare import Outcome, compare, history
from orchestrator.compare.reading import read_past
from orchestrator.errors import ArchiveError, NothingToDo, UsageError
from orchestrator.model import Measurement

Measured = Callable[..., Measurement]
QUIET = [100.0, 100.2, 99.9, 100.1, 99.8, 100.0, 100.3, 99.9, 100.1, 100.0]


def test_earlier_runs_tell_the_noise_and_later_ones_do_not(
    archive: Archive, add_runs: Callable[..., list[str]]
) -> None:
    ids = add_runs([*QUIET, 104.0, 150.0, 40.0])
    found = compare(archive, ids[9], ids[10])
    (pair,) = found.pairs
    assert (pair.outcome, pair.noise, pair.noise_runs) == (Outcome.SLOWER, "history", 9)
    assert found.is_regression
    assert found.counts == {"same": 0, "faster": 0, "slower": 1, "unclear": 0}
    assert (found.a.name, found.b.name, found.b.sweep) == (ids[9], ids[10], "gemm")


@pytest.mark.parametrize(
    "extra",
    [{"mine": {"ranks": 4}}, {"ranks": 2.5}, {"ranks": None}, {"ranks": "3"}, {"ranks": True}, {"ranks": 0}, {"ranks": -2}, {}],
    ids=str,
)  # fmt: skip
def test_what_else_is_called_ranks_is_no_number_of_devices(
    archive: Archive, add_run: Callable[..., RunFolder], measured: Measured, extra: dict[str, Any]
) -> None:
    run_id = "20250101T000000Z-000001"
    measurement = measured("c1", 100.0, run_id=run_id, extra=extra)
    add_run(run_id, [measurement])
    (past,) = read_past(archive, case_ids=["c1"]).times
    assert past.subject.device_model == measurement.hardware == "H200"


def test_latest_and_beginnings_of_ids_name_runs(archive: Archive, add_runs: Callable[..., list[str]]) -> None:
    ids = add_runs(QUIET)
    found = compare(archive, ids[0][:16], "latest")
    assert (found.a.name, found.b.name) == (ids[0], ids[-1])
    with pytest.raises(ArchiveError, match="beginning of 10 runs"):
        compare(archive, "2025", "latest")


def test_history_stands_for_all_earlier_runs(archive: Archive, add_runs: Callable[..., list[str]]) -> None:
    ids = add_runs([*QUIET, 104.0])
    for a, b in (("history", "latest"), ("latest", "history")):
        found = compare(archive, a, b)
        (pair,) = found.pairs
        assert found.a.name == "10 earlier runs"
        assert found.b.name == ids[-1]
        assert pair.match.a.median_us == pytest.approx(100.0, rel=0.002)
        assert (pair.match.a.runs, pair.outcome) == (10, Outcome.SLOWER)
    assert compare(archive, "history", ids[5]).pairs[0].outcome == Outcome.SAME


def test_the_level_of_the_history_is_that_of_today(
    archive: Archive, add_runs: Callable[..., list[str]]
) -> None:
    add_runs([150 * t / 100 for t in QUIET] + QUIET)
    (pair,) = compare(archive, "latest", "history").pairs
    assert pair.match.a.runs == 9
    assert pair.match.a.median_us == pytest.approx(100.0, rel=0.002)


def test_what_has_no_history_is_left_out(
    archive: Archive, add_run: Callable[..., RunFolder], measured: Measured, failed: Measured
) -> None:
    add_run("20250101T000000Z-000001", [measured("c1"), failed("c2", "oom")])
    add_run("20250101T000001Z-000002", [measured("c1"), measured("c2"), failed("c3", "crashed", "signal 11")])
    found = compare(archive, "history", "latest")
    assert [pair.match.subject.case_id for pair in found.pairs] == ["c1"]
    assert [m.why for m in found.left_out] == ["no earlier run has a time of this", "crashed: signal 11"]


def test_the_baseline_is_the_newest_run_with_that_tag(
    archive: Archive, add_runs: Callable[..., list[str]]
) -> None:
    ids = add_runs(QUIET)
    with pytest.raises(ArchiveError, match="tag one with"):
        compare(archive, "baseline", "latest")
    for tagged in (ids[2], ids[4]):
        annotate(archive, tagged, add=["baseline"])
    assert compare(archive, "baseline", "latest").a.name == ids[4]
    assert compare(archive, "latest", "baseline").a.name == ids[4]
    assert compare(archive, "baseline", ids[4]).a.name == ids[2]


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ("latest", "latest", "with itself"),
        ("baseline", "history", "must be a run"),
        ("history", "history", "must be"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    archive: Archive, add_runs: Callable[..., list[str]], a: str, b: str, message: str
) -> None:
    add_runs([100.0, 100.0])
    with pytest.raises(UsageError, match=message):
        compare(archive, a, b)


@pytest.mark.parametrize("threshold", [-0.1, float("nan"), 11.0])
def test_a_threshold_that_makes_no_sense_is_refused(
    archive: Archive, add_runs: Callable[..., list[str]], threshold: float
) -> None:
    ids = add_runs([100.0, 100.0])
    with pytest.raises(UsageError, match="makes no sense"):
        compare(archive, *ids, threshold=threshold)


def test_what_differs_between_the_environments_is_told(
    archive: Archive, add_run: Callable[..., RunFolder], measured: Measured
) -> None:
    def run(run_id: str, torch: str, driver: str, farbench: str, clock: float) -> None:
        environment = {
            "packages": {"torch": torch, "numpy": "2.4"},
            "cuda": {"driver": driver},
            "python_executable": run_id,
        }
        add_run(
            run_id,
            [measured("c1", environment_id=f"e-{torch}", telemetry={"sm_clock_mhz": clock})],
            environments={f"e-{torch}": environment, "unused": {"driver": "1"}},
            versions={"farbench": farbench},
        )  # fmt: skip

    run("20250101T000000Z-000001", "2.9", "570.1", "0.1.0", 1980)
    run("20250101T000001Z-000002", "2.10", "580.2", "0.2.0", 1755)
    found = compare(archive, "20250101T000000Z", "latest")
    assert len(found.pairs) == 1
    assert [(d.where, d.what, d.a, d.b) for d in found.differences] == [
        ("controller", "farbench", "0.1.0", "0.2.0"),
        ("gpu1", "packages.torch", "2.9", "2.10"),
        ("gpu1", "cuda.driver", "570.1", "580.2"),
        ("gpu1", "SM clock", "1980 MHz", "1755 MHz"),
    ]


def test_an_open_run_can_be_compared(
    archive: Archive, add_runs: Callable[..., list[str]], measured: Measured
) -> None:
    import json

    add_runs([100.0] * 4)
    event = {"t": 1.0, "mono": 1.0, "type": "measurement"}
    run_id = "20250102T000000Z-ffffff"
    record = measured("c1", 200.0, run_id=run_id).model_dump(mode="json")
    with archive.create(run_id, {"sweep": {"name": "gemm"}}, {}) as run:
        run.append_events("gpu1", 0, json.dumps({**event, "measurement": record}).encode() + b"\n")
        (pair,) = compare(archive, "history", "latest").pairs
    assert (pair.outcome, pair.match.b.run_id) == (Outcome.SLOWER, run_id)


def test_a_damaged_run_in_the_history_is_named_and_left_out(
    archive: Archive, add_runs: Callable[..., list[str]]
) -> None:
    ids = add_runs([*QUIET, 104.0])
    folder = archive.find(ids[3])
    folder.path.chmod(0o700)
    folder.run_json.chmod(0o600)
    folder.run_json.write_text("{")
    found = compare(archive, ids[9], ids[10])
    assert found.pairs[0].noise_runs == 8
    assert any(ids[3] in warning for warning in found.warnings)


def test_hostile_names_are_only_data_to_the_query(
    archive: Archive, add_run: Callable[..., RunFolder], measured: Measured
) -> None:
    case_id = "c'); DROP TABLE x; --"
    for number in range(4):
        add_run(f"20250101T00000{number}Z-000001", [measured(case_id, 100.0, label="[/red]'\"")])
    (pair,) = compare(archive, "history", "latest").pairs
    assert (pair.match.a.runs, pair.outcome) == (3, Outcome.SAME)


def test_a_trend_has_every_run_and_its_lasting_changes(
    archive: Archive, add_runs: Callable[..., list[str]]
) -> None:
    freak = [*QUIET, 170.0, *QUIET, *(1.2 * t for t in QUIET)]
    ids = add_runs(freak)
    (series,) = history(archive, "m=16*").series
    assert [point.run_id for point in series.points] == ids
    assert [point.median_us for point in series.points] == freak
    (change,) = series.changes
    assert change.run_id == ids[21]
    assert change.change == pytest.approx(0.2, abs=0.002)
    assert series.level_us == pytest.approx(120.0, rel=0.002)
    assert series.spread == pytest.approx(0.0015, abs=0.001)


@pytest.mark.parametrize("case", ["c1", "m=16 n=2048", "m=16*", "c*", "*2048"])
def test_cases_are_found_by_id_label_or_glob(
    archive: Archive, add_run: Callable[..., RunFolder], measured: Measured, case: str
) -> None:
    add_run(
        "20250101T000000Z-000001", [measured("c1"), measured("c1", backend="other"), measured("x", label="x")]
    )
    found = history(archive, case)
    assert [s.subject.backend for s in found.series] == ["other", "torch"]
    assert [s.subject.case_id for s in found.series] == ["c1", "c1"]
    assert [s.subject.backend for s in history(archive, case, backend="other").series] == ["other"]


def test_a_label_with_brackets_is_found_as_it_is(
    archive: Archive, add_run: Callable[..., RunFolder], measured: Measured
) -> None:
    add_run("20250101T000000Z-000001", [measured("c1", label="case [bs=8]")])
    assert len(history(archive, "case [bs=8]").series) == 1


@pytest.mark.parametrize(
    ("case", "options", "message"),
    [
        ("nothing*", {}, "has a time of a case 'nothing\\*'; cases with times are 'm=16 n=2048'$"),
        ("c1", {"backend": "no"}, "there are torch"),
    ],
)
def test_a_trend_of_nothing_is_refused(
    archive: Archive, add_runs: Callable[..., list[str]], case: str, options: dict[str, Any], message: str
) -> None:
    add_runs([100.0])
    with pytest.raises(NothingToDo, match=message):
        history(archive, case, **options)


def test_invalid_times_are_in_no_trend_and_no_noise(
    archive: Archive, add_run: Callable[..., RunFolder], measured: Measured
) -> None:
    for number in range(5):
        verdict = {"verdict": "invalid", "reasons": ["noisy"]} if number == 2 else {}
        add_run(f"20250101T00000{number}Z-000001", [measured("c1", 900.0 if verdict else 100.0, **verdict)])
    (series,) = history(archive, "c1").series
    assert [point.median_us for point in series.points] == [100.0] * 4
    add_run(
        "20250102T000000Z-000001", [measured("c2", 900.0, label="bad", verdict="invalid", reasons=["noisy"])]
    )
    with pytest.raises(
        NothingToDo, match="a time of a case 'bad' that counts: what was measured of it is `invalid`"
    ):
        history(archive, "bad")


def test_the_history_keeps_numbers_of_devices_apart(
    archive: Archive, add_run: Callable[..., RunFolder], measured: Measured
) -> None:
    for second, ranks in enumerate((1, 2, 8, 2)):
        run_id = f"20250101T00000{second}Z-000001"
        more = {"extra": {"elements": 4, "ranks": ranks}} if ranks > 1 else {}
        add_run(run_id, [measured("c1", 100.0 + ranks, run_id=run_id, **more)])
    past = read_past(archive, case_ids=["c1"]).times
    assert [(p.subject.device_model, p.median_us) for p in past] == [
        ("H200", 101.0),
        ("2 × H200", 102.0),
        ("8 × H200", 108.0),
        ("2 × H200", 102.0),
    ]
