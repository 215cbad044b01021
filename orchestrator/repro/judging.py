"""Whether a number came back: the second measurement held against the first, as two runs are compared."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.compare.deciding import decide
from orchestrator.compare.floors import NoiseOfHosts
from orchestrator.compare.pairing import objection, subject_of, timed
from orchestrator.compare.values import Match, Outcome, PastTime
from orchestrator.model import Measurement, Status
from orchestrator.wording import number, visible

AS_A_RULE = {"graph": 0.02, "cupti": 0.02, "events": 0.04, "host": 0.10}
"""By timer, twice the usual deviation between two runs of the same thing. It decides only where too little is known of the
host to call a change at all."""
AS_A_RULE_OF_PROGRAMS = 0.20
"""How a program took the time that it prints is not known."""


@dataclass(frozen=True)
class Judgement:
    """`came_back` is None where it cannot be said; `change` is the second time over the first less one, and `floor` the
    least change that could have been called one there, both as fractions."""

    came_back: bool | None
    text: str
    change: float | None = None
    floor: float | None = None


def judge(before: Measurement, now: Measurement, past: Iterable[PastTime] = ()) -> Judgement:
    """Compare what was measured with what was measured again. `past` are earlier times of the host, oldest first: what
    its noise is known from."""
    if before.status is not Status.OK:
        same = now.status is before.status
        reason = f": {visible(now.reason, 300)}" if now.reason else ""
        return Judgement(
            same, f"it was {before.status}, and {'is again' if same else f'is now {now.status}'}{reason}"
        )
    if now.status is not Status.OK:
        return Judgement(
            False, f"it was ok, and is now {now.status}: {visible(now.reason or 'no reason given', 300)}"
        )
    for when, measurement in (("the first time", before), ("now", now)):
        why = objection(measurement)
        if why:
            return Judgement(None, f"{when}: {visible(why)}")
    subject, subject_now = subject_of(before), subject_of(now)
    if subject != subject_now:
        return Judgement(
            None,
            f"not the same thing: {_described(subject.timer, subject.cache, subject.device_model)} then, "
            f"{_described(subject_now.timer, subject_now.cache, subject_now.device_model)} now",
        )
    match = Match(subject, before.label, before.payload, timed(before), timed(now))
    (pair,) = decide([match], NoiseOfHosts(past))
    numbers = (
        f"{number(match.a.median_us)} µs then, {number(match.b.median_us)} µs now ({100 * pair.change:+.2f}%)"
    )
    if pair.floor is not None:
        numbers += f"; changes below {100 * pair.floor:.2f}% are noise there"
    came_back = {Outcome.SAME: True, Outcome.FASTER: False, Outcome.SLOWER: False}.get(pair.outcome)
    why = f": {pair.why}" if came_back is None and pair.why else ""
    usual = AS_A_RULE.get(subject.timer, AS_A_RULE_OF_PROGRAMS)
    if came_back is None and abs(math.log1p(pair.change)) <= usual:
        came_back, why = True, f", and two runs of nothing changed differ by {100 * usual:.0f}% as a rule"
    return Judgement(came_back, visible(numbers + why, 600), pair.change, pair.floor)


def _described(timer: str, cache: str | None, model: str) -> str:
    return f"timer {timer}, cache {cache or 'unknown'}, {model or 'no device'}"
