"""Following a run whose lock we hold, from its start or from wherever it stands, to its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

from orchestrator.archive import OpenRun, RunDocument
from orchestrator.events import Fold
from orchestrator.inventory import HostSpec
from orchestrator.run import record
from orchestrator.run.coordinator import Coordinator, Ending
from orchestrator.run.ending import Outcome, conclude, outcome
from orchestrator.run.homecoming import bring_collected, collects
from orchestrator.run.hostrun import BEFORE_BYTES
from orchestrator.run.hosttask import HostTask
from orchestrator.run.launchfile import Launch
from orchestrator.run.news import HostPhase
from orchestrator.run.observer import HostView, Observer
from orchestrator.transport.base import Transport

if TYPE_CHECKING:
    from orchestrator.run.dealing import Dealing

CANCEL_PATIENCE_S = 20.0
"""A cancelled run waits so long for a host that does not answer."""


class Way(Enum):
    """`START` a new run, `FOLLOW` an open one, `RESUME` it (what is gone is started again), follow a `CANCEL`led one to
    its end, or `FORGET` what hosts that do not answer may have of a cancelled one."""

    START = "start"
    FOLLOW = "follow"
    RESUME = "resume"
    CANCEL = "cancel"
    FORGET = "forget"

    @property
    def launches(self) -> bool:
        """Whether hosts are given their part of the run."""
        return self in (Way.START, Way.RESUME)


def follow_run(
    run: OpenRun,
    launch: Launch,
    *,
    tree: Mapping[str, bytes],
    secrets: Mapping[str, Mapping[str, str]],
    way: Way,
    open_transport: Callable[[HostSpec], Transport],
    observer: Observer,
    detach: bool = False,
    clock: Callable[[], float] = time.time,
) -> Outcome:
    """Follow the hosts from where their journals end here, then commit or leave the run; its lock is given back in any
    case. With `detach`, only until the hosts can go on alone."""
    try:
        dealing = _dealing(launch) if launch.hands is None else None
        coordinator = Coordinator(run, dealing=dealing, observer=observer)
        document = run.document()
        useless = _found_useless(run, document)
        unused = {} if way.launches else useless
        tasks = [
            _task(run, launch, coordinator.fold, name, way, tree, secrets.get(name, {}), document.placement)
            for name in launch.hosts
            if name not in unused
        ]
        if way is Way.RESUME:
            tasks = [replace(task, begun=task.spec.name not in useless) for task in tasks]
        patience_s = CANCEL_PATIENCE_S if way in (Way.CANCEL, Way.FORGET) else launch.lost_after_s
        coordinator.employ(
            tasks, open_transport=open_transport, lost_after_s=patience_s, unused=list(unused.values())
        )
        if coordinator.follow(until_launched=detach) is Ending.DETACHED:
            left = outcome(run, coordinator.fold, coordinator.views, state="detached")
            hosts = record.host_records(coordinator.fold, left.hosts, coordinator.clock_offsets())
            run.update_run_document({"hosts": hosts})
            return left
        if coordinator.unkept is not None:
            raise coordinator.unkept
        return conclude(
            run, coordinator.fold, coordinator.views, clock_offsets=coordinator.clock_offsets(),
            cancelled=way in (Way.CANCEL, Way.FORGET), forget=way is Way.FORGET, now_s=clock(),
        )  # fmt: skip
    finally:
        run.close()


def _dealing(launch: Launch) -> Dealing:
    from orchestrator.run.dealing import Dealing  # most runs have one host, or deal nothing

    return Dealing(launch.items, list(launch.hosts))


def _task(
    run: OpenRun,
    launch: Launch,
    fold: Fold,
    name: str,
    way: Way,
    tree: Mapping[str, bytes],
    secrets: Mapping[str, str],
    placement: str,
) -> HostTask:
    job = launch.jobs[name]
    if way is Way.RESUME:
        job = {**job, "wait_for_devices": True}
    offset = run.journal_size(name)
    return HostTask(
        spec=launch.hosts[name],
        run_id=run.run_id,
        job=job,
        tree=tree,
        items=partial(_hand, launch, fold, name, placement),
        sealed=launch.hands is not None,
        secrets=secrets,
        offset=offset,
        before=run.journal_end(name, BEFORE_BYTES),
        base=fold.host(name).base if offset else 0,
        begun=way is not Way.START,
        first=way is Way.START,
        follow_only=not way.launches,
        eager=way is Way.RESUME,
        at_end=partial(bring_collected, run, name) if collects(job) else None,
    )


def _hand(launch: Launch, fold: Fold, host: str, placement: str) -> Sequence[Mapping[str, Any]]:
    """The cases a host is launched with, without what is known to be measured there (its own journal may be lost).

    Where a case is measured on each of several devices, or models of them, the host's own journal has to tell."""
    models = {device.model for device in fold.host(host).devices}
    several = placement == "replicate_devices" or len(models) > 1
    measured: Mapping[str, set[str]] = {} if several else fold.measured(host)
    return [_left(item, measured.get(item["case_id"], set())) for item in launch.hand(host)]


def _left(item: Mapping[str, Any], measured: set[str]) -> Mapping[str, Any]:
    return {**item, "done": [b for b in item["backends"] if b in measured]} if measured else item


def _found_useless(run: OpenRun, document: RunDocument) -> dict[str, HostView]:
    """Hosts that could not be used when the run began: it goes on without them until it is resumed."""
    bad = (HostPhase.UNREACHABLE, HostPhase.REFUSED, HostPhase.UNUSABLE)
    return {
        name: HostView(name, HostPhase(host.state), host.error)
        for name, host in document.hosts.items()
        if host.state in bad and not run.journal_size(name)
    }
