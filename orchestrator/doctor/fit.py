"""Which builds of the kernel libraries fit which torch and CUDA, as a table.

Their binary interface follows torch's: a build for another torch installs without a word and fails at import with an
undefined symbol. Only sglang-kernel from 0.4.7 on declares the torch that it needs, so the rest is written down here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

Version = tuple[int, ...]


@dataclass(frozen=True)
class Build:
    """Releases `first` to `last` of a distribution, built for one minor version of torch and one major of CUDA."""

    distribution: str
    first: str
    last: str
    torch: str
    cuda: int


# From the packages' own metadata where they declare it, else from the versions that sglang pinned together.
BUILDS = (
    Build("sgl-kernel", "0.3.2", "0.3.16.post6", "2.8", 12),
    Build("sgl-kernel", "0.3.18", "0.3.21", "2.9", 12),
    Build("sglang-kernel", "0.4.0", "0.4.1", "2.9", 12),
    Build("sglang-kernel", "0.4.2", "0.4.6.post1", "2.11", 13),
    Build("sglang-kernel", "0.4.7", "0.4.8", "2.13", 13),
    Build("sglang-kernel", "0.4.9", "0.4.10", "2.14", 13),
)
LAST_WITH_FP4 = {"sgl-kernel": "0.3.21", "sglang-kernel": "0.4.0"}
"""The last releases that have `cutlass_scaled_fp4_mm`."""

OLDEST_DRIVER: Mapping[int, Version] = {11: (450, 80), 12: (525, 60), 13: (580,)}
"""The oldest driver for a major version of CUDA (NVIDIA, CUDA Compatibility, minor version compatibility)."""

OLDEST_CUDA: Mapping[str, Version] = {
    "8.9": (11, 8), "9.0": (11, 8), "10.0": (12, 8), "10.3": (12, 9), "12.0": (12, 8), "12.1": (12, 9),
}  # fmt: skip
"""The oldest CUDA whose compiler knows a compute capability (NVIDIA, CUDA release notes)."""


def parsed(version: str) -> Version:
    """The numbers of a version, without a local part: `2.9.1+cu128` is (2, 9, 1), `0.3.16.post6` is (0, 3, 16, 6)."""
    return tuple(int(number) for number in re.findall(r"\d+", version.split("+")[0]))


def major(version: str) -> int:
    """The first number of a version; 0 where there is none."""
    return (parsed(version) or (0,))[0]


def build_of(distribution: str, version: str) -> Build | None:
    """The row of a release, or None when it is in no row."""
    for build in BUILDS:
        if build.distribution == distribution and parsed(build.first) <= parsed(version) <= parsed(
            build.last
        ):
            return build
    return None


def misfit(distribution: str, version: str, torch: str | None, torch_cuda: str | None) -> str | None:
    """Why this release cannot be loaded with this torch; None when it can, or when nothing is known of it."""
    build = build_of(distribution, version)
    if torch is None:
        return f"{distribution} {version} needs torch, which is not installed"
    if build is None:
        return None
    if parsed(torch)[:2] != parsed(build.torch)[:2]:
        return (
            f"{distribution} {version} is built for torch {build.torch}, and torch {torch} is installed: their binary "
            "interfaces differ (it would fail with an undefined symbol)"
        )
    cuda = cuda_major(version) or build.cuda
    if torch_cuda is not None and parsed(torch_cuda)[:1] not in ((), (cuda,)):
        return f"{distribution} {version} is built for CUDA {cuda}, and torch {torch} for CUDA {torch_cuda}"
    return None


def matching_torch(distribution: str, version: str) -> str | None:
    """The minor version of torch that a release fits, where it is known."""
    build = build_of(distribution, version)
    return None if build is None else build.torch


def has_fp4(distribution: str, version: str) -> bool:
    """Whether this release has the FP4 GEMM."""
    return parsed(version) <= parsed(LAST_WITH_FP4[distribution])


def cuda_major(version: str) -> int | None:
    """The CUDA named by a local version such as `+cu129`."""
    match = re.search(r"\+cu(\d{2})", version)
    return int(match.group(1)) if match else None


def driver_too_old(driver: str, torch_cuda: str) -> str | None:
    """The driver that this CUDA needs, when the present one is older; else None."""
    needed = OLDEST_DRIVER.get(major(torch_cuda))
    if needed is None or not parsed(driver) or parsed(driver)[: len(needed)] >= needed:
        return None
    return ".".join(map(str, needed))


def cuda_too_old(cuda: str, capability: str) -> str | None:
    """The CUDA that a compute capability needs, when `cuda` is older; else None."""
    needed = OLDEST_CUDA.get(capability)
    return (
        None
        if needed is None or not parsed(cuda) or parsed(cuda)[:2] >= needed
        else ".".join(map(str, needed))
    )
