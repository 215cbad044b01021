"""Real processes for the tests of the host's modules, and fakes of what only a GPU host has."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

Spawn = Callable[..., "subprocess.Popen[bytes]"]


def wait_until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Wait for a condition with a generous bound; fails when it never holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.01)


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
