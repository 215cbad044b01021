"""Beginning a run: everything is rendered and checked, the run is in the archive, and only then are hosts reached."""

from __future__ import annotations

import os
import secrets as randomness
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator import job as jobs
from orchestrator.archive import Archive, OpenRun
from orchestrator.inventory import HostSpec, resolve_environment
from orchestrator.plan import Plan
from orchestrator.run import launchfile, record
from orchestrator.run.ending import Outcome
from orchestrator.run.follow import Way, follow_run
from orchestrator.run.launchfile import Launch
from orchestrator.run.observer import Observer
from orchestrator.transport.base import Transport


@dataclass(frozen=True)
class Prepared:
    """A run that is in the archive, locked, and has not reached a host yet."""

    run: OpenRun
    launch: Launch
    tree: Mapping[str, bytes]
    secrets: Mapping[str, Mapping[str, str]]


def prepare(
    plan: Plan,
    archive: Archive,
    *,
    environ: Mapping[str, str],
    argv: Sequence[str],
    wait_for_devices: bool = True,
    clock: Callable[[], float] = time.time,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> Prepared:
    """Render every script, resolve every secret, and create the run in the archive. Connects to nothing.

    Raises `FileError` for a template or a script that is wrong, `UsageError` for an environment variable that is unset.
    """
    run_id = archive.next_id(clock, random_bytes)
    environments = {host.name: resolve_environment(host, environ) for host in plan.hosts}
    items = jobs.queue_items(plan)
    tree = jobs.script_tree(plan)
    launch = Launch(
        run_id=run_id,
        hosts={host.name: host for host in plan.hosts},
        jobs={
            host.name: {
                **jobs.build_job(plan, host, run_id, new_nonce()).job,
                "wait_for_devices": wait_for_devices,
            }
            for host in plan.hosts
        },
        items=items,
        hands=_hands(plan),
        lost_after_s=plan.sweep.steal_after_s,
    )
    document = record.document(plan, run_id, now_s=clock(), argv=argv)
    secrets = {name: env.secrets for name, env in environments.items()}
    return create(archive, launch, document, tree, secrets)


def create(
    archive: Archive,
    launch: Launch,
    document: Mapping[str, Any],
    tree: Mapping[str, bytes],
    secrets: Mapping[str, Mapping[str, str]],
) -> Prepared:
    """Put a run that is about to begin into the archive."""
    scripts = {path.removeprefix("scripts/"): content for path, content in tree.items()}
    run = archive.create(launch.run_id, document, scripts, {launchfile.NAME: launch.to_bytes()})
    return Prepared(run, launch, tree, secrets)


def carry_out(
    prepared: Prepared,
    *,
    open_transport: Callable[[HostSpec], Transport],
    observer: Observer,
    detach: bool = False,
    clock: Callable[[], float] = time.time,
) -> Outcome:
    """Launch a prepared run on its hosts and follow it to its end, or with `detach` until the hosts can go on alone."""
    return follow_run(
        prepared.run, prepared.launch, tree=prepared.tree, secrets=prepared.secrets, way=Way.START,
        open_transport=open_transport, observer=observer, detach=detach, clock=clock,
    )  # fmt: skip


def new_nonce() -> str:
    """What marks every process of one host's part of a run."""
    return randomness.token_hex(16)


def _hands(plan: Plan) -> dict[str, dict[str, list[str]]] | None:
    """The cases of each host, where they are known beforehand: one host, or every host does everything."""
    if plan.sweep.placement == "shard" and len(plan.hosts) > 1:
        return None
    return {
        host.name: {case.case_id: list(plan.part_of(case).backends) for case in plan.cases_on(host.name)}
        for host in plan.hosts
    }
