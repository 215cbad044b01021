"""What is not the same on both sides: software, driver, clocks. It is told, and leaves no pair out."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.compare.deciding import CLOCKS_DIFFER
from orchestrator.compare.values import Difference, Pair

_UNINTERESTING = {"python_executable"}
"""A path of a machine, which no time depends on."""

Environments = Mapping[str, Mapping[str, Any]]


def differences(
    pairs: Iterable[Pair],
    a: Environments,
    b: Environments,
    versions_a: Mapping[str, Any],
    versions_b: Mapping[str, Any],
) -> tuple[Difference, ...]:
    """What differs between the environments of the pairs, host by host, and between the controllers.

    `a` and `b` are the runs' environments by id, the versions those of the controllers. Clocks are medians over a
    host's pairs, told apart from 2% on.
    """
    found = list(_facts("controller", versions_a, versions_b))
    by_place: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs:
        by_place.setdefault((pair.match.a.host, pair.match.b.host), []).append(pair)
    for (host_a, host_b), members in by_place.items():
        where = host_b if host_a == host_b else f"{host_a} → {host_b}"
        used_a = _used(a, (pair.match.a.environment_id for pair in members))
        used_b = _used(b, (pair.match.b.environment_id for pair in members))
        if used_a and used_b:
            found += _facts(where, used_a, used_b)
        found += _clocks(where, members)
    return tuple(found)


def _used(environments: Environments, ids: Iterable[str | None]) -> dict[str, Any]:
    """All facts of the environments that were used, flat; where several have a fact, what each says."""
    facts: dict[str, Any] = {}
    for identifier in dict.fromkeys(ids):
        for name, value in _flat(environments.get(identifier or "", {})).items():
            known = facts.get(name)
            if known is None or known == value:
                facts[name] = value
            elif value not in known.split(" / "):
                facts[name] = f"{known} / {value}"
    return facts


def _flat(facts: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in facts.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        elif name not in _UNINTERESTING and value is not None:
            flat[f"{prefix}{name}"] = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return flat


def _facts(where: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterable[Difference]:
    ours, theirs = _flat(a), _flat(b)
    if not ours or not theirs:
        return
    for name in [*ours, *(n for n in theirs if n not in ours)]:
        if ours.get(name) != theirs.get(name):
            yield Difference(where, name, ours.get(name, "none"), theirs.get(name, "none"))


def _clocks(where: str, pairs: Iterable[Pair]) -> Iterable[Difference]:
    both = [(p.match.a.sm_clock_mhz, p.match.b.sm_clock_mhz) for p in pairs]
    known = [(one, other) for one, other in both if one and other]
    if not known:
        return
    one, other = (statistics.median(side) for side in zip(*known, strict=True))
    if abs(other / one - 1) > CLOCKS_DIFFER:
        yield Difference(where, "SM clock", f"{one:.0f} MHz", f"{other:.0f} MHz")
