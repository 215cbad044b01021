"""A worker whose device no longer computes: what it did not measure starts again in a new process."""

from __future__ import annotations

from core.conftest import Host

from .conftest import says


def test_backends_that_were_not_reported_start_again_in_a_new_worker(telling: Host) -> None:
    cases = [says("c1", a=["valid"], b=["unhealthy"], c=["valid"], d=["valid"]), says("c2", a=["valid"])]
    found = telling.run(cases)
    assert {key: (record["status"], record["attempt"]) for key, record in found.items()} == {
        "c1/a": ("ok", 1), "c1/b": ("ok", 1), "c1/c": ("ok", 2), "c1/d": ("ok", 2), "c2/a": ("ok", 1),
    }  # fmt: skip
    workers = [line.split()[3] for line in telling.trace("measured")]
    assert workers[0] == workers[1] != workers[2]
    assert workers[2] == workers[3] == workers[4]


def test_backends_that_break_the_device_do_not_keep_the_others_from_being_measured(telling: Host) -> None:
    words = ["unhealthy"]
    found = telling.run([says("c1", a=words, b=words, c=words, d=["valid"]), says("c2", a=["valid"])])
    assert {key: (record["status"], record["attempt"]) for key, record in found.items()} == {
        "c1/a": ("ok", 1), "c1/b": ("ok", 2), "c1/c": ("ok", 3), "c1/d": ("ok", 4), "c2/a": ("ok", 1),
    }  # fmt: skip


def test_a_device_that_is_broken_before_anything_is_measured_ends_the_case(telling: Host) -> None:
    found = telling.run([says("c1", a=["broken"], b=["valid"]), says("c2", a=["valid"])])
    assert {key: record["status"] for key, record in found.items()} == {
        "c1/a": "crashed", "c1/b": "crashed", "c2/a": "ok",
    }  # fmt: skip
    assert (
        found["c1/a"]["reason"]
        == found["c1/b"]["reason"]
        == (
            "not tried: this case has ended 2 workers with no backend to blame; last: reported itself unhealthy"
        )
    )


def test_a_device_that_broke_with_the_last_backend_costs_nothing_more(telling: Host) -> None:
    found = telling.run([says("c1", a=["valid"], b=["unhealthy"]), says("c2", a=["valid"])])
    assert [(record["status"], record["attempt"]) for record in found.values()] == [("ok", 1)] * 3
    workers = [line.split()[3] for line in telling.trace("measured")]
    assert workers[1] != workers[2]
