"""The fence of conftest.py holds."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable

import pytest


def fork() -> None:
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)


SOCKET = socket.socket()
TRIES: list[Callable[[], object]] = [
    lambda: socket.create_connection(("127.0.0.1", 1)),
    lambda: SOCKET.connect_ex(("127.0.0.1", 1)),
    lambda: subprocess.run(["true"]),
    lambda: os.system("true"),
    fork,
]


@pytest.mark.parametrize("attempt", TRIES)
def test_nothing_leaves_a_unit_test(attempt: Callable[[], object]) -> None:
    with pytest.raises(pytest.fail.Exception, match="a unit test wants to"):
        swallowing(attempt)


def swallowing(attempt: Callable[[], object]) -> None:
    """As careful code does."""
    try:
        attempt()
    except Exception:
        return
