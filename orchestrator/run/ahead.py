"""Calling the hosts of a run while its plan is still being made."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial

from orchestrator.inventory import HostSpec
from orchestrator.launch.ahead import CalledAhead
from orchestrator.transport.base import Transport

AT_MOST = 8
"""With more hosts, logging in is no longer what a run waits for, and each costs time that the plan needs."""

SWITCH_AFTER_S = 0.0002
"""A host's answer waits so long for the thread that plans; it would be 5 ms each of a dozen times."""


class Ahead:
    """Opens transports as `open_transport` does; hosts that were called before are reached sooner."""

    def __init__(
        self, open_transport: Callable[[HostSpec], Transport], load: Callable[[HostSpec], None]
    ) -> None:
        """`load` loads what opening a host's transport needs. Done here, before the call: two threads that load modules
        only take the time from each other, while one that waits for a host takes none."""
        self._open_transport = open_transport
        self._load = load
        self._called: dict[str, CalledAhead] = {}
        self._usual_s = sys.getswitchinterval()

    def call(self, hosts: Sequence[HostSpec]) -> None:
        """Call these hosts, and return at once."""
        sys.setswitchinterval(SWITCH_AFTER_S)
        for spec in hosts[:AT_MOST]:
            self._load(spec)
            self._called[spec.name] = CalledAhead(
                spec.name, partial(self._open_transport, spec), workdir=spec.workdir,
                agent_python=spec.agent_python, python=spec.python,
            )  # fmt: skip

    def transport(self, spec: HostSpec) -> Transport:
        """The transport of a host; the plan is made by now."""
        sys.setswitchinterval(self._usual_s)
        return self._called.pop(spec.name, None) or self._open_transport(spec)
