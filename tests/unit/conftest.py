"""Unit tests touch no network and start no process; what does belongs into another folder."""

from __future__ import annotations

import os
import socket
import subprocess
from typing import NoReturn

import pytest


@pytest.fixture(autouse=True)
def fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever tries fails the test, also from within an `except Exception`."""

    def refuse(what: str) -> object:
        def refused(*_: object, **__: object) -> NoReturn:
            pytest.fail(f"a unit test wants to {what}")

        return refused

    monkeypatch.setattr(socket.socket, "connect", refuse("connect a socket"))
    monkeypatch.setattr(socket.socket, "connect_ex", refuse("connect a socket"))
    for name in ("system", "fork", "forkpty", "posix_spawn", "posix_spawnp"):
        monkeypatch.setattr(os, name, refuse("start a process"))
    monkeypatch.setattr(subprocess.Popen, "__init__", refuse("start a process"))
