from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.agent import telemetry
from orchestrator.agent.looks import DeviceWindow, judge
from orchestrator.agent.smi import Reading
from orchestrator.agent.telemetry import Sampler
from tests.support.waiting import wait_for

from .conftest import FakeDriver, gpu

SmiHost = Callable[[str], dict[str, str]]

A, B = "GPU-aaaa", "GPU-bbbb"
DEVICE_A = {"uuid": A, "index": 0, "name": "NVIDIA H200", "compute_capability": "9.0", "kind": "gpu"}
DEVICE_B = {**DEVICE_A, "uuid": B, "index": 1}
CPU = {"uuid": "cpu-0", "index": 0, "name": "CPU", "compute_capability": None, "kind": "cpu"}

IDLE, POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x1, 0x4, 0x8, 0x20, 0x40, 0x80

MakeSampler = Callable[..., Sampler]
STUCK: set[threading.Thread] = set()


@pytest.fixture
def sampler(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> MakeSampler:
    monkeypatch.setenv("FAKE_NVML", str(driver.answers))

    def make(
        *devices: dict[str, object], host_pids: bool = True, owns: Callable[[int], bool] | None = None
    ) -> Sampler:
        return Sampler(devices or (DEVICE_A,), driver.environ, owns, host_pids)

    return make


def window(*looks: tuple[int, int]) -> DeviceWindow:
    """Looks at a device: (SM clock, event reasons)."""
    seen = DeviceWindow()
    for sm, reasons in looks:
        seen.add(Reading(sm, 3201, 500.0, 60, reasons))
    return seen


def reasons_of(*looks: tuple[int, int]) -> list[str]:
    return judge([window(*looks)], set(), set())[1]


@pytest.mark.parametrize("bit", [HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE])
def test_one_moment_of_slowdown_makes_it_throttled(bit: int) -> None:
    assert reasons_of(*[(1980, 0)] * 50, (1980, bit), *[(1980, 0)] * 50) == ["throttled"]


def test_a_power_cap_alone_is_evidence_and_no_verdict() -> None:
    record, reasons = judge([window(*[(1500, POWER_CAP)] * 100)], set(), set())
    assert record["throttle_reasons"] == ["sw_power_cap"]
    assert reasons == []
    assert reasons_of((1980, 0), *[(1800, POWER_CAP)] * 100) == []


def test_clocks_that_fall_under_a_power_cap_are_throttled() -> None:
    fast, slow, capped = (1980, 0), (1700, 0), (1700, POWER_CAP)
    assert reasons_of(*[fast] * 30, *[capped] * 70) == ["throttled"]
    assert reasons_of(*[fast] * 2, *[capped] * 4) == ["throttled"]
    assert reasons_of(*[fast] * 30, *[slow] * 70) == [], "no cap was seen: clocks fall for other causes too"
    assert reasons_of(*[fast] * 90, *[capped] * 10) == [], "most of it ran as fast as it could"
    assert reasons_of(*[fast] * 2, *[capped] * 98) == [], "it ran under the cap nearly from the start"
    assert reasons_of(*[fast, capped, capped] * 30) == [], "kernels that take turns"
    assert reasons_of(*[(1980, 0)] * 30, *[(1800, POWER_CAP)] * 70) == [], "9% are not notable"
    assert reasons_of(fast, fast, capped, capped, capped) == [], "too few looks"


def test_clocks_of_an_idle_device_do_not_count() -> None:
    record, reasons = judge([window(*[(345, IDLE)] * 100, *[(1980, POWER_CAP)] * 6)], set(), set())
    assert record["sm_clock_mhz"] == 1980
    assert record["throttle_reasons"] == ["sw_power_cap"]
    assert reasons == []
    assert judge([window((345, IDLE))], set(), set())[0]["sm_clock_mhz"] == 345


def test_of_several_devices_the_slowest_and_hottest_counts() -> None:
    cool, hot = DeviceWindow(), DeviceWindow()
    cool.add(Reading(1980, 3201, 400.0, 50, 0))
    hot.add(Reading(1200, 2600, 650.0, 88, HW_THERMAL))
    record, reasons = judge([cool, hot], set(), set())
    assert record == {
        "sm_clock_mhz": 1200,
        "mem_clock_mhz": 2600,
        "power_w": 650.0,
        "temperature_c": 88,
        "throttle_reasons": ["hw_thermal_slowdown"],
        "foreign_pids": [],
    }
    assert reasons == ["throttled"]


def test_a_quiet_device_gives_its_readings_and_no_reason(driver: FakeDriver, sampler: MakeSampler) -> None:
    driver.say(gpu(A, sm=1755, mem=3201, mw=512_300, celsius=61))
    watch = sampler()
    watch.baseline()
    watch.begin()
    assert watch.end([]) == (
        {
            "sm_clock_mhz": 1755,
            "mem_clock_mhz": 3201,
            "power_w": 512.3,
            "temperature_c": 61,
            "throttle_reasons": [],
            "foreign_pids": [],
        },
        [],
    )


def test_what_happens_between_begin_and_end_is_seen(driver: FakeDriver, sampler: MakeSampler) -> None:
    driver.say(gpu(A))
    watch = sampler()
    watch.begin()
    driver.say(gpu(A, sm=900, reasons=HW_THERMAL, celsius=93), f"compute {A} 999999")
    driver.wait_for_looks()
    driver.say(gpu(A))
    record, reasons = watch.end([])
    assert record is not None
    assert record["throttle_reasons"] == ["hw_thermal_slowdown"]
    assert record["temperature_c"] == 93
    assert record["foreign_pids"] == [999999]
    assert reasons == ["throttled", "contended"]


@pytest.mark.parametrize(("code", "comes_back"), [(999, True), (15, True), (3, False), (4, False)])
def test_a_driver_that_fails_for_a_moment_is_asked_again(
    driver: FakeDriver, sampler: MakeSampler, code: int, comes_back: bool
) -> None:
    driver.say(gpu(A), f"fails {code}")
    watch = sampler()
    watch.baseline()
    watch.begin()
    failing, _ = watch.end([])
    driver.say(gpu(A, sm=900, reasons=HW_THERMAL))
    watch.begin()
    record, reasons = watch.end([])
    assert failing is not None
    assert record is not None
    assert (failing["sm_clock_mhz"], failing["power_w"], failing["throttle_reasons"]) == (None, None, [])
    assert record["sm_clock_mhz"] == (900 if comes_back else None)
    assert reasons == (["throttled"] if comes_back else [])


def test_a_window_knows_nothing_of_the_one_before(driver: FakeDriver, sampler: MakeSampler) -> None:
    driver.say(gpu(A, reasons=POWER_BRAKE), f"compute {A} 77")
    watch = sampler()
    watch.begin()
    assert watch.end([])[1] == ["throttled", "contended"]
    driver.say(gpu(A))
    watch.begin()
    assert watch.end([])[1] == []
    assert watch.end([]) == (None, []), "no window is open"


def test_our_own_processes_are_not_foreign(driver: FakeDriver, sampler: MakeSampler) -> None:
    driver.say(gpu(A), f"compute {A} 41", f"compute {A} 42", f"compute {B} 43")
    watch = sampler()
    watch.begin()
    record, reasons = watch.end([41, 42])
    assert record is not None
    assert (record["foreign_pids"], reasons) == ([], [])
    watch.begin()
    record, reasons = watch.end([41])
    assert record is not None
    assert (record["foreign_pids"], reasons) == ([42], ["contended"])


def test_a_child_of_ours_that_is_gone_by_the_end_was_ours(driver: FakeDriver, sampler: MakeSampler) -> None:
    driver.say(gpu(A), f"compute {A} 41", f"compute {A} 50")
    watch = sampler(owns=lambda pid: pid == 50)
    watch.begin()
    driver.say(gpu(A), f"compute {A} 41")
    assert watch.end([41])[1] == []


def test_a_desktop_is_recorded_but_does_not_contend(driver: FakeDriver, sampler: MakeSampler) -> None:
    driver.say(gpu(A), f"graphics {A} 1200")
    watch = sampler()
    watch.begin()
    record, reasons = watch.end([])
    assert record is not None
    assert (record["foreign_pids"], reasons) == ([1200], [])


def test_more_processes_than_expected_are_all_seen(driver: FakeDriver, sampler: MakeSampler) -> None:
    driver.say(gpu(A), *(f"compute {A} {pid}" for pid in range(1000, 1100)))
    watch = sampler()
    watch.begin()
    record, _ = watch.end(range(1000, 1099))
    assert record is not None
    assert record["foreign_pids"] == [1099]


def test_in_a_container_ours_is_what_came_with_our_worker(driver: FakeDriver, sampler: MakeSampler) -> None:
    driver.say(gpu(A))
    watch = sampler(host_pids=False)
    watch.baseline()
    watch.begin()
    driver.say(gpu(A), f"compute {A} 3000001")  # the worker, by the host's number; here it is 17
    record, reasons = watch.end([17])
    assert record is not None
    assert (record["foreign_pids"], reasons) == ([], [])
    watch.begin()
    driver.say(gpu(A), f"compute {A} 3000001", f"compute {A} 3000777")
    record, reasons = watch.end([17])
    assert record is not None
    assert (record["foreign_pids"], reasons) == ([3000777], ["contended"])


def test_in_a_container_who_was_there_before_is_foreign(driver: FakeDriver, sampler: MakeSampler) -> None:
    driver.say(gpu(A), f"compute {A} 2999999")
    watch = sampler(host_pids=False)
    watch.baseline()
    driver.say(gpu(A), f"compute {A} 2999999", f"compute {A} 3000001")
    watch.begin()
    record, reasons = watch.end([17])
    assert record is not None
    assert (record["foreign_pids"], reasons) == ([2999999], ["contended"])


def test_in_a_container_a_new_worker_needs_a_new_baseline(driver: FakeDriver, sampler: MakeSampler) -> None:
    watch = sampler(host_pids=False)
    for worker in (3000001, 3000002):
        driver.say(gpu(A))
        watch.baseline()
        driver.say(gpu(A), f"compute {A} {worker}")
        watch.begin()
        assert watch.end([17])[1] == []
    # The second worker was killed, but what it had forked still sits on the device.
    watch.baseline()
    driver.say(gpu(A), f"compute {A} 3000002", f"compute {A} 3000003")
    watch.begin()
    assert watch.end([17])[1] == ["contended"]


def test_a_slice_has_the_clocks_of_its_gpu_and_processes_of_its_own(
    driver: FakeDriver, sampler: MakeSampler
) -> None:
    slices = [f"slice {A}|MIG-1|NVIDIA H200 MIG 1g.18gb", f"slice {A}|MIG-2|NVIDIA H200 MIG 1g.18gb"]
    driver.say(gpu(A, mig=True, sm=1410), *slices, "compute MIG-2 5555")
    watch = sampler({**DEVICE_A, "uuid": "MIG-1"})
    watch.begin()
    record, reasons = watch.end([])
    assert record is not None
    assert (record["sm_clock_mhz"], record["foreign_pids"], reasons) == (1410, [], [])


def test_a_gang_is_watched_on_all_its_devices(driver: FakeDriver, sampler: MakeSampler) -> None:
    driver.say(gpu(A, sm=1980), gpu(B, bus="00000000:02:00.0", sm=1500), f"compute {B} 66")
    watch = sampler(DEVICE_A, DEVICE_B)
    watch.begin()
    record, reasons = watch.end([])
    assert record is not None
    assert (record["sm_clock_mhz"], record["foreign_pids"], reasons) == (1500, [66], ["contended"])


def test_a_hanging_driver_costs_one_bound_and_then_silence(
    driver: FakeDriver, sampler: MakeSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "ANSWER_S", 0.2)
    monkeypatch.setattr(telemetry, "_hangs", threading.Event())
    driver.say("hang")
    watch = sampler()
    assert watch.problem is None
    watch.begin()
    STUCK.update(thread for thread in threading.enumerate() if thread.name == "telemetry")
    assert watch.problem == "no telemetry: the NVIDIA driver hangs"
    monkeypatch.setattr(telemetry, "ANSWER_S", 1e6)
    assert watch.end([]) == (None, [])
    other = sampler()
    other.begin()
    assert other.end([]) == (None, []), "whoever comes later does not wait again"


def test_a_sampler_leaves_no_thread_behind(driver: FakeDriver, sampler: MakeSampler) -> None:
    driver.say(gpu(A))
    for _ in range(3):
        watch = sampler()
        watch.baseline()
        watch.begin()
        watch.end([])
    wait_for(lambda: not any(thread.name == "telemetry" and thread.is_alive() for thread in mine()))


def mine() -> list[threading.Thread]:
    """Threads that could have ended: not the one that hangs in another test."""
    return [thread for thread in threading.enumerate() if thread not in STUCK]


def test_windows_that_overlap_share_what_is_known(driver: FakeDriver, sampler: MakeSampler) -> None:
    driver.say(gpu(A), f"compute {A} 2999999")
    crew = sampler(host_pids=False)
    crew.baseline()
    driver.say(gpu(A), f"compute {A} 2999999", f"compute {A} 3000001")
    first, second = crew.another(), crew.another()
    first.begin()
    second.begin()
    for watch in (first, second):
        record, reasons = watch.end([17])
        assert record is not None
        assert (record["foreign_pids"], reasons) == ([2999999], ["contended"])


def test_cpu_slots_and_hosts_without_a_driver_have_none() -> None:
    nothing = {"FARBENCH_NVML_LIBRARY": "", "PATH": "/nonexistent"}
    for device in (CPU, DEVICE_A):
        watch = Sampler([device], nothing)
        watch.baseline()
        watch.begin()
        assert watch.end([os.getpid()]) == (None, [])
        assert watch.problem is None


SMI = f"""
case "$1" in
*clocks_event_reasons*) echo 'Field "clocks_event_reasons.active" is not a valid field to query.'; exit 2;;
--query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_throttle_reasons.active)
    [ "$3" = --id={A} ] && echo '1980, 3201, 612.35, [N/A], 0x0000000000000048';;
--query-compute-apps=pid) [ "$3" = --id={A} ] && printf '41\\n4242\\n';;
*) echo "unexpected $*"; exit 2;;
esac
"""


def test_nvidia_smi_gives_a_look_before_and_after(smi_host: SmiHost) -> None:
    watch = Sampler([DEVICE_A], smi_host(SMI), host_pids=True)
    watch.baseline()
    watch.begin()
    record, reasons = watch.end([41])
    assert record == {
        "sm_clock_mhz": 1980,
        "mem_clock_mhz": 3201,
        "power_w": 612.4,
        "temperature_c": None,
        "throttle_reasons": ["hw_slowdown", "hw_thermal_slowdown"],
        "foreign_pids": [4242],
    }
    assert reasons == ["throttled", "contended"]


def test_a_failing_nvidia_smi_leaves_the_fields_empty(smi_host: SmiHost) -> None:
    watch = Sampler([DEVICE_A], smi_host("exit 9"), host_pids=True)
    watch.begin()
    record, reasons = watch.end([])
    assert record is not None
    assert record["sm_clock_mhz"] is None
    assert reasons == []


def test_whether_pids_are_the_hosts_is_known_by_the_namespace() -> None:
    namespace = Path("/proc/self/ns/pid")
    assert telemetry.in_host_pid_namespace() == (os.readlink(namespace) == "pid:[4026531836]")
