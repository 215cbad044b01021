"""Slow and lossy links as the kernel makes them: packets that come late, and packets that do not come."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from orchestrator.transport.open import Connections
from tests.support.runs import run_one
from tests.support.sshd import Sshd
from tests.support.waiting import BOUND_S
from tests.support.wire import host_behind_a_wire

Make = Callable[..., Sshd]
MIB = 1024 * 1024


@pytest.mark.parametrize("transport", ["ssh", "openssh"])
def test_a_run_over_a_wire_of_200_ms(transport: str, make_sshd: Make, connections: Connections) -> None:
    with host_behind_a_wire(make_sshd, one_way_s=0.1, loss=0.0) as (sshd, port):
        spec = sshd.spec(port=port, transport=transport)
        assert run_one(connections.transport(spec), spec)["status"] == "ok"
        connections.close()


@pytest.mark.parametrize("transport", ["ssh", "openssh"])
def test_a_wire_that_loses_every_twentieth_packet_loses_no_byte(
    transport: str, make_sshd: Make, connections: Connections
) -> None:
    data = os.urandom(MIB)
    with host_behind_a_wire(make_sshd, one_way_s=0.005, loss=0.05) as (sshd, port):
        spec = sshd.spec(port=port, transport=transport)
        host = connections.transport(spec)
        assert host.run(["cat"], stdin=data, timeout_s=BOUND_S).stdout == data
        assert run_one(host, spec)["status"] == "ok"
        connections.close()
