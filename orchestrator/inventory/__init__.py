"""hosts.yaml: the machines there are, and the choice of those to use."""

from __future__ import annotations

from .environment import HostEnvironment, resolve_environment
from .hosts import CpuSlots, FromEnvironment, HostSpec, Launcher, SlurmSpec
from .loading import Inventory, load_inventory
from .selection import HostFilter, nodes_of, select

__all__ = [
    "CpuSlots",
    "FromEnvironment",
    "HostEnvironment",
    "HostFilter",
    "HostSpec",
    "Inventory",
    "Launcher",
    "SlurmSpec",
    "load_inventory",
    "nodes_of",
    "resolve_environment",
    "select",
]
