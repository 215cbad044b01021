"""Judging the software that payloads run with: interpreter, torch, flashinfer, sgl_kernel, compiler, and their fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import fit
from .check import Check, failed, ok, skipped, warning

DISTRIBUTIONS = (
    "torch", "triton", "numpy", "flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache", "sgl-kernel",
    "sglang-kernel", "cuda-python", "cupti-python", "nvidia-cudnn-frontend", "nvidia-cutlass-dsl",
)  # fmt: skip
NAMES = ("payload python", "torch", "flashinfer", "sgl_kernel", "cuda compiler")


def judge_software(facts: Mapping[str, Any], gpus: Sequence[Mapping[str, Any]], host: str) -> list[Check]:
    """All five. `gpus` are the health facts of the GPUs, empty on a host without."""
    interpreter = facts.get("interpreter")
    if not interpreter:
        problem = str(facts.get("problem"))
        fix = f"name an interpreter with `python:` in hosts.yaml, or make one: farbench setup {host} --profile …"
        if problem.startswith("`activate`"):
            fix = "fix `activate:` in hosts.yaml: /bin/sh runs it, which knows `.` but not `source`"
        return [
            failed("payload python", problem, fix, blocking=True),
            *(skipped(name, "no payload interpreter") for name in NAMES[1:]),
        ]
    versions: Mapping[str, str] = interpreter["distributions"]
    found = f"{interpreter['version']} ({interpreter['path']})"
    made = interpreter.get("setup") or {}
    if made.get("name"):
        found += f", environment {made['name']} made by farbench setup from {made.get('profile')}"
    torch, cuda = versions.get("torch"), interpreter.get("torch_cuda")
    return [
        ok("payload python", found),
        _torch(torch, cuda, gpus, bool(facts.get("cuda_compat")), host),
        _flashinfer(versions, bool(gpus), host),
        _sgl_kernel(versions, torch, cuda, bool(gpus), host),
        _compiler(facts, versions, cuda, gpus),
    ]


def _torch(
    torch: str | None, cuda: str | None, gpus: Sequence[Mapping[str, Any]], compat: bool, host: str
) -> Check:
    if torch is None:
        if not gpus:
            return skipped("torch", "not installed, and no GPU needs it")
        return warning(
            "torch",
            "not installed: GPU payloads cannot run",
            f"farbench setup {host} --profile fp4-sgl (or gpu-cu130)",
        )
    text = f"{torch} (CUDA {cuda})" if cuda else f"{torch} (without CUDA)"
    if not gpus:
        return ok("torch", text)
    if cuda is None:
        return failed("torch", f"{text} on a host with GPUs", "install a CUDA build of torch")
    for gpu in gpus:
        needed = fit.driver_too_old(str(gpu["driver"] or "999"), cuda)
        if needed is not None:
            told = f"{text} needs driver {needed} or later, and {gpu['driver']} is loaded"
            fix = f"update the driver, or install a torch for CUDA {fit.major(cuda) - 1}"
            fix += f" (farbench setup {host} --profile fp4-sgl)" if fit.major(cuda) == 13 else ""
            if compat:
                return warning(
                    "torch", f"{told}; the host has CUDA's forward compatibility libraries, which may do", fix
                )
            return failed("torch", told, fix)
        needed = fit.cuda_too_old(cuda, str(gpu["compute_capability"]))
        if needed is not None:
            return failed(
                "torch",
                f"{text} has no kernels for {gpu['name']} (compute capability {gpu['compute_capability']} needs CUDA {needed})",
                f"install a newer torch: farbench setup {host} --profile gpu-cu130",
            )
    return ok("torch", text)


def _flashinfer(versions: Mapping[str, str], gpus: bool, host: str) -> Check:
    main = versions.get("flashinfer-python")
    if main is None:
        return skipped("flashinfer", "not installed")
    others = {
        name: versions[name] for name in ("flashinfer-cubin", "flashinfer-jit-cache") if name in versions
    }
    wrong = {name: version for name, version in others.items() if fit.parsed(version) != fit.parsed(main)}
    if wrong:
        told = ", ".join(f"{name} {version}" for name, version in wrong.items())
        return failed(
            "flashinfer",
            f"flashinfer-python {main} does not fit {told}: it refuses to be imported with another version of them",
            f"install the same version of each ({main})",
        )
    if versions.get("torch") is None:
        return failed(
            "flashinfer", f"{main}, without torch, which it needs", f"farbench setup {host} --profile …"
        )
    return ok("flashinfer", ", ".join([main, *(f"{name} {version}" for name, version in others.items())]))


def _sgl_kernel(
    versions: Mapping[str, str], torch: str | None, cuda: str | None, gpus: bool, host: str
) -> Check:
    here = {name: versions[name] for name in ("sgl-kernel", "sglang-kernel") if name in versions}
    if not here:
        return skipped("sgl_kernel", "not installed")
    if len(here) > 1:
        told = " and ".join(f"{name} {version}" for name, version in here.items())
        return failed(
            "sgl_kernel",
            f"{told} are both installed: they overwrite each other's files",
            "uninstall both, then install one",
        )
    ((name, version),) = here.items()
    why = fit.misfit(name, version, torch, cuda)
    if why is not None:
        fits = fit.matching_torch(name, version)
        again = f"farbench setup {host} --profile fp4-sgl installs a pair that fits"
        return failed("sgl_kernel", why, f"install torch {fits}, or: {again}" if fits else again)
    if fit.build_of(name, version) is None:
        return warning(
            "sgl_kernel",
            f"{name} {version}: it is not known which torch it is built for",
            "try it: import sgl_kernel",
        )
    fp4 = (
        ""
        if fit.has_fp4(name, version)
        else f"; no FP4 GEMM (last in sgl-kernel {fit.LAST_WITH_FP4['sgl-kernel']})"
    )
    return ok("sgl_kernel", f"{name} {version}, built for torch {fit.matching_torch(name, version)}{fp4}")


def _compiler(
    facts: Mapping[str, Any], versions: Mapping[str, str], cuda: str | None, gpus: Sequence[Mapping[str, Any]]
) -> Check:
    nvcc = facts.get("nvcc")
    if not gpus:
        return skipped("cuda compiler", "no GPU")
    needs_it = "flashinfer-python" in versions and "flashinfer-jit-cache" not in versions
    if nvcc is None:
        if not needs_it:
            return skipped("cuda compiler", "no nvcc; nothing that is installed compiles with it")
        return warning(
            "cuda compiler",
            "no nvcc, with which flashinfer compiles its kernels when they are first used",
            "install the CUDA toolkit, and set CUDA_HOME in the host's `env:` if it is not in /usr/local/cuda",
        )
    version = nvcc.get("version")
    text = f"nvcc {version or 'of unknown version'} ({nvcc['path']})"
    if version is None:
        return warning("cuda compiler", text, "does `nvcc --version` work on the host?")
    if cuda is not None and fit.major(version) != fit.major(cuda):
        return warning(
            "cuda compiler",
            f"{text}, and torch is built for CUDA {cuda}: what they build does not go together",
            f"set CUDA_HOME in the host's `env:` to a CUDA {fit.major(cuda)} toolkit",
        )
    for gpu in gpus:
        needed = fit.cuda_too_old(version, str(gpu["compute_capability"]))
        if needed is not None:
            return warning(
                "cuda compiler",
                f"{text} cannot compile for {gpu['name']} (compute capability {gpu['compute_capability']} needs {needed})",
                f"install CUDA toolkit {needed} or later, and set CUDA_HOME in the host's `env:`",
            )
    if facts.get("cxx") is None:
        return warning("cuda compiler", f"{text}, but no C++ compiler beside it", "install g++ on the host")
    return ok("cuda compiler", text)
