"""Which hosts a run uses: those the sweep asks for, unless the command line asks for others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import FileError, UsageError
from orchestrator.yamlfile import suggestion

from .hosts import HostSpec
from .loading import Inventory


@dataclass(frozen=True)
class HostFilter:
    """Hosts with one of these names or one of these tags; every host when neither is given.

    `path` and `line` say where a sweep asked for it.
    """

    names: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    path: Path | None = None
    line: int | None = None

    @property
    def everything(self) -> bool:
        """Whether no host is left out."""
        return not self.names and not self.tags


def select(
    inventory: Inventory,
    names: Sequence[str] = (),
    tags: Sequence[str] = (),
    wanted: HostFilter | None = None,
) -> tuple[HostSpec, ...]:
    """The hosts to use, in the file's order: those with a name in `names` or a tag in `tags`, and only when both are
    empty those that the sweep wants.

    Raises `UsageError` for a name that is not in the file, and when no host is left.
    """
    given = bool(names or tags)
    chosen = HostFilter(tuple(names), tuple(tags)) if given or wanted is None else wanted
    for name in chosen.names:
        if name not in inventory.hosts:
            raise _refusal(
                chosen,
                f"no host {name!r} in {inventory.path}{suggestion(name, inventory.hosts)}; "
                f"there are: {', '.join(inventory.hosts)}",
            )
    hosts = tuple(
        host
        for host in inventory.hosts.values()
        if chosen.everything or host.name in chosen.names or set(host.tags) & set(chosen.tags)
    )
    if not hosts:
        known = sorted({tag for host in inventory.hosts.values() for tag in host.tags})
        one = (
            f"tag {chosen.tags[0]!r}"
            if len(chosen.tags) == 1
            else f"one of the tags {', '.join(chosen.tags)}"
        )
        raise _refusal(
            chosen,
            f"no host in {inventory.path} has {one}{suggestion(chosen.tags[0], known)}; "
            f"tags there: {', '.join(known) or 'none'}. Give a host such a tag, or name hosts with --host",
        )
    return hosts


def nodes_of(hosts: Sequence[HostSpec]) -> tuple[HostSpec, ...]:
    """The hosts of a run: `HostSpec.nodes` of each."""
    return tuple(node for host in hosts for node in host.nodes())


def _refusal(chosen: HostFilter, message: str) -> UsageError:
    if chosen.path is None:
        return UsageError(message)
    return FileError(message, path=chosen.path, line=chosen.line)
