"""Doubtful measurements are made again later in the run; each comes to the journal once."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from core.conftest import Host, item

from orchestrator.agent.queueing import Entry
from orchestrator.agent.second_opinions import SecondOpinions
from tests.support.waiting import wait_for

from .conftest import says


def measured(host: Host) -> list[str]:
    """`case backend attempt`, in the order in which they were measured."""
    return [" ".join(line.split()[:3]) for line in host.trace("measured")]


def test_a_suspect_measurement_is_made_again_after_all_that_waits(telling: Host) -> None:
    found = telling.run([says("c1", a=["suspect", "valid"], b=["valid"]), says("c2", a=["valid"])])
    assert measured(telling) == ["c1 a 1", "c1 b 1", "c2 a 1", "c1 a 2"]
    record = found["c1/a"]
    assert (record["verdict"], record["reasons"], record["attempt"]) == ("valid", [], 2)
    assert record["extra"]["other_attempts"] == [
        {
            "attempt": 1,
            "status": "ok",
            "reason": None,
            "verdict": "suspect",
            "reasons": ["noisy"],
            "median_us": 10.0,
        }
    ]
    assert [(m["case_id"], m["backend"]) for m in telling.measurements()] == [
        ("c1", "b"),
        ("c2", "a"),
        ("c1", "a"),
    ]


@pytest.mark.parametrize(
    ("words", "retries", "verdict", "stands", "attempts"),
    [
        (["suspect:0.05", "suspect:0.03"], 1, "suspect", 2, 2),
        (["suspect:0.03", "suspect:0.05"], 1, "suspect", 1, 2),
        (["suspect:0.03", "invalid:0.4"], 1, "suspect", 1, 2),
        (["invalid:0.4", "suspect:0.03"], 1, "suspect", 2, 2),
        (["suspect", "valid"], 0, "suspect", 1, 1),
        (["suspect", "suspect", "valid", "never"], 3, "valid", 3, 3),
        (["suspect:0.04", "suspect:0.03", "suspect:0.05"], 2, "suspect", 2, 3),
    ],
)
def test_the_better_one_stands(
    telling: Host, words: list[str], retries: int, verdict: str, stands: int, attempts: int
) -> None:
    record = telling.run([says("c1", retries, a=words)])["c1/a"]
    assert (record["verdict"], record["attempt"]) == (verdict, stands)
    assert len(telling.trace("measured")) == attempts
    assert len(record["extra"].get("other_attempts", [])) == attempts - 1
    assert len(telling.measurements()) == 1


def test_a_crash_at_the_second_look_leaves_the_first_result(telling: Host) -> None:
    record = telling.run([says("c1", a=["suspect", "kill"])])["c1/a"]
    assert (record["status"], record["verdict"], record["attempt"]) == ("ok", "suspect", 1)
    (other,) = record["extra"]["other_attempts"]
    assert (other["attempt"], other["status"]) == (2, "crashed")
    assert other["reason"] == "killed by signal 9 (SIGKILL)"


def test_an_output_that_is_wrong_at_the_second_look_is_wrong(telling: Host) -> None:
    record = telling.run([says("c1", a=["suspect", "incorrect"])])["c1/a"]
    assert (record["status"], record["verdict"], record["attempt"]) == ("incorrect", None, 2)


def test_of_several_rows_only_the_doubtful_wait(telling: Host) -> None:
    call = telling.launch([says("c1", a=["rows"])])
    assert call.expect("end")["state"] == "finished"
    assert [(m["row"], m["verdict"], m["attempt"]) for m in telling.measurements()] == [
        ({"n": 0}, "valid", 1),
        ({"n": 1}, "suspect", 1),
    ]


@pytest.mark.parametrize("how", ["cancel", "stop"])
def test_what_waits_for_a_second_look_stands_when_the_run_ends_before(telling: Host, how: str) -> None:
    call = telling.launch([says("c1", a=["suspect"]), says("c2", a=["gate"])])
    wait_for(lambda: telling.trace("gates"))
    assert telling.measurements() == []
    if how == "cancel":
        call.say(type="cancel")
        assert call.expect("end")["state"] == "cancelled"
    else:
        os.kill(telling.agent_pid(), signal.SIGTERM)
        call.expect("end")
    assert [(m["case_id"], m["verdict"], m["attempt"]) for m in telling.measurements()] == [
        ("c1", "suspect", 1)
    ]


def test_after_a_killed_agent_it_is_measured_anew_and_journalled_once(telling: Host) -> None:
    cases = [says("c1", a=["suspect", "valid"]), says("c2", a=["gate", "valid"])]
    call = telling.launch(cases)
    wait_for(lambda: telling.trace("gates"))
    os.kill(telling.agent_pid(), signal.SIGKILL)
    assert call.expect("end")["state"] == "dead"
    (telling.traces / "open").touch()
    again = telling.launch(cases, follow=len(call.journal))
    assert again.expect("end")["state"] == "finished"
    assert [(m["case_id"], m["verdict"], m["attempt"]) for m in telling.measurements()] == [
        ("c1", "valid", 2),
        ("c2", "valid", 2),
    ]


def test_it_is_measured_again_on_the_same_device(telling: Host) -> None:
    telling.job["devices"] = {"cpu": 2}
    cases = [says(f"c{n}", a=["suspect"]) for n in range(6)]
    call = telling.launch(cases)
    assert call.expect("end")["state"] == "finished"
    started = [(e["case_id"], e["attempt"], e["devices"][0]) for e in call.events("case_started")]
    first = {case_id: device for case_id, attempt, device in started if attempt == 1}
    assert {case_id: device for case_id, attempt, device in started if attempt == 2} == first


def test_tens_of_thousands_wait_in_a_file_and_not_in_memory(tmp_path: Path) -> None:
    opinions = SecondOpinions(str(tmp_path))
    record: dict[str, Any] = {
        "status": "ok",
        "verdict": "suspect",
        "reasons": ["noisy"],
        "row": None,
        "extra": {},
    }
    record["samples_us"] = [1.5] * 2000
    entries = [Entry({**item(f"c{n}"), "measure": {"retries": 1}}, None, (), 1) for n in range(200)]
    for number, entry in enumerate(entries):
        assert opinions.weigh(entry, "torch", {**record, "attempt": number}) is None
    assert os.listdir(tmp_path) == []
    for number, entry in enumerate(entries):
        assert opinions.again(entry)
        stands = opinions.weigh(entry, "torch", {**record, "verdict": "invalid", "attempt": -1})
        assert stands is not None
        assert stands["attempt"] == number
        assert list(opinions.settle(entry)) == []
