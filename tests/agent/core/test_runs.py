"""Whole runs: from launch to end, with payloads that behave and payloads that do not."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.model import Measurement
from tests.support.waiting import wait_for

from .conftest import Host, does, item, runs


def test_a_case_is_measured_and_its_record_is_whole(host: Host) -> None:
    found = host.run(
        [item("c1", ("torch", "numpy"), params={"m": 16, "note": "x\u2028y\u0085z 'é漢' {{ }}"})]
    )
    record = found["c1/torch"]
    Measurement.model_validate(record)
    assert record["status"] == "ok"
    assert record["timing"]["median_us"] == 12.5
    assert record["metrics"] == {"tflops": 3.5, "peak_fraction": None}
    assert record["reason"] == "metrics.peak_fraction is infinity"
    assert record["params"] == {"m": 16, "note": "x\u2028y\u0085z 'é漢' {{ }}"}
    assert record["host"] == "testhost"
    assert record["device"]["kind"] == "cpu"
    assert record["label"] == "label of c1"
    assert record["attempt"] == 1
    assert record["environment_id"] == found["c1/numpy"]["environment_id"]


def test_one_worker_serves_all_cases_of_a_payload(host: Host) -> None:
    found = host.run([item(f"c{n}") for n in range(5)])
    assert [record["status"] for record in found.values()] == ["ok"] * 5
    assert len({line.split()[1] for line in host.trace("cases")}) == 1


def test_a_second_launch_uploads_nothing_and_measures_nothing_again(host: Host) -> None:
    host.run([item("c1")])
    call = host.launch([item("c1")])
    assert call.expect("end")["state"] == "finished"
    assert host.uploads[1] == []
    assert len(host.uploads[0]) == 2
    assert len(host.measurements()) == 1
    assert len(host.trace("cases")) == 1


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("kill", "killed by signal 9 (SIGKILL)"),
        ("exit", "exit code 7; it last printed: last words of the payload"),
    ],
)
def test_a_crash_costs_one_backend_and_the_rest_goes_on(host: Host, action: str, reason: str) -> None:
    found = host.run([does("c1", a="ok", b=action, c="ok"), does("c2", a="ok")])
    assert [(key, record["status"], record["attempt"]) for key, record in found.items()] == [
        ("c1/a", "ok", 1), ("c1/b", "crashed", 1), ("c1/c", "ok", 2), ("c2/a", "ok", 1),
    ]  # fmt: skip
    assert found["c1/b"]["reason"] == reason
    assert len({line.split()[1] for line in host.trace("cases")}) == 2
    for record in found.values():
        Measurement.model_validate(record)


def test_the_last_words_of_a_worker_are_in_the_record(host: Host) -> None:
    found = host.run([does("c1", a="exit")])
    assert found["c1/a"]["log_tail"] == "last words of the payload"


def outcomes(found: dict[str, dict[str, Any]]) -> dict[str, tuple[str, int]]:
    return {key: (record["status"], record["attempt"]) for key, record in found.items()}


def test_each_crash_costs_one_backend_however_many_there_are(host: Host) -> None:
    deeds = {"a": "kill", "b": "exit", "c": "ok", "d": "kill", "e": "deaf", "f": "ok", "g": "ok"}
    case = {**does("c1", **deeds), "timeout_s": 1}
    found = host.run([case, does("c2", a="ok")])
    assert outcomes(found) == {
        "c1/a": ("crashed", 1), "c1/b": ("crashed", 2), "c1/c": ("ok", 3), "c1/d": ("crashed", 3),
        "c1/e": ("timeout", 4), "c1/f": ("ok", 5), "c1/g": ("ok", 5), "c2/a": ("ok", 1),
    }  # fmt: skip
    assert found["c1/d"]["reason"] == "killed by signal 9 (SIGKILL)"
    assert len({line.split()[1] for line in host.trace("cases")}) == 5


def test_a_case_whose_backends_all_crash_ends_with_the_last_of_them(host: Host) -> None:
    found = host.run([does("c1", a="kill", b="kill", c="kill", d="kill"), does("c2", a="ok")])
    assert outcomes(found) == {
        "c1/a": ("crashed", 1), "c1/b": ("crashed", 2), "c1/c": ("crashed", 3), "c1/d": ("crashed", 4),
        "c2/a": ("ok", 1),
    }  # fmt: skip
    assert {found[f"c1/{name}"]["reason"] for name in "abcd"} == {"killed by signal 9 (SIGKILL)"}


def test_inputs_that_end_two_workers_end_the_case_and_blame_no_backend(host: Host) -> None:
    case = item("c1", ("a", "b", "c"), params={"inputs": ["kill", "exit"]})
    found = host.run([case, does("c2", a="ok")])
    assert outcomes(found) == {
        "c1/a": ("crashed", 2), "c1/b": ("crashed", 2), "c1/c": ("crashed", 2), "c2/a": ("ok", 1),
    }  # fmt: skip
    assert {found[f"c1/{name}"]["reason"] for name in "abc"} == {
        "not tried: this case has ended 2 workers with no backend to blame; "
        "last: while it made the case's inputs: exit code 7; it last printed: last words of the payload"
    }
    assert len(host.trace("cases")) == 3


def test_inputs_that_end_one_worker_are_made_again_and_crashes_of_backends_are_counted_apart(
    host: Host,
) -> None:
    params = {"inputs": ["kill", "ok"], "does": {"a": "kill", "b": "kill", "c": "ok"}}
    found = host.run([item("c1", ("a", "b", "c"), params=params)])
    assert outcomes(found) == {"c1/a": ("crashed", 2), "c1/b": ("crashed", 3), "c1/c": ("ok", 4)}


def test_inputs_that_take_too_long_are_not_waited_for_once_a_backend(host: Host) -> None:
    case = {**item("c1", ("a", "b", "c", "d"), params={"inputs": ["hang"]}), "compile_timeout_s": 1}
    found = host.run([case, does("c2", a="ok")])
    assert outcomes(found) == {
        "c1/a": ("timeout", 1), "c1/b": ("timeout", 2), "c1/c": ("timeout", 2), "c1/d": ("timeout", 2),
        "c2/a": ("ok", 1),
    }  # fmt: skip
    took = "while it made the case's inputs: compiling and preparing took longer than compile_timeout_s = 1 s"
    assert found["c1/b"]["reason"].startswith(took)
    assert found["c1/d"]["reason"].startswith(
        f"not tried: this case has ended 2 workers with no backend to blame; last: {took}"
    )


def test_a_payload_that_never_says_what_it_does_goes_on_as_long_as_something_comes_of_it(host: Host) -> None:
    deeds = {"a": "ok", "b": "kill", "c": "ok"}
    found = host.run([item("c1", ("a", "b", "c"), params={"silent": True, "does": deeds})])
    assert outcomes(found) == {"c1/a": ("ok", 1), "c1/b": ("crashed", 3), "c1/c": ("crashed", 3)}
    assert "with no backend to blame; last: killed by signal 9" in found["c1/c"]["reason"]


def test_a_timeout_ends_a_worker_that_ignores_sigterm(host: Host) -> None:
    case = does("c1", a="deaf", b="ok")
    case["timeout_s"] = 0.5
    found = host.run([case])
    assert found["c1/a"]["status"] == "timeout"
    assert found["c1/a"]["reason"] == "check and measure took longer than timeout_s = 0.5 s"
    assert (found["c1/b"]["status"], found["c1/b"]["attempt"]) == ("ok", 2)


@pytest.mark.parametrize("action", ["stray", "bare stray"])
def test_a_process_that_left_the_session_is_ended_with_its_worker(host: Host, action: str) -> None:
    """Also one that has nothing of us in its environment."""
    case = does("c1", a=action)
    case["timeout_s"] = 1
    assert host.run([case])["c1/a"]["status"] == "timeout"
    (pid,) = host.trace("strays")
    assert not runs(int(pid))


def test_an_error_that_an_earlier_case_may_have_caused_is_tried_again_in_a_new_worker(host: Host) -> None:
    found = host.run([does("c1", a="damage"), does("c2", a="ok", b="ok"), does("c3", a="ok")])
    # What it damages is its own measurement first of all, which nobody else is to blame for.
    assert (found["c1/a"]["status"], found["c1/a"]["attempt"]) == ("error", 1)
    for key in ("c2/a", "c2/b"):
        assert (found[key]["status"], found[key]["attempt"]) == ("ok", 2)
        (other,) = found[key]["extra"]["other_attempts"]
        assert (other["attempt"], other["status"]) == (1, "error")
        assert "No such file or directory" in other["reason"]
    assert (found["c3/a"]["status"], found["c3/a"]["attempt"]) == ("ok", 1)
    cases, pids = zip(*(line.split()[:2] for line in host.trace("cases")), strict=True)
    assert cases == ("c1", "c2", "c2", "c3")
    assert pids == (pids[0], pids[0], pids[2], pids[2])


def test_errors_of_a_backends_own_stand_and_cost_one_worker_in_all(host: Host) -> None:
    found = host.run([does("c1", a="fail"), *(does(f"c{n}", a="fail", b="ok") for n in range(2, 6))])
    assert [found[f"c{n}/a"]["reason"] for n in range(1, 6)] == [
        f"ValueError: no kernel for c{n}" for n in range(1, 6)
    ]
    assert [found[f"c{n}/a"]["attempt"] for n in range(1, 6)] == [1, 2, 1, 1, 1]
    assert {found[f"c{n}/b"]["status"] for n in range(2, 6)} == {"ok"}
    assert len({line.split()[1] for line in host.trace("cases")}) == 2


def test_what_a_crashed_worker_left_behind_is_ended_and_nothing_of_others(host: Host) -> None:
    """It has left the session and has nothing of us in its environment; nobody was told beforehand."""
    host.job["devices"] = {"cpu": 2}
    call = host.launch([does("c1", a="bare daemon", b="hang"), does("c2", a="gate", b="bare orphan")])
    wait_for(lambda: host.trace("gates") and host.trace("bare daemons"))
    (daemon,) = map(int, host.trace("bare daemons"))
    (host.traces / "open").touch()
    (exited, *_) = call.wait_for("worker_exited")
    assert exited["reason"] == "killed by signal 9 (SIGKILL)"
    (orphan,) = map(int, host.trace("bare orphans"))
    assert not runs(orphan)
    assert runs(daemon)
    call.say(type="cancel")
    assert call.expect("end")["state"] == "cancelled"
    assert not runs(daemon)


def test_an_unhealthy_worker_is_replaced(host: Host) -> None:
    found = host.run([does("c1", a="unhealthy"), does("c2", a="ok")])
    assert [record["status"] for record in found.values()] == ["ok", "ok"]
    assert len({line.split()[1] for line in host.trace("cases")}) == 2


def test_ten_megabytes_of_noise_change_nothing(host: Host) -> None:
    found = host.run([does("c1", a="noise", b="exit")])
    assert found["c1/a"]["status"] == "ok"
    assert found["c1/b"]["log_tail"].endswith("last words of the payload")
    logs = list((host.run_dir / "logs").glob("cpu0-001.log*"))
    assert sum(path.stat().st_size for path in logs) > 10_000_000


def test_a_nan_time_is_an_error_and_the_journal_stays_strict(host: Host) -> None:
    record = host.run([does("c1", a="nan")])["c1/a"]
    assert record["status"] == "error"
    assert record["reason"].startswith("timing.median_us is NaN")
    assert record["timing"] is None
    assert b"NaN," not in (host.run_dir / "events.jsonl").read_bytes()


def test_secrets_reach_the_worker_and_never_the_disk(host: Host) -> None:
    token = "tok-é-5f2a97c1"
    call = host.launch([does("c1", a="secret", b="exit")], secrets={"TOKEN": token})
    assert call.expect("end")["state"] == "finished"
    assert "the token is ***" in (host.run_dir / "logs" / "cpu0-001.log").read_text()
    for path in host.workdir.rglob("*"):
        if path.is_file():
            assert token.encode() not in path.read_bytes()


@pytest.mark.parametrize("broken", ["import", "python"])
def test_workers_that_never_start_are_an_error_and_no_endless_loop(host: Host, broken: str) -> None:
    if broken == "import":
        host.job["env"]["PAYLOAD_CANNOT_START"] = "1"
    else:
        host.job["python"] = "nowhere-python"  # an absolute path is seen to be missing beforehand
    found = host.run([item(f"c{n}") for n in range(6)])
    assert [record["status"] for record in found.values()] == ["error"] * 6
    if broken == "import":
        assert "libbroken.so" in found["c0/torch"]["log_tail"]
    else:
        assert "cannot start nowhere-python" in found["c0/torch"]["reason"]
    assert len(list((host.run_dir / "logs").glob("cpu0-*.log"))) == 3
    assert "several times in a row" in found["c5/torch"]["reason"]


def test_activation_runs_first_and_cannot_move_the_worker_to_another_device(host: Host) -> None:
    host.job["activate"] = "CUDA_VISIBLE_DEVICES=7; export CUDA_VISIBLE_DEVICES; set -- gone; echo activated"
    record = host.run([item("c1")])["c1/torch"]
    assert record["extra"]["visible"] == ""
    assert "activated" in (host.run_dir / "logs" / "cpu0-001.log").read_text()


def test_several_slots_share_one_queue(host: Host) -> None:
    host.job["devices"] = {"cpu": 3}
    call = host.launch([does(f"c{n}", a="gate") for n in range(6)])
    wait_for(lambda: len(host.trace("gates")) == 3)
    (host.traces / "open").touch()
    assert call.expect("end")["state"] == "finished"
    records = [event["measurement"] for event in call.events("measurement")]
    assert len(records) == 6
    assert {record["device"]["uuid"] for record in records} == {"cpu-0", "cpu-1", "cpu-2"}


def test_replicated_cases_are_measured_on_every_device(host: Host) -> None:
    host.job.update(devices={"cpu": 2}, replicate_devices=True)
    call = host.launch([item("c1"), item("c2")])
    call.expect("end")
    where = sorted(
        (e["measurement"]["case_id"], e["measurement"]["device"]["uuid"]) for e in call.events("measurement")
    )
    assert where == [("c1", "cpu-0"), ("c1", "cpu-1"), ("c2", "cpu-0"), ("c2", "cpu-1")]


def test_a_gang_is_one_case_and_rank_zero_speaks(host: Host) -> None:
    host.job["devices"] = {"cpu": 3}
    found = host.run([item("c1", devices_per_case=2)])
    assert found["c1/torch"]["status"] == "ok"
    assert found["c1/torch"]["extra"]["rank"] == "0"
    assert sorted(line.split()[2] for line in host.trace("cases")) == ["0", "1"]


def test_a_dead_rank_ends_the_whole_gang(host: Host) -> None:
    host.job["devices"] = {"cpu": 2}
    dying = item(
        "c1",
        ("a", "b"),
        devices_per_case=2,
        params={"rank_that_dies": "1", "does": {"a": "deaf", "b": "deaf"}},
    )
    found = host.run([dying, item("c2", devices_per_case=2)])
    assert {key: record["status"] for key, record in found.items()} == {
        "c1/a": "crashed", "c1/b": "crashed", "c2/torch": "ok",
    }  # fmt: skip
    assert found["c1/a"]["reason"] == "rank 1: exit code 3"


def test_more_devices_than_there_are_is_unsupported(host: Host) -> None:
    record = host.run([item("c1", devices_per_case=4)])["c1/torch"]
    assert (record["status"], record["reason"]) == (
        "unsupported",
        "it needs 4 devices, and this host offers 1",
    )
