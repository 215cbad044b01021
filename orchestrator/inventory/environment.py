"""A host's `env`, split into what may be stored with a run and what may not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.errors import UsageError

from .hosts import FromEnvironment, HostSpec


@dataclass(frozen=True)
class HostEnvironment:
    """Variables of a host's workers; `secrets` came from the controller's environment and are never written."""

    plain: Mapping[str, str]
    secrets: Mapping[str, str]


def resolve_environment(host: HostSpec, environ: Mapping[str, str]) -> HostEnvironment:
    """Look up every `from_env` in `environ`. Raises `UsageError` naming the host and the variables that are unset, or
    that its launcher cannot bring to the agent."""
    plain = {name: value for name, value in host.env.items() if isinstance(value, str)}
    wanted = {name: value.from_env for name, value in host.env.items() if isinstance(value, FromEnvironment)}
    if wanted and host.launcher.slurm is not None:
        raise UsageError(
            f"host {host.name!r}: {', '.join(wanted)} is `from_env`, and Slurm would write it to its own files with the job. "
            "Export it in `activate`, from a file on the cluster that only you can read"
        )
    unset = [source for source in wanted.values() if source not in environ]
    if unset:
        raise UsageError(
            f"host {host.name!r}: its env takes {', '.join(unset)} from the environment, where "
            f"{'it is' if len(unset) == 1 else 'they are'} not set"
        )
    return HostEnvironment(plain, {name: environ[source] for name, source in wanted.items()})
