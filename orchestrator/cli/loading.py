"""From the files a command names to a plan, with warnings said once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import FileError
from orchestrator.inventory import HostSpec, Inventory, load_inventory, nodes_of, select
from orchestrator.sweep import Sweep, load_sweep

if TYPE_CHECKING:
    from orchestrator.plan import Plan
    from orchestrator.rendering import Catalogue

Warn = Callable[[str], None]


def load_hosts(path: Path) -> Inventory:
    """The inventory; a missing file says how to get one."""
    if not path.exists():
        raise FileError(
            "there is no such file; `farbench init` writes one, --hosts-file names another", path=path
        )
    return load_inventory(path)


def load_plan(
    sweep_path: Path,
    hosts_file: Path,
    hosts: Sequence[str] | None,
    tags: Sequence[str] | None,
    sets: Sequence[str] | None,
    only: Sequence[str] | None,
    *,
    warn: Warn,
    tell_hosts: Callable[[Sequence[HostSpec]], None] | None = None,
) -> Plan:
    """The plan of a sweep on the hosts that the command line, or else the sweep, asks for.

    `tell_hosts` is told the hosts as soon as they are known: before what is needed for a plan is even loaded."""
    sweep = _sweep(sweep_path, sets, warn)
    inventory = load_hosts(hosts_file)
    chosen = nodes_of(select(inventory, names=tuple(hosts or ()), tags=tuple(tags or ()), wanted=sweep.hosts))
    if tell_hosts is not None:
        tell_hosts(chosen)
    from orchestrator.plan import make_plan

    return make_plan(sweep, chosen, tuple(only or ()), _catalogue())


def load_scripts(
    sweep_path: Path, sets: Sequence[str] | None, only: Sequence[str] | None, *, warn: Warn
) -> Mapping[str, bytes]:
    """The files a host would get, by path below its folder of scripts."""
    from orchestrator.job import script_tree
    from orchestrator.plan import make_plan

    plan = make_plan(_sweep(sweep_path, sets, warn), (), tuple(only or ()), _catalogue())
    return {name.removeprefix("scripts/"): content for name, content in script_tree(plan).items()}


def _sweep(path: Path, sets: Sequence[str] | None, warn: Warn) -> Sweep:
    sweep = load_sweep(path, tuple(sets or ()))
    for warning in sweep.warnings:
        warn(warning)
    return sweep


def _catalogue() -> Catalogue:
    from orchestrator.rendering import Catalogue

    return Catalogue.default(Path.cwd())
