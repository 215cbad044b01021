"""Verdicts on facts that no host of the tests can show: every row of the tables."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.doctor import cheap, fit
from orchestrator.doctor.host import judge_tmp, judge_workdir
from orchestrator.doctor.libraries import judge_software
from orchestrator.launch.messages import Hello

GIB = 2**30


def software(versions: dict[str, str], torch_cuda: str | None = "12.8", **more: Any) -> dict[str, Any]:
    interpreter = {
        "version": "3.12.1",
        "path": "/p",
        "distributions": versions,
        "torch_cuda": torch_cuda,
        "setup": None,
    }
    return {
        "interpreter": interpreter,
        "nvcc": {"path": "/nvcc", "version": "12.9"},
        "cxx": "/c++",
        "cuda_compat": False,
        **more,
    }


def gpu(capability: str = "9.0", driver: str = "580.1") -> dict[str, Any]:
    return {"name": "NVIDIA X", "driver": driver, "compute_capability": capability}


def verdict(facts: dict[str, Any], name: str, *gpus: dict[str, Any]) -> tuple[str, str]:
    (check,) = [check for check in judge_software(facts, gpus or (gpu(),), "h") if check.name == name]
    return check.state.value, check.found


def test_a_torch_that_is_too_new_for_the_driver_names_a_whole_command() -> None:
    old = [gpu(driver="535.104.05")]
    (check, *_) = judge_software(software({"torch": "2.11.0"}, "13.0"), old, "h")[1:]
    assert check.fix == (
        "update the driver, or install a torch for CUDA 12 (farbench setup h --profile fp4-sgl)"
    )


def test_an_activation_that_fails_is_what_is_to_be_mended() -> None:
    facts = {"interpreter": None, "problem": "`activate`: /bin/sh ended with exit code 1"}
    assert (judge_software(facts, [], "h")[0].fix or "").startswith("fix `activate:`")


@pytest.mark.parametrize(
    ("name", "version", "torch", "cuda", "fits"),
    [
        ("sgl-kernel", "0.3.21", "2.9.1", "12.8", True),
        ("sgl-kernel", "0.3.21", "2.9.1+cu129", "12.9", True),
        ("sgl-kernel", "0.3.21", "2.9.1+cu130", "13.0", False),
        ("sgl-kernel", "0.3.21", "2.8.0", "12.8", False),
        ("sgl-kernel", "0.3.9.post2", "2.8.0", "12.8", True),
        ("sglang-kernel", "0.4.0", "2.9.1", "12.8", True),
        ("sglang-kernel", "0.4.2", "2.11.0", "13.0", True),
        ("sglang-kernel", "0.4.2.post2+cu129", "2.11.0+cu129", "12.9", True),
        ("sglang-kernel", "0.4.6.post1", "2.9.1", "12.8", False),
        ("sglang-kernel", "0.4.8", "2.13.0", "13.0", True),
        ("sglang-kernel", "0.4.10", "2.13.0", "13.0", False),
        ("sglang-kernel", "0.4.10", "2.14.1", "13.0", True),
        ("sgl-kernel", "0.3.21", None, None, False),
    ],
)
def test_which_kernels_fit_which_torch(
    name: str, version: str, torch: str | None, cuda: str | None, fits: bool
) -> None:
    assert (fit.misfit(name, version, torch, cuda) is None) is fits


def test_only_the_last_releases_with_it_have_the_fp4_gemm() -> None:
    assert fit.has_fp4("sgl-kernel", "0.3.21")
    assert fit.has_fp4("sglang-kernel", "0.4.0")
    assert not fit.has_fp4("sglang-kernel", "0.4.1.post1")
    facts = software({"torch": "2.11.0", "sglang-kernel": "0.4.2"}, "13.0")
    assert verdict(facts, "sgl_kernel") == (
        "ok", "sglang-kernel 0.4.2, built for torch 2.11; no FP4 GEMM (last in sgl-kernel 0.3.21)",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "name", "gpus", "state", "words"),
    [
        (software({"torch": "2.11.0"}, "13.0"), "torch", [gpu(driver="570.86")], "failed", "needs driver 580"),
        (software({"torch": "2.11.0"}, "13.0", cuda_compat=True), "torch", [gpu(driver="570.86")], "warning", "forward compat"),
        (software({"torch": "2.6.0"}, "12.4"), "torch", [gpu("12.0")], "failed", "no kernels for NVIDIA X"),
        (software({"torch": "2.9.1+cpu"}, None), "torch", [gpu()], "failed", "without CUDA"),
        (software({}), "torch", [gpu()], "warning", "not installed"),
        (software({"torch": "2.9.1", "flashinfer-python": "0.7.4", "flashinfer-cubin": "0.6.13"}), "flashinfer", [], "failed", "0.6.13"),
        (software({"torch": "2.9.1", "flashinfer-python": "0.7.4", "flashinfer-jit-cache": "0.7.4+cu129"}), "flashinfer", [], "ok", "0.7.4"),
        (software({"flashinfer-python": "0.7.4"}), "flashinfer", [], "failed", "without torch"),
        (software({"torch": "2.9.1", "sgl-kernel": "0.3.21", "sglang-kernel": "0.4.0"}), "sgl_kernel", [], "failed", "both installed"),
        (software({"torch": "2.9.1", "sgl-kernel": "0.5.9"}), "sgl_kernel", [], "warning", "not known which torch"),
        (software({"flashinfer-python": "0.7.4"}, nvcc=None), "cuda compiler", [], "warning", "no nvcc"),
        (software({"torch": "2.9.1"}, nvcc=None), "cuda compiler", [], "skipped", "nothing that is installed"),
        (software({"torch": "2.11.0"}, "13.0"), "cuda compiler", [], "warning", "does not go together"),
        (software({}, nvcc={"path": "/n", "version": "12.4"}), "cuda compiler", [gpu("12.0")], "warning", "needs 12.8"),
        (software({}, cxx=None), "cuda compiler", [], "warning", "no C++ compiler"),
        (software({"torch": "x", "sgl-kernel": "0.3.21"}, "x"), "torch", [gpu()], "ok", "x (CUDA x)"),
        (software({"torch": "2.9.1", "sgl-kernel": "0.3.21"}, "."), "sgl_kernel", [gpu()], "ok", "built for torch 2.9"),
        (software({"torch": "2.9.1"}), "torch", [gpu(driver="ERR!")], "ok", "2.9.1"),
        (software({"torch": "2.9.1"}, nvcc={"path": "/n", "version": "?"}), "cuda compiler", [gpu("12.0")], "warning", "nvcc ?"),
    ],
)  # fmt: skip
def test_software(facts: dict[str, Any], name: str, gpus: list[Any], state: str, words: str) -> None:
    found_state, found = verdict(facts, name, *gpus)
    assert (found_state, words in found) == (state, True), found


def folder(**changes: Any) -> dict[str, Any]:
    usual = {
        "path": "/w", "write_error": None, "exec_error": None, "mode": 0o700, "filesystem": "ext4", "free_bytes": 50 * GIB,
        "size_bytes": 100 * GIB, "free_inodes": 1000,
    }  # fmt: skip
    return {**usual, **changes}


@pytest.mark.parametrize(
    ("changes", "name", "state", "blocking", "words"),
    [
        ({}, "workdir", "ok", False, "/w (ext4)"),
        ({"write_error": "Read-only file system"}, "workdir", "failed", True, "Read-only file system"),
        ({"exec_error": "Permission denied"}, "workdir", "failed", False, "mounted noexec?"),
        ({"mode": 0o777}, "workdir", "warning", False, "can be changed by other users (mode 0777)"),
        ({"filesystem": "nfs4"}, "workdir", "warning", False, "network file system"),
        ({"free_bytes": 50 * 2**20}, "space", "failed", True, "50 MiB free"),
        ({"free_bytes": 1 * GIB}, "space", "warning", False, "only 1.0 GiB free"),
        ({"free_inodes": 0}, "space", "failed", True, "no inodes left"),
    ],
)
def test_work_folders(changes: dict[str, Any], name: str, state: str, blocking: bool, words: str) -> None:
    (check,) = [check for check in judge_workdir(folder(**changes)) if check.name == name]
    assert (check.state.value, check.blocking, words in check.found) == (state, blocking, True), check.found
    assert (check.fix is None) is (state == "ok")


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "ok"),
        ({"exec_error": "Permission denied"}, "warning"),
        ({"free_bytes": 2**20}, "warning"),
        ({"write_error": "x"}, "failed"),
    ],
)
def test_temporary_folders(changes: dict[str, Any], state: str) -> None:
    (check,) = judge_tmp(folder(**changes))
    assert check.state.value == state


@pytest.mark.parametrize(
    ("offset_s", "uncertainty_s", "state", "words"),
    [
        (0.0, 0.5, "ok", "+0.000 s"),
        (-5.0, 0.5, "warning", "5.0 s behind"),
        (3600.0, 0.5, "warning", "3600.0 s ahead of"),
        (2.4, 0.5, "ok", "+2.400 s"),
    ],
)
def test_the_clock(offset_s: float, uncertainty_s: float, state: str, words: str) -> None:
    clock = cheap.clock_check(offset_s, uncertainty_s)
    assert (clock.state.value, words in clock.found) == (state, True), clock.found


def test_what_the_greeting_tells_of_the_work_folder() -> None:
    hello = Hello([], "/w", "/usr/bin/python3", "3.12.1", 0, "gpu1", "boot", 1000.0, 900 * 2**20, True)
    assert not hello.roomy
    assert [(check.name, check.state.value, check.found) for check in cheap.room_checks(hello)] == [
        ("space", "warning", "only 900 MiB free"),
        ("workdir", "warning", "/w is mounted noexec: what payloads compile there cannot be loaded"),
    ]
    assert cheap.python_check(hello).found == "3.12.1 (/usr/bin/python3)"
