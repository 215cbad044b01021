"""Hosts that are called before their part of a run is known."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.errors import HostRefused, HostUnreachable
from orchestrator.launch.ahead import CalledAhead
from orchestrator.launch.dialogue import Dialogue, End
from orchestrator.transport.open import Connections
from tests.support.runs import TREE, item, job, measurements
from tests.support.sshd import Spec, Sshd, make_key


def called(spec: Spec, connections: Connections) -> CalledAhead:
    return CalledAhead(
        spec.name, lambda: connections.transport(spec), workdir=spec.workdir,
        agent_python=spec.agent_python, python=spec.python,
    )  # fmt: skip


def test_a_call_changes_nothing_and_then_serves_as_any_transport(
    any_host: Spec, connections: Connections, tmp_path: Path
) -> None:
    spec = dataclasses.replace(any_host, workdir=str(tmp_path / "work dir é"))
    for number in (1, 2):  # the second time the agent is there, and got ready by the call
        host = called(spec, connections)
        host.connect()
        assert (tmp_path / "work dir é").exists() == (number == 2)
        for again in (1, 2):
            run_id = f"r{number}{again}"
            messages = list(Dialogue(host, spec).launch(job=job(run_id), tree=TREE, queue=[item("c1")]))
            assert isinstance(messages[-1], End)
            assert [record["status"] for record in measurements(messages)] == ["ok"]
            assert Dialogue(host, spec).status(run_id).state == "finished"
        assert host.run(["echo", "a b"]).stdout == b"a b\n"
        host.close()
        with pytest.raises(HostUnreachable):
            host.connect()


def test_a_call_is_not_made_twice(sshd: Sshd, connections: Connections) -> None:
    spec = sshd.spec(workdir="~/farbench")
    host = called(spec, connections)
    host.connect()
    messages = list(Dialogue(host, spec).launch(job=job("r1"), tree=TREE, queue=[item("c1")]))
    assert isinstance(messages[-1], End)
    assert sshd.read_log().count("Accepted publickey") == 1
    assert sshd.read_log().count("Starting session: command") in (0, 1)


def test_a_call_that_failed_is_told_once_and_the_next_time_tried_again(
    sshd: Sshd, connections: Connections, tmp_path: Path
) -> None:
    make_key(tmp_path / "stranger")
    known = (sshd.folder / "authorized_keys").read_text()
    host = called(sshd.spec(identity_file=tmp_path / "stranger", workdir="~/farbench"), connections)
    with pytest.raises(HostRefused, match="no key was accepted"):
        host.connect()
    assert sshd.read_log().count("Connection from") == 1
    (sshd.folder / "authorized_keys").write_text(known + (tmp_path / "stranger.pub").read_text())
    host.connect()
    assert host.run(["echo", "in"]).stdout == b"in\n"


def test_a_call_to_a_host_that_says_nothing_ends_with_the_connections(connections: Connections) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        host = called(Spec("gpu1", address="127.0.0.1", port=port, ssh_config=Path("/dev/null")), connections)
        silent.accept()
        connections.close()
        host.join(30)
        with pytest.raises(HostUnreachable):
            host.connect()


def test_a_host_without_python_says_so_to_who_launches(
    make_sshd: Callable[..., Sshd], connections: Connections
) -> None:
    sshd = make_sshd(SetEnv="PATH=/nowhere", ForceCommand="exit 97")
    spec = sshd.spec(workdir="~/farbench")
    host = called(spec, connections)
    host.connect()
    with pytest.raises(Exception, match=r"no Python 3\.8 or later"):
        list(Dialogue(host, spec).launch(job=job("r1"), tree=TREE, queue=[item("c1")]))
