"""How a run stands when nobody follows it any more: left as it is, or committed with its gaps filled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from orchestrator.archive import OpenRun, RunDocument, expected, expected_total, read_document
from orchestrator.events import Expected, Fold, missing
from orchestrator.model import Measurement, Status
from orchestrator.run import record
from orchestrator.run.news import HostPhase
from orchestrator.run.observer import HostView


@dataclass(frozen=True)
class Outcome:
    """A run as it stands: what `run`, `attach` and `resume` print. Until it is `committed`, results may still come."""

    run_id: str
    state: str
    archive: str
    counts: Mapping[str, int]
    verdicts: Mapping[str, int]
    hosts: Mapping[str, tuple[str, str | None]]
    committed: bool

    def to_json(self) -> dict[str, Any]:
        """The document of `--json`."""
        return {
            "run_id": self.run_id,
            "state": self.state,
            "archive": self.archive,
            "counts": dict(self.counts),
            "verdicts": dict(self.verdicts),
            "hosts": {name: {"state": state, "error": error} for name, (state, error) in self.hosts.items()},
        }


def outcome(run: OpenRun, fold: Fold, views: Mapping[str, HostView], *, state: str) -> Outcome:
    """The run as it stands now, still open."""
    counts = fold.counts()
    return Outcome(
        run_id=run.folder.run_id,
        state=state,
        archive=str(run.folder.path),
        counts=counts.statuses,
        verdicts=counts.verdicts,
        hosts=_words(views),
        committed=False,
    )


def conclude(
    run: OpenRun,
    fold: Fold,
    views: Mapping[str, HostView],
    *,
    clock_offsets: Mapping[str, float],
    cancelled: bool = False,
    forget: bool = False,
    now_s: float,
) -> Outcome:
    """End a run whose hosts are all done: fill the gaps, commit it, and say how it stands.

    A run that lacks results of a host which may have its part of it, and did not end in order, stays open: what that
    host measured meanwhile can still come home, and `resume` measures the rest. A host that could not be used from the
    start does not hold it open. `cancelled` ends it, unless a host that may have results was not heard, and we are not to
    `forget` them."""
    document = run.document()
    states = _words(views)
    cancelled = cancelled or any(view.ended == "cancelled" for view in views.values())
    lacking = gaps(document, fold, states, Status.CANCELLED if cancelled else Status.LOST)
    told = record.host_records(fold, states, clock_offsets)
    hosts = {name: {**host, "begun": views[name].begun} for name, host in told.items()}
    if cancelled:
        waits = not forget and any(_unheard(view) for view in views.values())
    else:
        waits = any(_may_still_come(fold, view) for view in views.values())
    if lacking and waits:
        run.update_run_document({"hosts": hosts, "state": "lost"})
        return replace(outcome(run, fold, views, state="lost"), counts=with_gaps(fold, len(lacking)))
    usable = any(state == "ok" for state, _ in states.values())
    complete = cancelled and not lacking  # there was nothing left to cancel
    state = "finished" if complete else "cancelled" if cancelled else "finished" if usable else "lost"
    folder = run.commit(
        chain(run.measurements(fold), lacking),
        state,
        ended_at=record.utc(now_s),
        changes={
            "hosts": hosts,
            "environments": fold.environments,
            "plan": {"expected": expected_total(document, fold)},
        },
    )
    final = read_document(folder.run_json)
    return Outcome(
        folder.run_id, state, str(folder.path), final.counts, final.verdicts, states, committed=True
    )


def with_gaps(fold: Fold, gaps: int) -> dict[str, int]:
    """The counts of a run that is open and goes on nowhere: what is missing counts as lost."""
    counts = dict(fold.counts().statuses)
    return {**counts, "lost": counts.get("lost", 0) + gaps} if gaps else counts


def _may_still_come(fold: Fold, view: HostView) -> bool:
    gave_up = view.phase is HostPhase.UNUSABLE and view.ended == "finished"
    from_the_start = not +fold.host(view.name).statuses
    return view.begun and view.phase is not HostPhase.OK and not (gave_up and from_the_start)


def _unheard(view: HostView) -> bool:
    """Whether a host that may have its part has not said how it ended."""
    silent = (HostPhase.LOST, HostPhase.UNREACHABLE, HostPhase.RECONNECTING, HostPhase.REFUSED)
    return view.begun and view.ended is None and view.phase in silent


def _words(views: Mapping[str, HostView]) -> dict[str, tuple[str, str | None]]:
    """The states of `--json`: a host that is still at work is `ok`, one that nobody waits for any more is `lost`."""
    words: dict[str, tuple[str, str | None]] = {}
    for name, view in views.items():
        if view.overdue:
            words[name] = (str(HostPhase.LOST), f"{name}: {view.detail}")
        elif view.phase.final and view.phase is not HostPhase.OK:
            words[name] = (str(view.phase), view.detail)
        else:
            words[name] = (str(HostPhase.OK), None)
    return words


def gaps(
    document: RunDocument,
    fold: Fold,
    states: Mapping[str, tuple[str, str | None]] | None = None,
    status: Status = Status.LOST,
) -> list[Measurement]:
    """Records for what was planned and has no result; `states` are (state, error) of hosts, for the reasons."""
    known = states or {}

    def reason(item: Expected) -> str:
        state, error = known.get(item.host, ("ok", None))
        if status is Status.CANCELLED and state != "ok":
            return "the run was cancelled while the host could not be asked what it had measured"
        if status is Status.CANCELLED:
            return "the run was cancelled before this was measured"
        return f"host {state}: {error}" if state != "ok" else "the host ended without this measurement"

    wanted = expected(document, fold)
    return list(missing(wanted, fold, run_id=document.run_id, status=status, reason=reason))
