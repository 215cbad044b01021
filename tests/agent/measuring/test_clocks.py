"""Clocks are changed only when asked, and given back whatever becomes of the agent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from core.conftest import Host

from orchestrator.agent.clocks import ClockLock
from tests.support.waiting import wait_for

from .conftest import Smi, says

GPU = {"uuid": "GPU-aaaa", "index": 0, "name": "NVIDIA H200", "compute_capability": "9.0", "kind": "gpu"}
OTHER = {**GPU, "uuid": "GPU-bbbb", "index": 1}
CPU = {**GPU, "uuid": "cpu-0", "kind": "cpu"}

Processes = Callable[[str], list[int]]


@pytest.fixture
def gpus(telling: Host, smi: Smi) -> Host:
    """A host with two GPUs, whose only way to the driver is nvidia-smi."""
    telling.env.update(smi.environ)
    telling.job["devices"] = [0]
    return telling


def locking(case_id: str, wanted: bool | int, *words: str) -> dict[str, object]:
    case = says(case_id, a=list(words) or ["valid"])
    return {**case, "measure": {**case["measure"], "lock_clocks": wanted}}


def test_nobody_touches_clocks_unless_asked(gpus: Host, smi: Smi) -> None:
    record = gpus.run([says("c1", a=["valid"])])["c1/a"]
    assert record["device"]["uuid"] == "GPU-aaaa"
    assert smi.changes() == []
    assert "locked_clock_mhz" not in record["extra"]


def test_clocks_are_held_while_cases_ask_and_then_given_back(gpus: Host, smi: Smi) -> None:
    found = gpus.run([locking("c1", True), locking("c2", True), says("c3", a=["valid"]), locking("c4", 1410)])
    assert smi.changes() == [
        "-i GPU-aaaa --lock-gpu-clocks=1755,1755", "-i GPU-aaaa -rgc",
        "-i GPU-aaaa --lock-gpu-clocks=1410,1410", "-i GPU-aaaa -rgc",
    ]  # fmt: skip
    assert smi.locked() == {}
    clocks = {key: record["extra"].get("locked_clock_mhz") for key, record in found.items()}
    assert clocks == {"c1/a": 1755, "c2/a": 1755, "c3/a": None, "c4/a": 1410}


def test_a_killed_agent_leaves_no_clock_locked(gpus: Host, smi: Smi, processes: Processes) -> None:
    call = gpus.launch([locking("c1", True, "gate")])
    wait_for(lambda: gpus.trace("gates"))
    assert smi.locked() == {"GPU-aaaa": "1755,1755"}
    os.kill(gpus.agent_pid(), signal.SIGKILL)
    assert call.expect("end")["state"] == "dead"
    wait_for(lambda: smi.locked() == {})
    wait_for(lambda: not processes(str(smi.folder / "bin" / "nvidia-smi")))


@pytest.mark.parametrize("how", ["cancel", "stop"])
def test_an_agent_that_is_ended_gives_them_back(gpus: Host, smi: Smi, how: str) -> None:
    call = gpus.launch([locking("c1", True, "gate")])
    wait_for(lambda: gpus.trace("gates"))
    if how == "cancel":
        call.say(type="cancel")
    else:
        os.kill(gpus.agent_pid(), signal.SIGTERM)
    call.expect("end")
    wait_for(lambda: smi.locked() == {})


def test_who_may_not_lock_clocks_is_told_and_measures_all_the_same(gpus: Host, smi: Smi) -> None:
    smi.refuse("The current user does not have permission to change clocks for GPU 00000000:01:00.0.")
    call = gpus.launch([locking("c1", True), locking("c2", True)])
    assert call.expect("end")["state"] == "finished"
    (told,) = [event["message"] for event in call.events("problem") if "clocks" in event["message"]]
    assert told.startswith(
        "the clocks cannot be locked, and cases are measured as they are: The current user"
    )
    assert [m["status"] for m in gpus.measurements()] == ["ok", "ok"]
    assert all("locked_clock_mhz" not in m["extra"] for m in gpus.measurements())


def test_cpu_slots_have_no_clocks_to_lock(telling: Host) -> None:
    call = telling.launch([locking("c1", True)])
    assert call.expect("end")["state"] == "finished"
    assert any("it has no GPU" in event["message"] for event in call.events("problem"))


def test_a_gang_locks_all_its_gpus(smi: Smi) -> None:
    lock = ClockLock([GPU, OTHER], {**os.environ, **smi.environ})
    assert lock.hold(1500) is None
    assert smi.locked() == {"GPU-aaaa": "1500,1500", "GPU-bbbb": "1500,1500"}
    assert lock.hold(1500) is None
    assert len(smi.changes()) == 2, "what is held is not set again"
    assert lock.hold(False) is None
    assert smi.locked() == {}
    assert lock.locked_mhz is None


def test_without_a_default_clock_it_is_the_highest(smi: Smi) -> None:
    (smi.folder / "no-default").touch()
    lock = ClockLock([GPU], {**os.environ, **smi.environ})
    assert lock.hold(True) is None
    assert lock.locked_mhz == 1980
    assert lock.give_back() is None


def test_a_killed_guardian_is_done_without(smi: Smi, processes: Processes) -> None:
    lock = ClockLock([GPU], {**os.environ, **smi.environ})
    assert lock.hold(1500) is None
    (guardian,) = processes(str(smi.folder / "bin" / "nvidia-smi"))
    os.kill(guardian, signal.SIGKILL)
    assert lock.give_back() is None
    assert smi.locked() == {}


def test_a_guardian_that_is_asked_to_end_gives_back_first(smi: Smi, processes: Processes) -> None:
    lock = ClockLock([GPU], {**os.environ, **smi.environ})
    assert lock.hold(1500) is None
    (guardian,) = processes(str(smi.folder / "bin" / "nvidia-smi"))
    os.kill(guardian, signal.SIGTERM)
    wait_for(lambda: smi.locked() == {})
    assert lock.hold(1600) is None, "a new one takes its place"
    assert smi.locked() == {"GPU-aaaa": "1600,1600"}
    lock.give_back()


def test_what_cannot_be_locked_says_why(smi: Smi, tmp_path: Path) -> None:
    environ = {**os.environ, **smi.environ}
    assert ClockLock([CPU], environ).hold(True) == "it has no GPU"
    slice_of_one = {**GPU, "uuid": "MIG-1234"}
    assert ClockLock([slice_of_one], environ).hold(True) == "a MIG slice shares its GPU's clocks with others"
    nowhere = {**environ, "PATH": str(tmp_path)}
    assert ClockLock([GPU], nowhere).hold(True) == "nvidia-smi was not found"


def test_a_process_that_dies_while_it_holds_them_takes_nobody_along(smi: Smi) -> None:
    """Also when a child of the dying process lives on."""
    program = f"""
import os, subprocess, sys, time
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from orchestrator.agent.clocks import ClockLock
lock = ClockLock([{GPU!r}], dict(os.environ))
assert lock.hold(1500) is None
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **smi.environ},
        stdout=subprocess.PIPE,
        check=False,
    )
    child = int(done.stdout)
    try:
        assert done.returncode == -signal.SIGKILL
        wait_for(lambda: smi.locked() == {})
    finally:
        os.kill(child, signal.SIGKILL)
