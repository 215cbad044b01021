"""The host of the agent's tests, with a payload that reports what its case tells it to, attempt by attempt."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from core.conftest import Host, item
from core.conftest import host as host
from host.conftest import FakeDriver, driver, fake_nvml_library, gpu  # noqa: F401

PAYLOAD = Path(__file__).with_name("payload.py")


def says(case_id: str, retries: int = 1, **backends: list[str]) -> dict[str, Any]:
    """A queue item whose backends report one of these at each attempt: see payload.py."""
    measure = {"retries": retries}
    return item(case_id, tuple(backends), params={"says": backends}, measure=measure)


@pytest.fixture
def telling(host: Host) -> Host:
    """A host whose payload tells what it is told to."""
    host.tree = {"scripts/fake.py": PAYLOAD.read_bytes()}
    return host


class Smi:
    """A fake nvidia-smi on a PATH of its own: records its calls, and knows which clocks are locked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls_file = folder / "calls"
        program = folder / "bin" / "nvidia-smi"
        program.parent.mkdir(parents=True)
        program.write_text(
            f"#!{sys.executable}\n"
            + Path(__file__).with_name("fake_smi.py").read_text().replace("@FOLDER@", str(folder))
        )
        program.chmod(0o755)

    @property
    def environ(self) -> dict[str, str]:
        return {"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin", "FARBENCH_NVML_LIBRARY": ""}

    def changes(self) -> list[str]:
        """The calls that change a clock, in order."""
        if not self.calls_file.exists():
            return []
        return [
            line
            for line in self.calls_file.read_text().splitlines()
            if "gpu-clocks" in line or "-rgc" in line
        ]

    def locked(self) -> dict[str, str]:
        """Which GPUs have their clocks locked now, and at what."""
        found = {}
        for path in (self.folder / "locked").glob("*"):
            with contextlib.suppress(FileNotFoundError):  # given back since it was listed
                found[path.name] = path.read_text()
        return found

    def refuse(self, what: str) -> None:
        """Say this instead of changing a clock."""
        (self.folder / "refusal").write_text(what)


@pytest.fixture
def smi(tmp_path: Path) -> Smi:
    return Smi(tmp_path / "smi")


@pytest.fixture
def processes() -> Callable[[str], list[int]]:
    """PIDs of processes with a text in their command line."""

    def find(text: str) -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if text.encode() in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found

    return find
