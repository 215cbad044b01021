"""What a payload environment holds: pinned so that torch, flashinfer and sgl_kernel fit each other.

The pairs follow `doctor.fit.BUILDS`. Only what must fit is pinned; the rest is recorded by the freeze.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import FileError, UsageError
from orchestrator.yamlfile import suggestion

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Profile:
    """Requirements as in a requirements file, and the versions of Python (lowest, highest) that have wheels of them."""

    name: str
    summary: str
    requirements: tuple[str, ...]
    pythons: tuple[tuple[int, int], tuple[int, int]] = ((3, 8), (3, 99))
    note: str | None = None
    """Said when the installation fails."""
    for_gpus: bool = False
    """Of no use on a host without GPUs, and several gigabytes."""
    usual_index: str | None = None
    """Said before packages are taken from the host's own index alone."""

    @property
    def text(self) -> str:
        """The requirements, one a line."""
        return "".join(f"{line}\n" for line in self.requirements)


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            "gpu-cu130",
            "torch 2.11 for CUDA 13, flashinfer, and the sgl_kernel built for it (FP8, no FP4 GEMM); driver 580 or later",
            ("torch==2.11.0", "sglang-kernel==0.4.2", "flashinfer-python==0.7.4", "numpy"),
            ((3, 10), (3, 13)),
            for_gpus=True,
        ),
        Profile(
            "gpu-cu129",
            "torch 2.9 for CUDA 12.9, flashinfer, sgl_kernel with FP4; driver 525 or later",
            ("torch==2.9.1+cu129", "sgl-kernel==0.3.21", "flashinfer-python==0.7.4", "numpy"),
            ((3, 10), (3, 13)),
            "torch's builds for CUDA 12.9 are on PyTorch's own index, which the usual one does not have: name it with "
            "--extra-index, or give a --wheelhouse that holds them",
            for_gpus=True,
        ),
        Profile(
            "fp4-sgl",
            "torch 2.9.1 and sgl-kernel 0.3.21, the last with the FP4 GEMM, and flashinfer; driver 525 or later",
            ("torch==2.9.1", "sgl-kernel==0.3.21", "flashinfer-python==0.7.4", "numpy"),
            ((3, 10), (3, 13)),
            for_gpus=True,
        ),
        Profile(
            "cpu",
            "numpy and torch, for hosts without GPUs",
            ("torch==2.11.0", "numpy"),
            ((3, 10), (3, 13)),
            usual_index="the usual index has torch with CUDA's libraries only, several gigabytes; PyTorch's own index has it "
            "without: --extra-index names it",
        ),
    )
}


def find_profile(name: str) -> Profile:
    """A profile by name. Raises `UsageError` that lists them."""
    if name not in PROFILES:
        raise UsageError(
            f"no profile {name!r}{suggestion(name, PROFILES)}; there are: {', '.join(PROFILES)}; "
            "--requirements takes a file of your own"
        )
    return PROFILES[name]


def read_requirements(path: Path) -> Profile:
    """A requirements file as a profile named by its stem. Raises `FileError` for what cannot travel to a host."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"cannot be read: {getattr(error, 'strerror', None) or error}", path=path) from error
    kept = []
    continued = False
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if not continued and line.startswith("-"):
            raise FileError(
                f"{line.split()[0]} has no meaning on a host: only requirements may stand here (packages come from "
                "--wheelhouse, --extra-index, or the host's own index)",
                path=path, line=number,
            )  # fmt: skip
        if not continued and re.match(r"[./~]", line):
            raise FileError(
                "a local path does not travel: put the wheel into a --wheelhouse", path=path, line=number
            )
        continued = line.endswith("\\")
        kept.append(line)
    if not kept:
        raise FileError("no requirement in it", path=path)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-.") or "environment"
    return Profile(name[:64], f"the requirements of {path.name}", tuple(kept))
