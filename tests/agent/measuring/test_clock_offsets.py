"""Backends of one case that were measured at different clocks are suspect, unless a limit of the device explains them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from core.conftest import Host
from host.conftest import FakeDriver, gpu

from orchestrator.agent.looks import DeviceWindow, steady_clock_mhz
from orchestrator.agent.offsets import CaseClocks
from orchestrator.agent.smi import Reading
from tests.support.waiting import wait_for

from .conftest import says

POWER_CAP, APPLICATION_CLOCKS = 0x4, 0x2


@pytest.fixture
def clocked(telling: Host, driver: FakeDriver, tmp_path: Path) -> Host:
    """A host with one GPU, whose payload sets the clock that its backends are measured at."""
    looks = tmp_path / "looks"
    looks.touch()
    telling.env.update({**driver.environ, "PATH": telling.env["PATH"], "FAKE_NVML_LOOKS": str(looks)})
    telling.job["devices"] = "all"
    driver.say(gpu("GPU-aaaa", sm=1980))
    return telling


def told(record: dict[str, Any]) -> tuple[str, list[str]]:
    return record["verdict"], record["reasons"]


def test_both_are_suspect_with_the_clocks_as_evidence(clocked: Host) -> None:
    found = clocked.run([says("c1", 0, a=["clock=1980"], b=["clock=1700"], c=["clock=1950"])])
    assert {name: told(record) for name, record in found.items()} == {
        "c1/a": ("suspect", ["clock_offset"]),
        "c1/b": ("suspect", ["clock_offset"]),
        "c1/c": ("suspect", ["clock_offset"]),
    }
    assert found["c1/a"]["extra"]["clock_offset"] == {"sm_clock_mhz": 1980.0, "others_mhz": {"b": 1700.0}}
    assert found["c1/b"]["extra"]["clock_offset"]["others_mhz"] == {"a": 1980.0, "c": 1950.0}
    assert found["c1/b"]["telemetry"]["sm_clock_mhz"] == 1700
    assert found["c1/b"]["timing"]["median_us"] == 10.0


def test_they_are_measured_again_together_and_the_better_times_stand(clocked: Host) -> None:
    backends = {"a": ["clock=1980", "clock=1755"], "b": ["clock=1700", "clock=1740"]}
    found = clocked.run([says("c1", 1, **backends), says("c2", 1, a=["valid"])])
    assert [told(found[name]) for name in ("c1/a", "c1/b")] == [("valid", [])] * 2
    for name in ("c1/a", "c1/b"):
        (other,) = found[name]["extra"]["other_attempts"]
        assert (other["attempt"], other["reasons"]) == (1, ["clock_offset"])
        assert "clock_offset" not in found[name]["extra"]


def test_a_second_look_at_one_backend_is_held_against_the_first_looks_of_the_others(clocked: Host) -> None:
    found = clocked.run([says("c1", 1, a=["clock=1980"], b=["suspect", "clock=1755"])])
    assert told(found["c1/a"]) == ("valid", []), "it stood already"
    attempts = [told(found["c1/b"]), *(told(other) for other in found["c1/b"]["extra"]["other_attempts"])]
    assert sorted(attempts) == [("suspect", ["clock_offset"]), ("suspect", ["noisy"])]


def test_clocks_that_a_power_cap_leaves_are_the_kernels_own(clocked: Host) -> None:
    found = clocked.run([says("c1", 1, a=["clock=1980"], b=["clock=1485=4"], c=["clock=1965"])])
    assert {told(record)[0] for record in found.values()} == {"valid"}
    assert found["c1/b"]["telemetry"]["throttle_reasons"] == ["sw_power_cap"]
    assert (found["c1/b"]["telemetry"]["sm_clock_mhz"], found["c1/b"]["attempt"]) == (1485, 1)


def test_other_cases_do_not_count_and_nothing_waits_in_a_case_of_one_backend(clocked: Host) -> None:
    cases = [says("c1", 0, a=["clock=1980"]), says("c2", 0, a=["clock=1500"], b=["clock=1500"])]
    assert {told(record)[0] for record in clocked.run(cases).values()} == {"valid"}


def test_what_is_known_stands_when_another_backend_ends_the_worker(clocked: Host) -> None:
    found = clocked.run([says("c1", 0, a=["clock=1980"], b=["kill", "kill"], c=["x", "clock=1500"])])
    assert [(found[f"c1/{name}"]["status"], found[f"c1/{name}"]["attempt"]) for name in "abc"] == [
        ("ok", 1),
        ("crashed", 1),
        ("ok", 2),
    ]
    assert told(found["c1/a"]) == ("valid", [])
    assert told(found["c1/c"]) == ("suspect", ["clock_offset"])


def test_what_waits_for_the_others_clocks_stands_when_the_run_is_cancelled(clocked: Host) -> None:
    call = clocked.launch([says("c1", 1, a=["clock=1980"], b=["gate"])])
    wait_for(lambda: clocked.trace("gates"))
    call.say(type="cancel")
    assert call.expect("end")["state"] == "cancelled"
    assert [(m["backend"], *told(m)) for m in clocked.measurements()] == [("a", "valid", [])]


@pytest.mark.parametrize(("one", "other", "verdict"), [(1980, 1890, "valid"), (1980, 1875, "suspect")])
def test_the_threshold_is_five_percent(one: float, other: float, verdict: str) -> None:
    clocks = CaseClocks()
    record: dict[str, Any] = {"verdict": "valid", "reasons": [], "extra": {}}
    clocks.hold("a", record, one)
    clocks.hold("b", record, other)
    assert [(name, judged["verdict"]) for name, judged in clocks.judge()] == [("a", verdict), ("b", verdict)]
    assert clocks.judge() == []


def looks(*clocks: float | None, limits: int | None = 0) -> DeviceWindow:
    window = DeviceWindow()
    for clock in clocks:
        window.add(Reading(clock, 3201, 500.0, 60, limits))
    return window


def test_a_clock_can_be_compared_when_it_was_seen_often_enough_and_nothing_limited_it() -> None:
    assert looks(1980, 1980, 1965).steady_clock_mhz == 1980
    assert looks(1980, 1980, 1965, limits=APPLICATION_CLOCKS).steady_clock_mhz == 1980
    assert looks(1980, 1980).steady_clock_mhz is None
    assert looks(1980, None, None).steady_clock_mhz is None
    assert looks(1485, 1485, 1485, limits=POWER_CAP).steady_clock_mhz is None
    assert looks(345, 345, 345, limits=0x1).steady_clock_mhz is None, "an idle device"
    assert looks(1485, 1485, 1485, limits=None).steady_clock_mhz is None, "nobody knows what limited it"
    assert steady_clock_mhz([looks(1980, 1980, 1980), looks(1500, 1500, 1500)]) == 1500
    assert steady_clock_mhz([looks(1980, 1980, 1980), looks(1500)]) is None
