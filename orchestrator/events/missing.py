"""Records for what was planned but never measured, so that no gap of a run goes unseen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from orchestrator import identity
from orchestrator.events.fold import Fold
from orchestrator.model import Case, Device, Measurement, Status


@dataclass(frozen=True)
class Expected:
    """A measurement the plan asks for. Under `shard` any host's counts, if its device is one of `models`
    (none named: any); under `replicate` only `host`'s; under `replicate_devices` only `device`'s, where given."""

    case: Case
    backend: str
    host: str
    device: Device | None = None
    models: tuple[str, ...] = ()


def missing(
    expected: Iterable[Expected],
    fold: Fold,
    *,
    run_id: str,
    status: Status,
    reason: str | Callable[[Expected], str],
) -> Iterator[Measurement]:
    """A `lost` or `cancelled` record for each expected measurement that no journal holds, in the order given."""
    for item in lacking(expected, fold):
        told = reason if isinstance(reason, str) else reason(item)
        yield as_record(item, run_id=run_id, status=status, reason=told)


def lacking(expected: Iterable[Expected], fold: Fold) -> Iterator[Expected]:
    """What of it no journal holds."""
    scopes: dict[tuple[str, str], set[str]] = {}
    for key in fold.entries:
        scopes.setdefault((key.case_id, key.backend), set()).add(key.scope)
    for asked, answered in fold.answered.items():  # a program may name the backends of its rows itself
        scopes.setdefault(asked, set()).update(answered)
    for item in expected:
        if not _held(item, scopes.get((item.case.case_id, item.backend), set()), fold.placement):
            yield item


def as_record(item: Expected, *, run_id: str, status: Status, reason: str) -> Measurement:
    """The record of a measurement that has no result."""
    return Measurement(
        run_id=run_id,
        host=item.host,
        device=item.device,
        case_id=item.case.case_id,
        label=item.case.label,
        payload=item.case.payload,
        params=dict(item.case.params),
        backend=item.backend,
        status=status,
        reason=reason,
    )


def _held(item: Expected, scopes: set[str], placement: str) -> bool:
    if placement == "replicate":
        return item.host in scopes
    if placement == "replicate_devices":
        if item.device is not None:
            return identity.scope(placement, item.host, item.device.uuid, item.device.model) in scopes
        return any(identity.host_of(scope) == item.host for scope in scopes)
    models = set(item.models) or ({item.device.model} if item.device else set())
    return bool(scopes & models) if models else bool(scopes)
