"""pytest fixtures for hosts: real sshd's on loopback, the embedded server, and connections that are closed at the end."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.transport.open import Connections
from tests.support.dropbear import Dropbear
from tests.support.sshd import Spec, Sshd


@pytest.fixture
def make_sshd(tmp_path: Path) -> Iterator[Callable[..., Sshd]]:
    """Start an sshd with the given settings (see `Sshd`); every call is another host, in a folder of its own."""
    servers: list[Sshd] = []
    numbers = itertools.count(1)

    def make(**settings: Any) -> Sshd:
        server = Sshd(tmp_path / f"sshd{next(numbers)}", **settings)
        servers.append(server)
        return server.start()

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def sshd(make_sshd: Callable[..., Sshd]) -> Sshd:
    """One sshd with usual settings."""
    return make_sshd()


@pytest.fixture
def warnings_heard() -> list[str]:
    """What `connections` warned of."""
    return []


@pytest.fixture
def user_environ(tmp_path: Path) -> dict[str, str]:
    """An environment with a private HOME and no ssh agent."""
    home = tmp_path / "user_home"
    home.mkdir(mode=0o700, exist_ok=True)
    environ = {key: value for key, value in os.environ.items() if not key.startswith("SSH_")}
    return {**environ, "HOME": str(home)}


@pytest.fixture
def connections(user_environ: dict[str, str], warnings_heard: list[str]) -> Iterator[Connections]:
    """Connections of such a user."""
    with Connections(environ=user_environ, warn=warnings_heard.append) as opened:
        yield opened


@pytest.fixture
def dropbear(tmp_path: Path) -> Iterator[Dropbear]:
    """One dropbear server."""
    (tmp_path / "dropbear").mkdir(mode=0o700)
    server = Dropbear(tmp_path / "dropbear")
    yield server.start()
    server.stop()


@pytest.fixture(params=["openssh", "embedded"])
def any_host(request: pytest.FixtureRequest) -> Spec:
    """A host, once as a real OpenSSH sshd and once as the embedded server."""
    return _host(request)


@pytest.fixture(params=["openssh", "embedded", "system-ssh", "dropbear"])
def every_host(request: pytest.FixtureRequest) -> Spec:
    """A host over every transport: ours to OpenSSH, to the embedded server, to dropbear; the system's ssh to OpenSSH."""
    return _host(request)


def _host(request: pytest.FixtureRequest) -> Spec:
    if request.param == "embedded":
        return Spec("local", embedded=True)
    if request.param == "dropbear":
        other: Dropbear = request.getfixturevalue("dropbear")
        return other.spec()
    make: Callable[..., Sshd] = request.getfixturevalue("make_sshd")
    return make().spec(transport="openssh" if request.param == "system-ssh" else "ssh")
