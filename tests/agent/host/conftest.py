"""Real processes for the tests of the host's modules, and fakes of what only a GPU host has."""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.waiting import wait_for

Spawn = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def nonce() -> str:
    return secrets.token_hex(8)


@pytest.fixture
def python_process() -> Iterator[Spawn]:
    """Start `python -c code args…`; every process is killed and reaped at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def spawn(
        code: str, *args: str, env: dict[str, str] | None = None, **options: object
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *args],
            env={**os.environ, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            **options,  # type: ignore[call-overload]
        )
        started.append(process)
        return process

    yield spawn
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()


class FakeDriver:
    """A host's NVIDIA driver: a management library whose answers are the lines of a file."""

    def __init__(self, library: Path, answers: Path) -> None:
        self.library = library
        self.answers = answers
        self.lines: list[str] = []

    def say(self, *lines: str) -> None:
        """Answer so from the next call on."""
        fresh = self.answers.with_suffix(".new")
        fresh.write_text("".join(f"{line}\n" for line in lines))
        fresh.replace(self.answers)

    def wait_for_looks(self) -> None:
        """Wait until this process has looked at the devices, their processes included, several times more."""
        library = ctypes.CDLL(str(self.library))
        before = library.fake_looks()
        wait_for(lambda: library.fake_looks() >= before + 6)

    @property
    def environ(self) -> dict[str, str]:
        return {
            "FARBENCH_NVML_LIBRARY": str(self.library),
            "FAKE_NVML": str(self.answers),
            "PATH": "/nonexistent",
        }


def gpu(
    uuid: str,
    name: str = "NVIDIA H200",
    bus: str = "00000000:01:00.0",
    *,
    capability: str = "9|0",
    mig: bool = False,
    sm: int = 1980,
    mem: int = 3201,
    mw: int = 500_000,
    celsius: int = 60,
    reasons: int = 0,
) -> str:
    return f"gpu {uuid}|{name}|{bus}|{capability}|{mig:d}|{sm}|{mem}|{mw}|{celsius}|{reasons:x}"


@pytest.fixture(scope="session")
def fake_nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("nvml") / "libfake-nvml.so"
    source = Path(__file__).with_name("fake_nvml.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return library


@pytest.fixture
def driver(fake_nvml_library: Path, tmp_path: Path) -> FakeDriver:
    return FakeDriver(fake_nvml_library, tmp_path / "nvml-answers")


@pytest.fixture
def smi_host(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Put a fake nvidia-smi with this /bin/sh body on a PATH of its own; gives the host's environment."""

    def make(body: str) -> dict[str, str]:
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
        return {"PATH": str(program.parent), "FARBENCH_NVML_LIBRARY": ""}

    return make
