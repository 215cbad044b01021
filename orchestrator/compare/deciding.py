"""From matched times to what may be said of them.

Every difference has a p-value from its noise (`weighing`); all of them go through Holm's procedure together, and one
that passes, and is larger than the host's freak runs, is a change. The least one that would have passed is the floor.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log1p, sqrt

from orchestrator.compare.floors import NoiseOfHosts
from orchestrator.compare.values import EXPLAINED, Match, Outcome, Pair, Timed
from orchestrator.compare.weighing import Weighed, weigh
from orchestrator.statistics import Decision, holm

FALSE_CALLS = 0.005
"""Chance of calling any change in a table in which nothing changed: half of the 1% that is promised."""
WIDEST_SAME = 0.10
"""What may have changed by more than this is not called the same, unless a threshold asks for no better."""
FREAKS_NOISE = 2.0
"""A freak run has the usual noise too: so many standard deviations stand beside it."""
CLOCKS_DIFFER = 0.02


def decide(matches: Sequence[Match], hosts: NoiseOfHosts, threshold: float | None = None) -> tuple[Pair, ...]:
    """Judge all matches of a comparison, in their order. `threshold` is the least change of interest, a fraction."""
    weighed = [weigh(match, hosts, len(matches)) for match in matches]
    decisions = iter(holm([one.p_value for one in weighed if one], FALSE_CALLS))
    return tuple(
        _unknown(match) if one is None else _judge(match, one, next(decisions), threshold)
        for match, one in zip(matches, weighed, strict=True)
    )


def _unknown(match: Match) -> Pair:
    return Pair(
        match=match,
        outcome=Outcome.UNCLEAR,
        why="too few samples and no earlier runs: nothing says how noisy this is",
        change=match.b.median_us / match.a.median_us - 1,
        notes=_notes(match),
    )


def _judge(match: Match, weighed: Weighed, decision: Decision, threshold: float | None) -> Pair:
    least = weighed.least(decision.level)
    freak = weighed.worst_case + FREAKS_NOISE * sqrt(weighed.noise.variance) if weighed.worst_case else 0.0
    floor = max(least, freak, log1p(threshold or 0.0))
    by_freaks = weighed.source != "samples" and floor == freak
    outcome, why = _outcome(match, weighed, decision, floor, threshold)
    low, high = weighed.interval
    return Pair(
        match=match,
        outcome=outcome,
        why=why,
        change=_fraction(weighed.difference),
        low=_fraction(low),
        high=_fraction(high),
        floor=_fraction(floor),
        p_value=weighed.p_value,
        noise=weighed.source,
        noise_runs=weighed.runs,
        freaks=by_freaks,
        notes=_notes(match),
    )


def _outcome(
    match: Match, weighed: Weighed, decision: Decision, floor: float, threshold: float | None
) -> tuple[Outcome, str]:
    low, high = weighed.interval
    is_sure = decision.rejected and (low > 0 or high < 0)
    if is_sure and abs(weighed.difference) >= floor:
        outcome, slow = (Outcome.SLOWER, match.b) if weighed.difference > 0 else (Outcome.FASTER, match.a)
        cause = ", ".join(reason for reason in slow.reasons if reason in EXPLAINED)
        if cause:
            return Outcome.UNCLEAR, f"the slower side was {cause}"
        return outcome, ""
    margin = log1p(threshold) if threshold is not None else min(floor, log1p(WIDEST_SAME))
    if -margin <= low and high <= margin and (low <= 0 <= high or threshold is not None):
        return Outcome.SAME, ""
    if abs(weighed.difference) < floor:
        return Outcome.UNCLEAR, "may be noise and may be a change: too small to be told from noise here"
    return Outcome.UNCLEAR, "may be noise and may be a change"


def _fraction(difference: float) -> float:
    """A difference of log times as a fraction more or less."""
    return exp(difference) - 1


def _notes(match: Match) -> tuple[str, ...]:
    a, b = match.a, match.b
    notes = []
    if a.host != b.host and "" not in (a.host, b.host):
        notes.append(f"host {a.host} → {b.host}")
    elif a.device_uuid != b.device_uuid:
        notes.append("another device of the host")
    notes += [f"{name} suspect{_because(side)}" for name, side in (("A", a), ("B", b)) if not side.is_valid]
    if a.sm_clock_mhz and b.sm_clock_mhz and abs(b.sm_clock_mhz / a.sm_clock_mhz - 1) > CLOCKS_DIFFER:
        notes.append(f"SM clock {a.sm_clock_mhz:.0f} → {b.sm_clock_mhz:.0f} MHz")
    return tuple(notes)


def _because(side: Timed) -> str:
    return f": {', '.join(side.reasons)}" if side.reasons else ""
