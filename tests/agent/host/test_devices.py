from __future__ import annotations

import json
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.agent import devices, procs
from orchestrator.agent.devices import DeviceError
from tests.support.waiting import wait_for

from .conftest import FakeDriver, gpu

SmiHost = Callable[[str], dict[str, str]]

A, B = "GPU-aaaa1111-0000-0000-0000-000000000000", "GPU-aabb2222-0000-0000-0000-000000000000"
MIG_1, MIG_2 = "MIG-11111111-0000-0000-0000-000000000000", "MIG-22222222-0000-0000-0000-000000000000"
NO_DRIVER = {"FARBENCH_NVML_LIBRARY": "", "PATH": "/nonexistent"}
BUS_1, BUS_2 = "00000000:01:00.0", "00000000:41:00.0"

TWO_H200 = [gpu(A, bus=BUS_1), gpu(B, bus=BUS_2)]
MIXED = [gpu(A, "NVIDIA GeForce GT 710", BUS_1, capability="3|5"), gpu(B, "NVIDIA H200", BUS_2)]
WITH_MIG = [
    gpu(A, bus=BUS_1),
    gpu(B, bus=BUS_2, mig=True),
    f"slice {B}|{MIG_1}|NVIDIA H200 MIG 1g.18gb",
    f"slice {B}|{MIG_2}|NVIDIA H200 MIG 2g.35gb",
]

SMI_TWO = f"""
case "$1" in
--query-gpu=index,uuid,pci.bus_id,mig.mode.current,compute_cap,name)
    echo '1, {B}, {BUS_2}, [N/A], 12.0, NVIDIA RTX PRO 6000, Server'
    echo '0, {A}, {BUS_1}, Disabled, 9.0, NVIDIA H200';;
*) echo "unexpected $*"; exit 2;;
esac
"""
SMI_OLD = f"""
case "$1" in
*compute_cap*) echo 'Field "compute_cap" is not a valid field to query.'; exit 2;;
*) echo '0, {A}, {BUS_1}, [N/A], Tesla V100-SXM2-16GB';;
esac
"""
SMI_MIG = f"""
case "$1" in
-L) echo 'GPU 0: NVIDIA H200 (UUID: {A})'
    echo '  MIG 1g.18gb     Device  0: (UUID: {MIG_1})'
    echo '  MIG 2g.35gb     Device  1: (UUID: {MIG_2})';;
*) echo '0, {A}, {BUS_1}, Enabled, 9.0, NVIDIA H200';;
esac
"""
SMI_FAILED = """
echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure it is running."
exit 9
"""


def uuids(found: list[devices.Device]) -> list[str]:
    return [device["uuid"] for device in found]


def test_gpus_come_from_the_management_library(driver: FakeDriver) -> None:
    driver.say(*TWO_H200)
    found, problems = devices.discover("all", driver.environ)
    assert found == [
        {"uuid": A, "index": 0, "name": "NVIDIA H200", "compute_capability": "9.0", "kind": "gpu"},
        {"uuid": B, "index": 1, "name": "NVIDIA H200", "compute_capability": "9.0", "kind": "gpu"},
    ]
    assert problems == []


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ([1], [B]),
        ([1, 0], [B, A]),
        ([A], [A]),
        (["GPU-aabb"], [B]),
        (["gpu-AAAA"], [A]),
        ([0, "GPU-aabb"], [A, B]),
    ],
)
def test_devices_are_picked_by_index_and_uuid(
    driver: FakeDriver, spec: list[int | str], expected: list[str]
) -> None:
    driver.say(*TWO_H200)
    found, _ = devices.discover(spec, driver.environ)
    assert uuids(found) == expected


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ([7], "devices 7 names no device of this host: it has 0: NVIDIA H200"),
        (["GPU-cccc"], "devices 'GPU-cccc' names no device"),
        (["GPU-aa"], "fits more than one device"),
        (["H200"], "names no device"),
        ([], "empty list"),
        ([0, A], "names a device twice"),
        ([True], "neither an index nor a UUID"),
        ("gpu", 'it may be "all"'),
    ],
)
def test_what_names_no_single_device_is_refused(driver: FakeDriver, spec: object, message: str) -> None:
    driver.say(*TWO_H200)
    with pytest.raises(DeviceError, match=message):
        devices.discover(spec, driver.environ)  # type: ignore[arg-type]


def test_every_mig_slice_is_a_device_of_its_own(driver: FakeDriver) -> None:
    driver.say(*WITH_MIG)
    found, problems = devices.discover("all", driver.environ)
    assert [(device["uuid"], device["index"], device["name"]) for device in found] == [
        (A, 0, "NVIDIA H200"),
        (MIG_1, 1, "NVIDIA H200 MIG 1g.18gb"),
        (MIG_2, 1, "NVIDIA H200 MIG 2g.35gb"),
    ]
    assert problems == []
    assert uuids(devices.discover([1], driver.environ)[0]) == [MIG_1, MIG_2]
    assert uuids(devices.discover(["MIG-2"], driver.environ)[0]) == [MIG_2]


def test_mig_mode_without_slices_is_told(driver: FakeDriver) -> None:
    driver.say(gpu(A), gpu(B, mig=True))
    found, problems = devices.discover("all", driver.environ)
    assert uuids(found) == [A]
    assert problems == [f"GPU 1 ({B}) is in MIG mode and has no slices"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1", [B]),
        ("1,0", [B, A]),
        ("0,-1,1", [A]),
        ("GPU-aabb", [B]),
        (f" {A} , {B} ", [A, B]),
    ],
)
def test_a_preset_mask_is_respected(driver: FakeDriver, value: str, expected: list[str]) -> None:
    driver.say(*TWO_H200)
    found, problems = devices.discover("all", {**driver.environ, "CUDA_VISIBLE_DEVICES": value})
    assert uuids(found) == expected
    assert problems == []


def test_a_preset_mig_mask_is_respected(driver: FakeDriver) -> None:
    driver.say(*WITH_MIG)
    found, _ = devices.discover("all", {**driver.environ, "CUDA_VISIBLE_DEVICES": MIG_2})
    assert uuids(found) == [MIG_2]


@pytest.mark.parametrize("value", ["7", "GPU-cccc", "0,7", "nonsense"])
def test_a_mask_that_names_no_device_is_refused(driver: FakeDriver, value: str) -> None:
    driver.say(*TWO_H200)
    with pytest.raises(
        DeviceError, match=f"CUDA_VISIBLE_DEVICES={value} names no device of this host: it has 0: NVIDIA"
    ):
        devices.discover("all", {**driver.environ, "CUDA_VISIBLE_DEVICES": value})


@pytest.mark.parametrize("value", ["", "-1", "NoDevFiles"])
def test_an_empty_mask_never_means_cpu(driver: FakeDriver, value: str) -> None:
    driver.say(*TWO_H200)
    environ = {**driver.environ, "CUDA_VISIBLE_DEVICES": value}
    with pytest.raises(DeviceError, match="hides every GPU"):
        devices.discover("all", environ)
    assert uuids(devices.discover({"cpu": 1}, environ)[0]) == ["cpu-0"]


def test_a_device_that_the_mask_hides_is_refused(driver: FakeDriver) -> None:
    driver.say(*TWO_H200)
    environ = {**driver.environ, "CUDA_VISIBLE_DEVICES": "0"}
    assert uuids(devices.discover([0], environ)[0]) == [A]
    with pytest.raises(DeviceError, match=f"hides 1: NVIDIA H200 \\({B}\\)"):
        devices.discover([1], environ)


def test_indices_of_a_mask_are_doubtful_on_mixed_cards(driver: FakeDriver) -> None:
    driver.say(*MIXED)
    found, problems = devices.discover("all", {**driver.environ, "CUDA_VISIBLE_DEVICES": "0"})
    assert found[0]["name"] == "NVIDIA GeForce GT 710"
    assert "PCI order" in problems[0]
    for clear in (
        {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        {"CUDA_VISIBLE_DEVICES": A},
    ):
        assert devices.discover("all", {**driver.environ, **clear})[1] == []


def test_a_host_without_a_driver_has_one_cpu_slot() -> None:
    found, problems = devices.discover("all", NO_DRIVER)
    assert problems == []
    assert len(found) == 1
    assert {key: found[0][key] for key in ("uuid", "index", "compute_capability", "kind")} == {
        "uuid": "cpu-0",
        "index": 0,
        "compute_capability": None,
        "kind": "cpu",
    }
    models = [
        line.split(":", 1)[1]
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    assert found[0]["name"] == (" ".join(models[0].split()) if models else found[0]["name"])
    assert found[0]["name"]


def test_cpu_slots_are_counted_and_need_no_driver(driver: FakeDriver) -> None:
    driver.say("hang")
    found, problems = devices.discover({"cpu": 4}, driver.environ, timeout_s=60)
    assert uuids(found) == ["cpu-0", "cpu-1", "cpu-2", "cpu-3"]
    assert problems == []


@pytest.mark.parametrize(
    "spec", [{"cpu": 0}, {"cpu": "2"}, {"cpu": True}, {"gpu": 1}, {"cpu": 1, "gpu": 1}, {}]
)
def test_wrong_cpu_slots_are_refused(spec: dict[str, object]) -> None:
    with pytest.raises(DeviceError, match="CPU slots are asked for"):
        devices.discover(spec, NO_DRIVER)


@pytest.mark.parametrize("spec", [[0], ["GPU-aaaa"]])
def test_a_gpu_asked_for_on_a_host_without_one_is_refused(spec: list[int | str]) -> None:
    with pytest.raises(DeviceError, match="no NVIDIA driver was found"):
        devices.discover(spec, NO_DRIVER)
    with pytest.raises(DeviceError, match="CUDA_VISIBLE_DEVICES=0 names no device"):
        devices.discover("all", {**NO_DRIVER, "CUDA_VISIBLE_DEVICES": "0"})
    assert uuids(devices.discover("all", {**NO_DRIVER, "CUDA_VISIBLE_DEVICES": ""})[0]) == ["cpu-0"]


def test_a_driver_that_is_not_loaded_is_a_problem_and_not_a_cpu(driver: FakeDriver) -> None:
    driver.say("init 9")
    found, problems = devices.discover("all", driver.environ)
    assert found == []
    assert problems == ["NVIDIA driver: nvmlInit_v2: Driver Not Loaded (9)"]
    with pytest.raises(DeviceError, match="Driver Not Loaded"):
        devices.discover([0], driver.environ)


def test_a_gpu_that_fell_off_the_bus_is_told_and_the_others_used(driver: FakeDriver) -> None:
    driver.say(*TWO_H200, f"lost {A}")
    found, problems = devices.discover("all", driver.environ)
    assert uuids(found) == [B]
    assert problems == ["GPU 0 does not answer: nvmlDeviceGetHandleByIndex_v2: GPU is lost (15)"]
    assert uuids(devices.discover([1], driver.environ)[0]) == [B]
    with pytest.raises(DeviceError, match="names no device"):
        devices.discover([0], driver.environ)


def test_a_hanging_driver_costs_its_bound(driver: FakeDriver) -> None:
    driver.say("hang")
    found, problems = devices.discover("all", driver.environ, timeout_s=0.5)
    assert found == []
    assert problems == ["NVIDIA driver: it did not answer within 0.5 s: the driver hangs"]


def test_nvidia_smi_is_asked_where_the_library_is_missing(smi_host: SmiHost) -> None:
    found, problems = devices.discover("all", smi_host(SMI_TWO))
    assert found == [
        {"uuid": A, "index": 0, "name": "NVIDIA H200", "compute_capability": "9.0", "kind": "gpu"},
        {
            "uuid": B,
            "index": 1,
            "name": "NVIDIA RTX PRO 6000, Server",
            "compute_capability": "12.0",
            "kind": "gpu",
        },
    ]
    assert problems == []


def test_an_old_nvidia_smi_knows_no_compute_capability(smi_host: SmiHost) -> None:
    found, _ = devices.discover("all", smi_host(SMI_OLD))
    assert [(device["name"], device["compute_capability"]) for device in found] == [
        ("Tesla V100-SXM2-16GB", None)
    ]


def test_nvidia_smi_lists_mig_slices(smi_host: SmiHost) -> None:
    found, _ = devices.discover("all", smi_host(SMI_MIG))
    assert [(device["uuid"], device["name"]) for device in found] == [
        (MIG_1, "NVIDIA H200 MIG 1g.18gb"),
        (MIG_2, "NVIDIA H200 MIG 2g.35gb"),
    ]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (SMI_FAILED, "nvidia-smi failed \\(exit 9\\): NVIDIA-SMI has failed because it couldn't communicate"),
        ("exit 1", "nvidia-smi failed \\(exit 1\\): it said nothing"),
        ("echo 'Tue Nov 29: all is well'", "is not what was asked for: 'Tue Nov 29: all is well'"),
        ("echo 'a, b, c, d, e, f'", "is no list of GPUs"),
        ("printf '\\377\\000\\n'", "is not what was asked for"),
        ("echo 'No devices were found'", "knows no GPU"),
    ],
)
def test_a_broken_nvidia_smi_is_told_and_no_cpu(smi_host: SmiHost, body: str, message: str) -> None:
    environ = smi_host(body)
    found, problems = devices.discover("all", environ)
    assert found == []
    assert len(problems) == 1
    with pytest.raises(DeviceError, match=message):
        devices.discover([0], environ)


def test_a_hanging_nvidia_smi_is_killed_with_its_children(
    smi_host: SmiHost, nonce: str, tmp_path: Path
) -> None:
    environ = {**smi_host("/bin/sleep 600 &\n/bin/sleep 600"), "FARBENCH_NONCE": nonce}
    started = time.monotonic()
    found, problems = devices.discover("all", environ, timeout_s=1.5)
    assert found == []
    assert "did not answer within" in problems[0]
    assert time.monotonic() - started < 60
    wait_for(lambda: not procs.find_marked(nonce))


def test_a_mask_pins_by_uuid(driver: FakeDriver) -> None:
    driver.say(*WITH_MIG)
    found, _ = devices.discover("all", driver.environ)
    assert devices.mask(found[:2]) == {
        "CUDA_VISIBLE_DEVICES": f"{A},{MIG_1}",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    environ = {"HOME": "/h", "CUDA_VISIBLE_DEVICES": "5", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    assert devices.mask(found[:1], environ) == {
        "HOME": "/h",
        "CUDA_VISIBLE_DEVICES": A,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    cpu, _ = devices.discover({"cpu": 1}, {})
    assert devices.mask(cpu) == {"CUDA_VISIBLE_DEVICES": ""}


def test_the_devices_travel_as_json(driver: FakeDriver) -> None:
    driver.say(*WITH_MIG)
    found, _ = devices.discover("all", driver.environ)
    assert json.loads(json.dumps(found)) == found


def test_it_works_from_the_zip_that_hosts_get(driver: FakeDriver, tmp_path: Path) -> None:
    driver.say(*TWO_H200)
    bundle = tmp_path / ("0" * 64)
    folder = Path(devices.__file__).parent
    with zipfile.ZipFile(bundle, "w") as archive:
        for source in folder.glob("*.py"):
            archive.write(source, f"farbench_agent/{source.name}")
    code = "import json, os; from farbench_agent import devices; print(json.dumps(devices.discover('all', os.environ)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**driver.environ, "PYTHONPATH": str(bundle)},
        stdout=subprocess.PIPE,
        check=True,
    )
    found, problems = json.loads(done.stdout)
    assert uuids(found) == [A, B]
    assert problems == []
