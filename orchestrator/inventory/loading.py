"""Reading hosts.yaml."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from orchestrator import yamlfile
from orchestrator.yamlfile import Fault, Loc

from .hosts import HostSpec

LOCAL_PATHS = ("identity_file", "known_hosts", "ssh_config")


@dataclass(frozen=True)
class Inventory:
    """The hosts of one file, in its order. `warnings` are lines for a person."""

    path: Path
    hosts: Mapping[str, HostSpec]
    warnings: tuple[str, ...] = ()


def load_inventory(path: Path | str) -> Inventory:
    """Read a hosts file. Raises `FileError` that names every fault with its line."""
    path = Path(path)
    document = yamlfile.load(path, "hosts file")
    data = document.mapping("a hosts file")
    faults = [
        Fault(f"unknown key {key!r}{yamlfile.suggestion(key, ('defaults', 'hosts'))}", (key,))
        for key in data
        if key not in ("defaults", "hosts")
    ]
    defaults = _mapping(data, "defaults", faults)
    entries = _mapping(data, "hosts", faults)
    if not entries and not faults:
        faults.append(
            Fault("no hosts: at least one is needed, such as `local: {embedded: true}`", ("hosts",))
        )
    hosts: dict[str, HostSpec] = {}
    for name, entry in entries.items():
        if not isinstance(entry, dict):
            message = f"host {name!r} is a mapping such as {{address: …}}, not {yamlfile.kind(entry)}"
            faults.append(Fault(message, ("hosts", name)))
            continue
        merged = _merge(defaults, entry, path.parent)
        try:
            hosts[name] = HostSpec.model_validate({**merged, "name": name})
        except ValidationError as exc:
            found = yamlfile.faults_of(exc, HostSpec, merged)
            faults += [_placed(fault, name, entry) for fault in found]
    for spec in hosts.values():
        faults += [
            Fault(f"host {node.name!r}: a node of {spec.name!r} has that name in a run", ("hosts", node.name))
            for node in spec.nodes()
            if node is not spec and node.name in hosts
        ]
    if faults:
        raise document.errors(faults)
    return Inventory(path, MappingProxyType(hosts), tuple(document.warnings(below=("env", "tags"))))


def _mapping(data: Mapping[str, Any], key: str, faults: list[Fault]) -> dict[str, Any]:
    value = data.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        faults.append(Fault(f"{key} is a mapping, not {yamlfile.kind(value)}", (key,)))
        return {}
    if "name" in value and key == "defaults":
        faults.append(Fault("a host's name is its key under `hosts`", (key, "name")))
    return value


def _merge(defaults: Mapping[str, Any], entry: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """What the host says wins; `env` is merged variable by variable; null takes a default back."""
    merged = {**defaults, **entry}
    if isinstance(defaults.get("env"), dict) and isinstance(entry.get("env"), dict):
        merged["env"] = {**defaults["env"], **entry["env"]}
    merged = {key: value for key, value in merged.items() if value is not None}
    for key in LOCAL_PATHS:
        if isinstance(merged.get(key), str) and merged[key]:
            merged[key] = str(base.absolute() / os.path.expanduser(merged[key]))  # noqa: PTH111 - Path.expanduser raises for an unknown user
    if merged.get("embedded") is True:
        merged.setdefault("python", sys.executable)
        merged.setdefault("agent_python", sys.executable)
        if "address" not in entry:
            merged.pop("address", None)
    return merged


def _placed(fault: Fault, name: str, entry: Mapping[str, Any]) -> Fault:
    """A fault of a merged host, at the line of the entry or of the defaults, whichever said it."""
    loc: Loc = ("hosts", name, *fault.loc)
    if fault.loc and fault.loc[0] not in entry:
        # the same mistake in the defaults is one mistake, however many hosts there are
        return Fault(f"defaults: {fault.message}", ("defaults", *fault.loc))
    return Fault(f"host {name!r}: {fault.message}", loc)
