"""Folding journals: what counts, what is skipped, and what is known while a run goes on."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.cli.plain import PlainProgress
from orchestrator.events import AgentState, BadLine, Expected, Fold, missing, parse_line
from orchestrator.events.journal import measurement_line, parse_measurement
from orchestrator.model import Case, Device, Status
from orchestrator.run.observer import waiting_for

RUN = "20250102T030405Z-abcdef"
GPU = {"uuid": "GPU-1", "index": 0, "name": "RTX PRO 6000", "compute_capability": "12.0", "kind": "gpu"}


def record(**changes: Any) -> dict[str, Any]:
    base = {
        "schema_version": 1, "run_id": RUN, "host": "h", "device": GPU, "case_id": "c1", "label": "m=16",
        "payload": "gemm", "params": {"m": 16}, "backend": "torch", "status": "ok", "verdict": "valid",
        "timing": {"timer": "graph", "cache": "cold", "median_us": 12.5, "samples": 3}, "samples_us": [12.0, 12.5, 13.0],
    }  # fmt: skip
    return {**base, **changes}


def failed(**changes: Any) -> dict[str, Any]:
    return record(verdict=None, timing=None, samples_us=None, **changes)


def event(type: str, t: float = 1.0, **fields: Any) -> bytes:
    return json.dumps({"t": t, "mono": t, "type": type, **fields}).encode() + b"\n"


def telling(fold: Fold) -> Callable[..., None]:
    """`tell(t, type, **fields)`: an event of the host h."""

    def tell(t: float, type: str, **fields: Any) -> None:
        fold.feed("h", event(type, t, **fields))

    return tell


def two_at_work(tell: Callable[..., None]) -> None:
    """Two workers, a and b, that measure from the first second on."""
    for worker in ("a", "b"):
        tell(0, "worker_ready", worker=worker, devices=[f"GPU-{worker}"], payload="p", import_s=1.0)
        tell(0, "phase", case_id=worker, worker=worker, backend="b", phase="measure")


def measured(**changes: Any) -> bytes:
    return event("measurement", measurement=record(**changes))


def reader(**journals: bytes):
    return lambda host, offset, length: journals[host][offset : offset + length]


def test_a_measurement_is_counted_and_can_be_read_again():
    journal = event("agent_started", pid=7, hostname="box") + measured()
    fold = Fold(run_id=RUN)
    assert [m.timing.median_us for m in fold.feed("h", journal)] == [12.5]
    assert fold.counts().statuses == {"ok": 1}
    assert fold.counts().verdicts == {"valid": 1}
    (again,) = fold.read(reader(h=journal))
    assert again.samples_us == [12.0, 12.5, 13.0]
    assert fold.hosts["h"].identity["hostname"] == "box"
    assert fold.offset("h") == len(journal)


@settings(deadline=None)
@given(st.data())
def test_any_chunking_gives_the_same_fold(data: st.DataObject):
    text = "x\u2028y\u0085z é 😀"
    raw = json.dumps(
        {"t": 1, "type": "measurement", "measurement": record(extra={"s": text})}, ensure_ascii=False
    )
    journal = event("agent_started") + raw.encode() + b"\n" + b'{"torn": "\xc3\n' + measured(backend="b")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(journal)), max_size=12)))
    fold = Fold()
    for start, end in zip([0, *cuts], [*cuts, len(journal)], strict=True):
        fold.feed("h", journal[start:end])
    first, second = fold.read(reader(h=journal))
    assert first.extra == {"s": text}
    assert second.backend == "b"
    assert fold.hosts["h"].damaged_lines == 1


@pytest.mark.parametrize(
    "bad",
    [
        b'{"type": "measurement", "measurement": {"run_id": "x"',
        b"\xff\xfe\x00garbage",
        b"[1, 2]",
        b"null",
        b"{}",
        b"[" * 100_000,
        b'{"type": "problem", "message": NaN}',
        b"1" * 10_000,
        b'{"type": "measurement", "measurement": "no"}',
        b'{"type": "devices", "devices": 5}',
        b'{"type": "queued", "case_ids": {"a": 1}}',
        b'{"type": "phase", "worker": null}',
        b'{"type": "agent_finished", "state": "great"}',
    ],
)
def test_nothing_a_host_sends_stops_the_fold(bad: bytes):
    fold = Fold()
    accepted = fold.feed("h", bad + b"\n" + measured())
    assert len(accepted) == 1
    assert fold.hosts["h"].damaged_lines == 1


def test_a_line_of_a_kind_from_the_future_is_passed_over():
    fold = Fold()
    fold.feed("h", event("weather", rain=True))
    assert (fold.hosts["h"].damaged_lines, fold.hosts["h"].problem_count) == (0, 0)


def test_the_torn_end_of_a_journal_waits_for_its_rest():
    whole = measured()
    fold = Fold()
    assert fold.feed("h", whole[:40]) == []
    assert fold.counts().total == 0
    assert len(fold.feed("h", whole[40:])) == 1


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"verdict": None}, "an ok measurement needs a verdict"),
        ({"timing": {"timer": "graph", "median_us": -1}}, "median_us"),
        ({"status": "splendid"}, "status"),
        ({"attempt": 2**70}, "64 bits"),
        ({"schema_version": 99}, "newer than this farbench"),
        ({"run_id": "another"}, "another run"),
        ({"extra": {"x": json.loads("[" * 200 + "]" * 200)}}, "nested"),
    ],
)
def test_an_invalid_record_is_a_problem_and_no_result(change: dict[str, Any], told: str):
    fold = Fold(run_id=RUN)
    assert fold.feed("h", measured(**change)) == []
    assert fold.counts().total == 0
    assert told in fold.hosts["h"].problems[-1]


def test_a_host_speaks_only_for_itself():
    fold = Fold()
    (measurement,) = fold.feed("here", measured(host="elsewhere"))
    assert measurement.host == "here"


def test_the_first_result_stands_and_the_other_is_superseded():
    fold = Fold()
    fold.feed("a", measured())
    assert fold.feed("b", measured()) == []
    assert fold.counts().total == 1
    assert fold.hosts["b"].superseded == 1


def test_lost_gives_way_to_a_result_but_not_the_other_way_round():
    fold = Fold()
    lost = event("measurement", measurement=failed(status="cancelled"))
    fold.feed("a", lost)
    assert fold.counts().statuses == {"cancelled": 1}
    fold.feed("b", measured())
    fold.feed("a", lost)
    assert fold.counts().statuses == {"ok": 1}
    assert fold.hosts["a"].superseded == 2


@pytest.mark.parametrize(("placement", "total"), [("shard", 2), ("replicate", 2), ("replicate_devices", 3)])
def test_what_makes_a_measurement_one_depends_on_the_placement(placement: str, total: int):
    other = {**GPU, "uuid": "GPU-2", "index": 1, "name": "B200"}
    fold = Fold(placement=placement)
    fold.feed("a", measured() + measured(device=other) + measured(device=other, attempt=2))
    fold.feed("b", measured(device={**GPU, "uuid": "GPU-9"}))
    assert fold.counts().total == total


def test_rows_and_backends_are_measurements_of_their_own():
    fold = Fold()
    fold.feed(
        "h", measured(row={"m": 1, "k": 2}) + measured(row={"k": 2, "m": 1}) + measured(row={"m": 2, "k": 2})
    )
    fold.feed("h", measured(backend="x"))
    assert fold.counts().total == 3
    assert fold.hosts["h"].superseded == 1


def test_progress_says_what_each_worker_does():
    fold = Fold(labels={"c1": "Expert batch=16 (decode)"})
    fold.feed("h", event("devices", devices=[GPU]))
    fold.feed("h", event("lease_wait", device="GPU-1", holder={"pid": 3}))
    assert list(fold.hosts["h"].waiting) == ["GPU-1"]
    fold.feed("h", event("worker_starting", worker="w0", devices=["GPU-1"], payload="gemm"))
    assert not fold.hosts["h"].waiting
    fold.feed("h", event("worker_ready", worker="w0", environment_id="e1", environment={"torch": "2.9"}))
    fold.feed("h", event("case_started", case_id="c1", worker="w0", devices=["GPU-1"]))
    fold.feed("h", event("phase", t=9.0, case_id="c1", worker="w0", backend="torch", phase="compile"))
    (view,) = fold.workers()
    assert (view.devices, view.label, view.backend, view.phase, view.since) == (
        ("GPU-1",), "Expert batch=16 (decode)", "torch", "compile", 9.0,
    )  # fmt: skip
    assert fold.environments == {"e1": {"torch": "2.9"}}
    fold.feed("h", event("case_finished", case_id="c1", worker="w0"))
    assert fold.workers()[0].phase == "idle"
    fold.feed("h", event("worker_exited", worker="w0", exit_code=0))
    assert fold.workers() == []


def test_the_agents_state():
    fold = Fold()
    assert fold.host("h").agent is AgentState.UNKNOWN
    fold.feed("h", event("agent_started") + event("worker_starting", worker="w0"))
    assert fold.hosts["h"].agent is AgentState.RUNNING
    fold.agent_gone("h", "dead")
    assert fold.hosts["h"].agent is AgentState.DEAD
    assert fold.workers() == []
    fold.feed("h", event("agent_started") + event("agent_finished", state="cancelled"))
    assert fold.hosts["h"].agent is AgentState.CANCELLED


def test_released_cases_are_known_until_they_are_queued_again():
    fold = Fold()
    fold.feed("h", event("queued", case_ids=["c1", "c2"], sealed=True) + event("released", case_ids=["c2"]))
    assert fold.hosts["h"].released == {"c2"}
    assert fold.hosts["h"].sealed
    fold.feed("h", event("queued", case_ids=["c2"]))
    assert fold.hosts["h"].released == set()


def test_problems_of_the_host_are_kept():
    fold = Fold()
    fold.feed("h", event("problem", message="the disk is full"))
    assert list(fold.hosts["h"].problems) == ["the disk is full"]


def test_lone_surrogates_and_exact_integers_survive_to_a_strict_line():
    fold = Fold()
    line = measured(reason="a\ud800b😀", params={"big": 2**53 + 1, "huge": 2**80, "f": 1.0})
    (measurement,) = fold.feed("h", line)
    assert measurement.reason == "a\ufffdb😀"
    written = json.loads(measurement_line(measurement))
    assert written["params"] == {"big": 2**53 + 1, "huge": 2**80, "f": 1.0}
    assert parse_measurement(written) == measurement


def test_a_journal_that_changed_behind_the_fold_is_noticed():
    fold = Fold()
    fold.feed("h", measured())
    with pytest.raises(BadLine):
        list(fold.read(reader(h=event("problem", message="x" * 1000))))


def test_an_unknown_kind_is_none():
    assert parse_line(b'{"type": "unheard_of"}') is None


def expected(case_id: str = "c1", host: str = "a", **more: Any) -> Expected:
    return Expected(Case(case_id, f"label of {case_id}", "gemm", {"m": 1}), "torch", host, **more)


def test_missing_measurements_become_records():
    fold = Fold()
    fold.feed("b", measured())
    lost = list(
        missing([expected(), expected("c2")], fold, run_id=RUN, status=Status.LOST, reason="a is gone")
    )
    assert [(m.case_id, m.label, m.status, m.reason, m.host) for m in lost] == [
        ("c2", "label of c2", Status.LOST, "a is gone", "a")
    ]


def test_missing_goes_by_host_device_or_model_as_the_placement_asks():
    other = Device(uuid="GPU-2", index=1, name="B200")

    def lost(placement: str, *items: Expected) -> int:
        fold = Fold(placement=placement)
        fold.feed("a", measured())
        return len(list(missing(items, fold, run_id=RUN, status=Status.CANCELLED, reason=lambda e: e.host)))

    assert lost("replicate", expected(), expected(host="b")) == 1
    assert lost("replicate_devices", expected(device=Device(**GPU)), expected(device=other), expected()) == 1
    assert (
        lost("shard", expected(models=("RTX PRO 6000",)), expected(models=("B200",)), expected(host="b")) == 1
    )


def test_a_large_run_fits_in_little_memory():
    samples = [10.0 + i / 100 for i in range(200)]
    tracemalloc.start()
    fold = Fold(placement="replicate")
    for host in range(8):
        for case in range(500):
            fold.feed(f"h{host}", measured(case_id=f"{case:016x}", samples_us=samples))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert fold.counts().total == 4000
    assert held / 4000 < 700  # bytes a measurement: 64 hosts with 2,000 each stay under 100 MB


def test_the_share_of_time_that_devices_were_at_work() -> None:
    """From the first worker's readiness to the last result; rests and gaps of a worker count as what they are."""
    fold = Fold()
    tell = telling(fold)
    tell(0, "worker_starting", worker="w", devices=["GPU-1"], payload="p")
    assert fold.host("h").busy_fraction is None
    tell(10, "worker_ready", worker="w", devices=["GPU-1"], payload="p", import_s=9.0)
    tell(11, "case_started", case_id="c", worker="w", devices=["GPU-1"], attempt=1)
    tell(12, "phase", case_id="c", worker="w", backend="b", phase="compile")
    tell(14, "phase", case_id="c", worker="w", backend="b", phase="measure")
    tell(20, "measurement", measurement={})
    tell(20, "case_finished", case_id="c", worker="w", devices=["GPU-1"], attempt=1)
    assert fold.host("h").busy_s == 8.0
    assert fold.host("h").busy_fraction == 0.8


def test_devices_that_idle_beside_one_that_hangs_were_idle() -> None:
    """Until the run is cancelled: the hanging case gives no result, and is at work all the same."""
    fold = Fold()
    tell = telling(fold)
    two_at_work(tell)
    tell(10, "measurement", measurement={})
    tell(10, "case_finished", case_id="a", worker="a", devices=["GPU-a"], attempt=1)
    tell(100, "worker_exited", worker="b", reason="cancelled")
    assert fold.host("h").busy_fraction == (10 + 100) / 200


def test_a_device_whose_worker_gets_nothing_to_do_was_idle() -> None:
    fold = Fold()
    tell = telling(fold)
    for worker in ("a", "b"):
        tell(0, "worker_ready", worker=worker, devices=[f"GPU-{worker}"], payload="p", import_s=1.0)
    tell(0, "phase", case_id="c", worker="a", backend="b", phase="measure")
    tell(10, "measurement", measurement={})
    tell(10, "case_finished", case_id="c", worker="a", devices=["GPU-a"], attempt=1)
    assert fold.host("h").busy_fraction == 0.5


def test_the_share_of_time_at_work_of_a_journal_without_monotonic_times_is_told_by_the_others() -> None:
    fold = Fold()

    def tell(t: float, kind: str, **fields: object) -> None:
        fold.feed("h", (json.dumps({"t": 1.7e9 + t, "type": kind, **fields}) + "\n").encode())

    tell(0, "agent_started")
    tell(1, "worker_ready", worker="a", payload="p", import_s=1.0)
    tell(2, "case_started", case_id="c", worker="a", devices=["GPU-1"], attempt=1)
    tell(3, "phase", case_id="c", worker="a", backend="b", phase="measure")
    tell(9, "measurement", measurement={})
    tell(9, "case_finished", case_id="c", worker="a", devices=["GPU-1"], attempt=1)
    assert fold.host("h").busy_fraction == 6 / 8


def test_an_event_without_a_monotonic_time_among_others_is_no_time_that_passed() -> None:
    fold = Fold()

    def tell(t: float, mono: float | None, kind: str, **fields: object) -> None:
        fold.feed("h", event(kind, 1.7e9 + t, mono=mono, **fields))

    tell(0, 50, "agent_started")
    tell(0, 50, "worker_ready", worker="a", devices=["GPU-1"], payload="p", import_s=1.0)
    tell(2, 52, "phase", case_id="c", worker="a", backend="b", phase="measure")
    tell(4, None, "problem", message="of another tool")
    tell(4, 54, "phase", case_id="c", worker="a", backend="b", phase="measure")
    tell(10, 60, "case_finished", case_id="c", worker="a", devices=["GPU-1"], attempt=1)
    assert fold.host("h").busy_fraction == 6 / 8


def test_neither_a_night_without_an_agent_nor_a_clock_that_is_set_changes_the_share_of_time_at_work() -> None:
    fold = Fold()

    def tell(t: float, mono: float, kind: str, **fields: object) -> None:
        fold.feed("h", event(kind, t, mono=mono, **fields))

    def work(t: float, mono: float, worker: str) -> None:
        tell(t, mono, "agent_started", boot_id=worker)
        tell(t, mono, "worker_ready", worker=worker, devices=["GPU-1"], payload="p", import_s=1.0)
        tell(t + 2, mono + 2, "phase", case_id=worker, worker=worker, backend="b", phase="measure")
        tell(t + 3610, mono + 10, "measurement", measurement={})  # NTP has set the clock an hour ahead
        tell(
            t + 3610, mono + 10, "case_finished", case_id=worker, worker=worker, devices=["GPU-1"], attempt=1
        )

    work(0, 1000, "before")
    work(50_000, 7, "after the host was restarted")
    assert fold.host("h").busy_fraction == 16 / 20


def test_work_of_an_agent_that_was_killed_counts_as_far_as_it_is_known() -> None:
    fold = Fold()
    tell = telling(fold)
    two_at_work(tell)
    tell(8, "case_finished", case_id="a", worker="a", devices=["GPU-a"], attempt=1)
    tell(10, "problem", message="the last that was heard of it")
    fold.agent_gone("h", "dead")
    assert fold.host("h").busy_fraction == (8 + 10) / 20


def test_eight_devices_of_one_holder_are_one_thing_to_wait_for() -> None:
    first = {"run_id": "R1", "user": "anna", "since": "2026-01-31T12:00:05Z"}
    waiting = {f"cpu-{n}": first for n in range(7)}
    waiting["cpu-3"] = first | {"since": "2026-01-31T12:00:03Z"}
    waiting["cpu-7"] = {"run_id": "R2"}
    told = "waiting for cpu-0, cpu-1, cpu-2 and 4 more, held by run R1 of user anna (since 2026-01-31T12:00:03Z), and for cpu-7, held by run R2"
    assert waiting_for(waiting) == told


def test_progress_of_programs_that_print_several_rows_never_passes_its_whole():
    """Two cases, of which a program prints two backends of its own each, and a third whose rows differ in a key."""

    def printed(case_id: str, **changes: Any) -> bytes:
        made = record(case_id=case_id, payload="bench", **{"backend": "bench", **changes})
        return event("measurement", measurement=made, asked="bench")

    said: list[str] = []
    progress = PlainProgress(said.append, clock=itertools.count(0.0, 100.0).__next__)
    fold = Fold(run_id=RUN)
    progress.tick(fold, 3)
    rows = [
        printed("c1", backend="fast"), printed("c1", backend="slow"), printed("c2", backend="fast"),
        printed("c2", backend="fast"), printed("c2", backend="slow"), printed("c3", row={"n": 1}),
        printed("c3", row={"n": 2}),
    ]  # fmt: skip
    for line in rows:
        fold.feed("h", line)
        progress.tick(fold, 3)
    assert [text.partition(" measured")[0] for text in said] == ["1/3", "2/4", "3/4", "4/5", "5/5", "6/6"]


def test_measurements_without_rows_are_never_more_than_were_asked_for():
    fold = Fold(run_id=RUN)
    for backend in ("torch", "cutlass", "torch"):
        fold.feed("h", measured(backend=backend))
    assert (fold.counts().total, fold.surplus) == (2, 0)
