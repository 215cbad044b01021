"""Asking hosts what they are and have, side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.errors import HostError
from orchestrator.inventory import HostSpec
from orchestrator.launch.dialogue import Dialogue
from orchestrator.model import Device
from orchestrator.run.takeup import each_host
from orchestrator.transport.base import Transport


@dataclass(frozen=True)
class HostReport:
    """What a host is and has; `state` is None where it was not asked."""

    spec: HostSpec
    state: str | None = None
    error: str | None = None
    hostname: str | None = None
    agent_python: str | None = None
    workdir: str | None = None
    disk_free_bytes: int | None = None
    devices: Sequence[Device] = ()
    modules: Mapping[str, str | None] = field(default_factory=dict)
    payload_python: Any = None

    def device_models(self) -> dict[str, int]:
        """Number of devices by model."""
        return dict(Counter(device.model for device in self.devices))

    def to_json(self) -> dict[str, Any]:
        """The entry of `hosts --json`."""
        return {
            "state": self.state,
            "error": self.error,
            "address": None if self.spec.embedded else self.spec.address,
            "tags": list(self.spec.tags),
            "hostname": self.hostname,
            "workdir": self.workdir,
            "disk_free_bytes": self.disk_free_bytes,
            "agent_python": self.agent_python,
            "payload_python": self.payload_python,
            "devices": [device.model_dump() for device in self.devices],
            "modules": dict(self.modules),
        }


def inspect(
    hosts: Sequence[HostSpec], open_transport: Callable[[HostSpec], Transport], modules: Sequence[str]
) -> dict[str, HostReport]:
    """Ask every host; one that cannot be used has an `error`."""

    def ask(spec: HostSpec) -> HostReport:
        try:
            hello, probe = Dialogue(open_transport(spec), spec).probe(modules)
        except HostError as error:
            return HostReport(spec, error.state, str(error))
        unusable = None
        if spec.python is not None and probe.payload_python is None:
            told = (probe.details or {}).get("problems") or []
            why = next((str(line) for line in told if spec.python in str(line)), "it cannot be started")
            unusable = f"{spec.name}: the payloads' interpreter {spec.python} cannot be used: {why}"
        return HostReport(
            spec,
            "ok" if unusable is None else "unusable",
            unusable,
            hostname=hello.hostname,
            agent_python=f"{hello.python} ({hello.version})",
            workdir=hello.workdir,
            disk_free_bytes=probe.disk_free_bytes,
            devices=probe.devices,
            modules=probe.modules,
            payload_python=probe.payload_python,
        )

    return each_host({spec.name: spec for spec in hosts}, ask)
