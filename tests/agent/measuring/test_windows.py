"""Each backend has a window of telemetry of its own, over baselines that its crew's workers share."""

from __future__ import annotations

from typing import Any

import pytest
from core.conftest import Host
from host.conftest import FakeDriver, gpu

from orchestrator.agent.logs import Redactor
from orchestrator.agent.records import complete
from orchestrator.agent.window import Windows

from .conftest import says

DEVICE = {"uuid": "GPU-aaaa", "index": 0, "name": "NVIDIA H200", "compute_capability": "9.0", "kind": "gpu"}
HW_SLOWDOWN = 0x8
OK = {
    "backend": "a",
    "status": "ok",
    "verdict": "valid",
    "reasons": [],
    "timing": {"median_us": 5.0, "samples": 9},
}


@pytest.fixture
def windows(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Windows:
    for name, value in driver.environ.items():
        monkeypatch.setenv(name, value)
    driver.say(gpu("GPU-aaaa", sm=1980))
    made = Windows([DEVICE], "nonce", lambda message: None)
    made.before_start()
    return made


def test_a_slowdown_after_its_result_is_not_held_against_a_backend(
    windows: Windows, driver: FakeDriver
) -> None:
    windows.open("early")
    windows.open("late")
    windows.open("early")  # its second turn: the same window
    driver.wait_for_looks()
    telemetry, reasons = windows.close("early", ())
    assert telemetry is not None
    assert (telemetry["sm_clock_mhz"], telemetry["throttle_reasons"], reasons) == (1980, [], [])
    driver.say(gpu("GPU-aaaa", sm=1200, reasons=HW_SLOWDOWN))
    driver.wait_for_looks()
    telemetry, reasons = windows.close("late", ())
    assert telemetry is not None
    assert (telemetry["throttle_reasons"], reasons) == (["hw_slowdown"], ["throttled"])


def test_further_rows_of_a_result_have_its_telemetry_and_what_was_not_measured_has_none(
    windows: Windows, driver: FakeDriver
) -> None:
    windows.open("rows")
    driver.wait_for_looks()
    first = windows.close("rows", ())
    assert windows.close("rows", ()) == first
    assert first[0] is not None
    assert windows.close("unsupported", ()) == (None, ())
    windows.close_all()
    assert windows.close("rows", ()) == (None, ())


def test_throttled_measurements_are_stored_with_clocks_and_reason(telling: Host, driver: FakeDriver) -> None:
    telling.env.update({**driver.environ, "PATH": telling.env["PATH"]})
    telling.job["devices"] = "all"
    driver.say(gpu("GPU-aaaa", sm=690, reasons=HW_SLOWDOWN))
    record = telling.run([says("c1", retries=0, a=["valid"])])["c1/a"]
    assert (record["status"], record["verdict"], record["reasons"]) == ("ok", "suspect", ["throttled"])
    assert record["timing"]["median_us"] == 10.0
    assert record["telemetry"]["sm_clock_mhz"] == 690
    assert record["telemetry"]["throttle_reasons"] == ["hw_slowdown"]


def test_a_throttled_measurement_is_made_again(telling: Host, driver: FakeDriver) -> None:
    telling.env.update({**driver.environ, "PATH": telling.env["PATH"]})
    telling.job["devices"] = "all"
    driver.say(gpu("GPU-aaaa", sm=690, reasons=HW_SLOWDOWN))
    record = telling.run([says("c1", retries=1, a=["valid"])])["c1/a"]
    assert [other["reasons"] for other in record["extra"]["other_attempts"]] == [["throttled"]]


def test_a_time_without_samples_is_invalid_and_no_row_of_nan(telling: Host) -> None:
    record = telling.run([says("c1", retries=0, a=["no_samples"])])["c1/a"]
    assert (record["status"], record["verdict"], record["reasons"]) == ("ok", "invalid", ["few_samples"])
    assert record["samples_us"] is None


@pytest.mark.parametrize("median", [float("nan"), float("inf"), 0.0, -1.0, None])
def test_a_time_that_is_none_is_an_error_with_its_reason(median: Any) -> None:
    sent = {**OK, "timing": {"median_us": median, "samples": 0}, "samples_us": []}
    record = complete(sent, {}, Redactor(()), {"sm_clock_mhz": 345.0}, ["throttled"])
    assert (record["status"], record["verdict"], record["timing"]) == ("error", None, None)
    assert "timing.median_us is" in record["reason"]
    assert record["telemetry"] == {"sm_clock_mhz": 345.0}
