"""The folder of a measurement on GPUs, and the judgement of two numbers, without a host."""

from __future__ import annotations

import json
import random
import shlex
from pathlib import Path
from typing import Any

import pytest

from orchestrator.archive import Archive
from orchestrator.archive.files import write_whole
from orchestrator.errors import ArchiveError, FileError
from orchestrator.model import Measurement
from orchestrator.repro import command_line, files_of, find, judge
from orchestrator.run import launchfile
from tests.pages.made_runs import MODEL, RUN_ID, devices, measurement

CASE = {"id": "c" * 16, "label": "m=64", "payload": "gemm_fp4", "params": {"m": 64, "n": 2048, "k": 6144}}
HARNESS = b"from harness import main\nmain()\n"


def gpu_run(folder: Path, *, job: dict[str, Any] | None = None, scripts: dict[str, bytes] | None = None, launch: bool = True) -> Archive:  # fmt: skip
    """An open run of one measurement on the second GPU of a host."""
    archive = Archive(folder)
    record = measurement("blackwell", devices("blackwell", 2)[1], CASE, "sgl_kernel", 12.5)
    hosts = {"blackwell": {"state": "ok", "devices": devices("blackwell", 2)}}
    document = {
        "sweep": {"name": "s", "source": ""},
        "plan": {"cases": [CASE], "backends": ["sgl_kernel"]},
        "hosts": hosts,
        "environments": {
            "e1": {"packages": {"torch": "2.9.0", "x\n-r evil": "1"}, "cuda": {"driver": "570.1"}}
        },
    }
    run = archive.create(RUN_ID, document, scripts or {"gemm_fp4.py": HARNESS, "harness/__init__.py": b""})
    if launch:
        jobs = {
            "python": "~/ml env/bin/python", "activate": ". '/opt/my env.sh'", "env": {"CUDA_HOME": "/usr/local/cuda 13"},
            "devices": "all", "payloads": {"gemm_fp4": {"kind": "template", "script": "scripts/gemm_fp4.py"}}, **(job or {}),
        }  # fmt: skip
        spec = {"name": "blackwell", "address": "gpu1", "env": {"HF_TOKEN": {"from_env": "HF_TOKEN"}}}
        written = {
            "schema_version": 1, "run_id": RUN_ID, "hosts": {"blackwell": spec}, "jobs": {"blackwell": jobs},
            "items": {CASE["id"]: {"case_id": CASE["id"], "backends": ["sgl_kernel"], "timeout_s": 60}},
            "hands": None, "lost_after_s": 300,
        }  # fmt: skip
        write_whole(run.folder.path / launchfile.NAME, [json.dumps(written).encode()])
    run.commit([Measurement.model_validate(record)], "finished", ended_at="2025-01-02T03:05:05Z")
    return archive


def test_the_command_names_the_gpu_by_uuid_and_quotes_everything(tmp_path: Path) -> None:
    recipe = find(gpu_run(tmp_path), "latest", "cccc")
    words = shlex.split(command_line(recipe))
    assert words == [
        "/bin/sh", "-c", 'eval "$1"; shift; exec "$@"', "sh", ". '/opt/my env.sh'",
        "env", "CUDA_HOME=/usr/local/cuda 13", "CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=GPU-blackwell-1",
        "~/ml env/bin/python", "gemm_fp4.py", "--case", "c" * 16, "--backend", "sgl_kernel",
    ]  # fmt: skip
    assert " ~/'ml env/bin/python' " in command_line(recipe)  # the home is the host's: not quoted


def test_the_folder_names_device_and_clocks(tmp_path: Path) -> None:
    files = files_of(find(gpu_run(tmp_path), "latest", "m=64"))
    readme = files["README.txt"].decode()
    for told in (
        MODEL,
        "GPU-blackwell-1",
        "SM clock:             2410 MHz",
        "12.50 µs",
        "driver:               570.1",
        "HF_TOKEN",
    ):
        assert told in readme
    assert "nvidia-smi -i GPU-blackwell-1 --lock-gpu-clocks=2410,2410" in readme
    assert files["requirements.txt"].decode().splitlines()[1:] == ["torch==2.9.0"]
    assert files["gemm_fp4.py"] == HARNESS


def test_a_program_that_brings_a_readme_keeps_it(tmp_path: Path) -> None:
    config = {
        "kind": "script",
        "files": {"README.txt": "scripts/b/README.txt", "b": "scripts/b/b"},
        "python": False,
    }
    archive = gpu_run(
        tmp_path,
        job={"payloads": {"gemm_fp4": config}},
        scripts={"b/README.txt": b"theirs", "b/b": b"#!/bin/sh\n"},
    )
    path = archive.find("latest").path / launchfile.NAME
    document = json.loads(path.read_text())
    document["items"]["c" * 16]["commands"] = {"sgl_kernel": ["b", "--m", "6 4"]}
    path.write_text(json.dumps(document))
    recipe = find(archive, "latest", "c")
    assert files_of(recipe)["README.txt"] == b"theirs"
    assert b"without farbench" in files_of(recipe)[".farbench/README.txt"]
    assert command_line(recipe).endswith(" ./b --m '6 4'")


def test_a_template_with_a_main_of_its_own_gets_no_options_of_ours(tmp_path: Path) -> None:
    archive = gpu_run(tmp_path, scripts={"gemm_fp4.py": b"print('{}')\n"})
    assert find(archive, "latest", "c").argv == ["gemm_fp4.py"]


def test_files_outside_the_run_are_never_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("no")
    job = {"payloads": {"gemm_fp4": {"kind": "template", "script": "scripts/../../../../secret"}}}
    with pytest.raises(ArchiveError, match="no file of its scripts"):
        find(gpu_run(tmp_path / "archive", job=job), "latest", "c")
    config = {"kind": "script", "files": {"../b": "scripts/gemm_fp4.py"}, "python": True}
    archive = gpu_run(tmp_path / "archive2", job={"payloads": {"gemm_fp4": config}})
    path = archive.find("latest").path / launchfile.NAME
    document = json.loads(path.read_text())
    document["items"]["c" * 16]["commands"] = {"sgl_kernel": ["b"]}
    path.write_text(json.dumps(document))
    with pytest.raises(FileError, match="outside the folder"):
        files_of(find(archive, "latest", "c"))


def test_a_run_that_cannot_be_repeated_says_so(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="cannot be repeated"):
        find(gpu_run(tmp_path, launch=False), "latest", "c")


def timed(us: float, **changes: Any) -> Measurement:
    record = measurement("h", devices("h", 1)[0], CASE, "torch", us)
    noise = random.Random(3)
    record["samples_us"] = [us * noise.uniform(0.998, 1.002) for _ in range(60)]
    return Measurement.model_validate({**record, **changes})


GONE = {"status": "crashed", "verdict": None, "timing": None, "reason": "signal SIGSEGV"}


@pytest.mark.parametrize(
    ("before", "now", "came_back", "said"),
    [
        (timed(10.0), timed(10.03), True, "10.00 µs then, 10.03 µs now (+0.30%)"),
        (timed(10.0), timed(14.0), False, "(+40.00%)"),
        (timed(10.0), timed(6.0), False, "(-40.00%)"),
        (timed(10.0), timed(10.0, **GONE), False, "it was ok, and is now crashed: signal SIGSEGV"),
        (timed(10.0, **GONE), timed(10.0, **GONE), True, "it was crashed, and is again"),
        (timed(10.0, **GONE), timed(10.0), False, "it was crashed, and is now ok"),
        (timed(10.0), timed(10.0, verdict="invalid", reasons=["throttled"]), None, "now: invalid: throttled"),
        (timed(10.0), timed(10.0, timing={"timer": "events", "cache": "cold", "median_us": 10.0}), None, "not the same thing"),
    ],
)  # fmt: skip
def test_a_number_comes_back_or_not(
    before: Measurement, now: Measurement, came_back: bool | None, said: str
) -> None:
    judged = judge(before, now)
    assert judged.came_back is came_back
    assert said in judged.text
