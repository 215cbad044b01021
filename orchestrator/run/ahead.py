"""Calling the hosts of a run while its plan is still being made."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from orchestrator.inventory import HostSpec
from orchestrator.launch.ahead import CalledAhead
from orchestrator.transport.base import Transport

AT_MOST = 8
"""With more hosts, logging in is no longer what a run waits for, and each costs time that the plan needs."""

ENDING_S = 2.0
SWITCH_AFTER_S = 0.0002
"""A host's answer waits so long for the thread that plans; it would be 5 ms each of a dozen times."""


class Opener(Protocol):
    """Opens transports."""

    def load(self, spec: HostSpec, /) -> None:
        """Load the libraries that `transport` will need."""

    def transport(self, spec: HostSpec, /) -> Transport:
        """A transport for a host."""


class Ahead:
    """The calls of one run; at the end none is left under way, whose libraries Python's own end would break into.

    What the calls go through must be closed before."""

    def __init__(self) -> None:
        self._called: dict[str, CalledAhead] = {}
        self._calls: list[CalledAhead] = []
        self._usual_s = sys.getswitchinterval()

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *exc: object) -> None:
        deadline = time.monotonic() + ENDING_S
        for call in self._calls:
            call.join(max(0.0, deadline - time.monotonic()))

    def call(self, opener: Opener, hosts: Sequence[HostSpec]) -> None:
        """Call these hosts, and return at once.

        Libraries are loaded before: two threads that load modules only take the time from each other, while one that
        waits for a host takes none."""
        sys.setswitchinterval(SWITCH_AFTER_S)
        for spec in hosts[:AT_MOST]:
            opener.load(spec)
            call = CalledAhead(
                spec.name, partial(opener.transport, spec), workdir=spec.workdir,
                agent_python=spec.agent_python, python=spec.python,
            )  # fmt: skip
            self._called[spec.name] = call
            self._calls.append(call)

    def transport(self, opener: Opener, spec: HostSpec) -> Transport:
        """The transport of a host, called or not; the plan is made by now."""
        sys.setswitchinterval(self._usual_s)
        return self._called.pop(spec.name, None) or opener.transport(spec)
