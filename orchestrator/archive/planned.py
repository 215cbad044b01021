"""What the plan of a run asks for, as far as the hosts' devices are known by now."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.archive.document import RunDocument
from orchestrator.events import Expected, Fold
from orchestrator.model import Case, Device


def expected(document: RunDocument, fold: Fold) -> Iterator[Expected]:
    """Every measurement that the plan asks for, as far as the hosts' devices are known by now."""
    cases = {
        c.id: (
            Case(case_id=c.id, label=c.label, payload=c.payload, params=c.params),
            c.backends or document.plan.backends,
        )
        for c in document.plan.cases
    }
    if document.placement == "shard":
        models = sorted({d.model for state in fold.hosts.values() for d in state.devices})
        first_host = {p.case: p.host for p in reversed(document.plan.placements)}
        for case_id, (case, backends) in cases.items():
            for model in models or [""]:
                for backend in backends:
                    yield Expected(
                        case, backend, first_host.get(case_id, ""), models=(model,) if model else ()
                    )
        return
    everywhere = ((case_id, host, ()) for host in document.hosts for case_id in cases)
    listed = ((p.case, p.host, p.backends) for p in document.plan.placements if p.case in cases)
    for case_id, host, only in listed if document.plan.placements else everywhere:
        case, backends = cases[case_id]
        devices: tuple[Device | None, ...] = (None,)
        if document.placement == "replicate_devices":
            devices = fold.host(host).devices or (None,)
        for device in devices:
            for backend in only or backends:
                yield Expected(case, backend, host, device)


def expected_total(document: RunDocument, fold: Fold) -> int:
    """How many measurements the run comes to, rows beyond those asked for among them."""
    asked = document.plan.expected
    return (sum(1 for _ in expected(document, fold)) if asked is None else asked) + fold.surplus


def known_total(document: RunDocument, fold: Fold) -> int | None:
    """That of an open run; None as long as a host on whose devices it depends has not told them."""
    known = document.plan.expected is not None or document.placement == "replicate"
    if not known and any(_may_still_tell(document, fold, host) for host in document.hosts):
        return None
    return expected_total(document, fold)


def _may_still_tell(document: RunDocument, fold: Fold, host: str) -> bool:
    told = fold.hosts.get(host)
    return document.hosts[host].state in (None, "ok") and not (told and told.devices)
