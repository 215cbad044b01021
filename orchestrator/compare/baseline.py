"""What stands for a side that is no run: the level that earlier runs had reached."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from math import exp, log

from orchestrator.compare.pairing import objection, subject_of, timed
from orchestrator.compare.values import LeftOut, Match, PastTime, Subject, Timed
from orchestrator.identity import canonical_row
from orchestrator.model import Measurement
from orchestrator.statistics import segments

NAME = "history"


def match_with_history(
    measurements: Iterable[Measurement], past: Sequence[PastTime]
) -> tuple[tuple[Match, ...], tuple[LeftOut, ...]]:
    """Pair each measurement (as B) with the level of the earlier runs on its device, else its host, else any.

    The level is the median since the last change (`statistics.segments`): what changed for good is the new normal.
    """
    known: dict[Subject, list[PastTime]] = {}
    for time in past:
        known.setdefault(time.subject, []).append(time)
    matches, left_out = [], []
    for measurement in measurements:
        word = objection(measurement)
        if word is None:
            subject, side = subject_of(measurement), timed(measurement)
            nearest = _nearest(known.get(subject, ()), side)
            if nearest:
                level = _level(nearest)
                matches.append(Match(subject, measurement.label, measurement.payload, level, side))
                continue
            word = "no earlier run has a time of this"
        left_out.append(
            LeftOut(
                case_id=measurement.case_id,
                label=measurement.label,
                payload=measurement.payload,
                row=canonical_row(measurement.row),
                backend=measurement.backend,
                a="",
                b="" if objection(measurement) is None else word,
                why=word,
            )
        )
    return tuple(matches), tuple(left_out)


def _nearest(times: Sequence[PastTime], side: Timed) -> Sequence[PastTime]:
    """The times of the same device; without any those of the host's device that was measured last, else of any."""
    own = [t for t in times if (t.host, t.device_uuid) == (side.host, side.device_uuid)]
    if own:
        return own
    near = [t for t in times if t.host == side.host] or list(times)
    return [t for t in near if (t.host, t.device_uuid) == (near[-1].host, near[-1].device_uuid)]


def _level(times: Sequence[PastTime]) -> Timed:
    values = [log(time.median_us) for time in times]
    last = values[segments(values)[-1]]
    newest = times[-1]
    return Timed(
        run_id=NAME,
        host=newest.host,
        device_uuid=newest.device_uuid,
        median_us=exp(statistics.median(last)),
        runs=len(last),
    )
