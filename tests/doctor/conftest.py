"""Hosts with GPUs that are programs on PATH, and with libraries that are only metadata."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.e2e.conftest import Finished, Laptop, host, laptop
from tests.support.sshd import Sshd

__all__ = ["host", "laptop"]

_SMI = """#!{python} -IS
import json, sys, time
world = json.load(open({world!r}))
time.sleep(world.get("hangs_s", 0))
question = next((a for a in sys.argv if a.startswith("--query-")), "")
kind, _, fields = question.partition("=")
fields = fields.split(",")
if world.get("broken"):
    print(world["broken"]); sys.exit(9)
rows = world["gpus"] if kind == "--query-gpu" else world["apps"]
for field in fields:
    if kind == "--query-gpu" and field not in rows[0]:
        print('Field "%s" is not a valid field to query.' % field); sys.exit(2)
for row in rows:
    print(", ".join(str(row[field]) for field in fields))
"""

HEALTHY: dict[str, Any] = {
    "index": 0, "uuid": "GPU-aaaa", "name": "NVIDIA RTX PRO 6000", "pci.bus_id": "00000000:01:00.0", "driver_version": "580.65.06",
    "compute_cap": "12.0", "persistence_mode": "Enabled", "ecc.mode.current": "Enabled",
    "ecc.errors.uncorrected.volatile.total": 0, "mig.mode.current": "[N/A]", "compute_mode": "Default", "clocks.sm": 180,
    "clocks.max.sm": 3090, "clocks.mem": 405, "temperature.gpu": 31, "power.draw": 18.5, "power.limit": 600,
    "utilization.gpu": 0, "memory.used": 4, "memory.total": 97887, "clocks_event_reasons.active": "0x0000000000000001",
}  # fmt: skip


class GpuHost:
    """What a host of the tests has: GPUs, libraries, a compiler. `doctor` asks the real command about it."""

    def __init__(self, laptop: Laptop, server: Sshd) -> None:
        self.laptop = laptop
        self.server = server
        self.bin = server.folder / "gpu-bin"
        self.site = server.folder / "site"
        self.world = server.folder / "world.json"
        self.bin.mkdir()
        self.site.mkdir()
        self.script("nvidia-smi", _SMI.format(python=sys.executable, world=str(self.world)))
        self.gpus()
        self.script("nvcc", "#!/bin/sh\necho 'Cuda compilation tools, release 12.9, V12.9.41'\n")
        self.script("c++", "#!/bin/sh\n")
        laptop.hosts(server, env=self.environ)

    @property
    def environ(self) -> dict[str, str]:
        path = f"{self.bin}:/usr/bin:/bin"
        return {
            "PATH": path,
            "FARBENCH_NVML_LIBRARY": "",
            "PYTHONPATH": str(self.site),
            "CUDA_HOME": str(self.bin / "none"),
        }

    def script(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def gpus(self, *gpus: dict[str, Any], apps: tuple[dict[str, Any], ...] = (), **world: Any) -> None:
        self.world.write_text(json.dumps({"gpus": gpus or [HEALTHY], "apps": apps, **world}))

    def installed(self, torch_cuda: str | None = "12.8", **versions: str) -> None:
        """Distributions by name, `-` as `_`; torch with the CUDA that its version.py names."""
        for name, version in versions.items():
            info = self.site / f"{name}-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
            )
        if "torch" in versions:
            (self.site / "torch").mkdir()
            (self.site / "torch/__init__.py").write_text("raise SystemExit('imported')\n")
            (self.site / "torch/version.py").write_text(
                f"from typing import Optional\n__version__ = {versions['torch']!r}\ncuda: Optional[str] = {torch_cuda!r}\n"
            )

    def doctor(self, *arguments: str) -> tuple[Finished, dict[str, dict[str, Any]]]:
        """(the command, its checks of h1 by name)."""
        done = self.laptop.farbench("doctor", "--json", *arguments)
        checks = done.json()["hosts"]["h1"]["checks"]
        return done, {check["name"]: check for check in checks}


@pytest.fixture
def gpu_host(laptop: Laptop, host: Sshd) -> GpuHost:
    return GpuHost(laptop, host)
