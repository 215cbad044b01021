"""Which times are of the same thing, and why the others are not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

from orchestrator.compare.values import LeftOut, Match, Subject, Timed
from orchestrator.identity import canonical_row
from orchestrator.model import Measurement, Status, Verdict

_REASON_LENGTH = 200
_Identity = tuple[str, str, str]


def objection(measurement: Measurement) -> str | None:
    """Why a measurement has no time that could be compared, in words; None if it has one."""
    if measurement.status is not Status.OK:
        return _with_reason(measurement.status.value, measurement.reason)
    if measurement.timing is None:
        return "ok, but without a time"
    median_us = measurement.timing.median_us
    if math.isnan(median_us):
        return "its time is not a number"
    if math.isinf(median_us):
        return "its time is not finite"
    if median_us <= 0:
        return "its time is zero" if median_us == 0 else "its time is negative"
    if measurement.verdict is Verdict.INVALID:
        return _with_reason("invalid", ", ".join(measurement.reasons) or measurement.reason)
    return None


def subject_of(measurement: Measurement) -> Subject:
    """What a measurement that has a time is compared by."""
    assert measurement.timing is not None, "only a time has a subject"
    return Subject(
        case_id=measurement.case_id,
        row=canonical_row(measurement.row),
        backend=measurement.backend,
        device_model=measurement.hardware,
        cache=measurement.timing.cache,
        timer=measurement.timing.timer,
    )


def timed(measurement: Measurement) -> Timed:
    """The side of a pair that a measurement without an `objection` is."""
    assert measurement.timing is not None, "only a time can be a side"
    return Timed(
        run_id=measurement.run_id,
        host=measurement.host,
        device_uuid=measurement.device.uuid if measurement.device else "",
        median_us=measurement.timing.median_us,
        is_valid=measurement.verdict is Verdict.VALID,
        reasons=tuple(measurement.reasons),
        samples_us=tuple(measurement.samples_us or ()),
        sm_clock_mhz=measurement.telemetry.sm_clock_mhz if measurement.telemetry else None,
        environment_id=measurement.environment_id,
    )


def match_all(
    a: Iterable[Measurement], b: Iterable[Measurement]
) -> tuple[tuple[Match, ...], tuple[LeftOut, ...]]:
    """Pair the measurements of two runs, in the order of `b`.

    Where several devices of one model measured the same, each is paired with itself if it is on both sides, else with
    one of its host, else with any.
    """
    ours, theirs = _by_identity(a), _by_identity(b)
    matches: list[Match] = []
    left_out: list[LeftOut] = []
    for identity in [*theirs, *(i for i in ours if i not in theirs)]:
        found, left_a, left_b = _match_one(ours.get(identity, []), theirs.get(identity, []))
        matches += found
        left_out += [_left_out(one, other) for one, other in zip_longest(left_a, left_b)]
    return tuple(matches), tuple(left_out)


def _by_identity(measurements: Iterable[Measurement]) -> Mapping[_Identity, list[Measurement]]:
    found: dict[_Identity, list[Measurement]] = {}
    for measurement in measurements:
        identity = (measurement.case_id, canonical_row(measurement.row), measurement.backend)
        found.setdefault(identity, []).append(measurement)
    return found


def _match_one(
    ours: Sequence[Measurement], theirs: Sequence[Measurement]
) -> tuple[list[Match], list[Measurement], list[Measurement]]:
    left_a, left_b = list(ours), list(theirs)
    matches = []
    for is_near in (_same_device, _same_host, lambda one, other: True):
        for one in list(left_a):
            if objection(one) is not None:
                continue
            subject = subject_of(one)
            for other in left_b:
                if objection(other) is None and subject_of(other) == subject and is_near(one, other):
                    matches.append(Match(subject, other.label, other.payload, timed(one), timed(other)))
                    left_a.remove(one)
                    left_b.remove(other)
                    break
    return matches, left_a, left_b


def _same_device(one: Measurement, other: Measurement) -> bool:
    return _same_host(one, other) and _uuid(one) == _uuid(other)


def _same_host(one: Measurement, other: Measurement) -> bool:
    return one.host == other.host


def _uuid(measurement: Measurement) -> str:
    return measurement.device.uuid if measurement.device else ""


def _left_out(a: Measurement | None, b: Measurement | None) -> LeftOut:
    known = b or a
    assert known is not None, "at least one side has something"
    said_a, said_b = _said(a), _said(b)
    return LeftOut(
        case_id=known.case_id,
        label=known.label,
        payload=known.payload,
        row=canonical_row(known.row),
        backend=known.backend,
        a=said_a,
        b=said_b,
        why=_why(a, b),
    )


def _said(measurement: Measurement | None) -> str:
    if measurement is None:
        return "not measured"
    word = objection(measurement)
    if word is not None or measurement.timing is None:
        return word or "no time"
    return f"{measurement.timing.median_us:.4g} µs"


def _why(a: Measurement | None, b: Measurement | None) -> str:
    objections = [
        f"{side}: {_said(m)}" for side, m in (("A", a), ("B", b)) if m is None or objection(m) is not None
    ]
    if objections or a is None or b is None:
        return "; ".join(objections)
    one, other = subject_of(a), subject_of(b)
    return "; ".join(
        f"{what} {getattr(one, name) or 'unknown'} in A, {getattr(other, name) or 'unknown'} in B"
        for name, what in (("device_model", "device"), ("cache", "cache"), ("timer", "timer"))
        if getattr(one, name) != getattr(other, name)
    )


def _with_reason(word: str, reason: str | None) -> str:
    first = (reason or "").strip().split("\n", 1)[0]
    if not first:
        return word
    return f"{word}: {first if len(first) <= _REASON_LENGTH else first[: _REASON_LENGTH - 1] + '…'}"
