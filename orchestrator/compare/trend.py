"""How the time of a case went from run to run, and where it changed for good."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import exp, log

from orchestrator.archive import Archive
from orchestrator.compare.reading import read_cases, read_past
from orchestrator.compare.values import PastTime, Subject
from orchestrator.errors import NothingToDo
from orchestrator.statistics import MAD_TO_DEVIATION, segments

NEWEST_RUNS = 400


@dataclass(frozen=True)
class Change:
    """A lasting change: from `run_id` on the level was `after_us`. `change` is a fraction, 0.1 more time."""

    run_id: str
    started_at: str | None
    before_us: float
    after_us: float

    @property
    def change(self) -> float:
        """What the level changed by, as a fraction."""
        return self.after_us / self.before_us - 1


@dataclass(frozen=True)
class Series:
    """One subject on one device, oldest first. `level_us` is the median since the last change, `spread` the usual
    deviation from the level as a fraction (None for fewer than three runs)."""

    subject: Subject
    label: str
    payload: str
    host: str
    device_uuid: str
    points: tuple[PastTime, ...]
    changes: tuple[Change, ...]
    level_us: float
    spread: float | None


@dataclass(frozen=True)
class History:
    """Every series that was asked for."""

    series: tuple[Series, ...]
    warnings: tuple[str, ...] = ()


def history(archive: Archive, case: str, *, backend: str | None = None) -> History:
    """The series of the cases whose id, or label, is or matches the glob `case`, of all backends or one.

    Of each series the newest 400 runs. Raises `NothingToDo` when no run has a time of such a case.
    """
    timed = read_cases(archive)
    found = {
        case_id
        for case_id, label in timed
        if case in (case_id, label) or fnmatchcase(case_id, case) or fnmatchcase(label, case)
    }
    past = read_past(archive, case_ids=sorted(found), newest=NEWEST_RUNS)
    backends = sorted({time.subject.backend for time in past.times})
    chosen = [time for time in past.times if backend in (None, time.subject.backend)]
    if not past.times:
        raise NothingToDo(f"no run in {archive.name} has a time of a case {case!r}{_hint(timed, found)}")
    if not chosen:
        raise NothingToDo(
            f"no run in {archive.name} has a time of a case {case!r} with the backend {backend}; "
            f"there are {', '.join(backends)}"
        )
    return History(series_of(chosen), past.warnings)


def _hint(timed: Sequence[tuple[str, str]], found: Collection[str]) -> str:
    if found:
        return " that counts: what was measured of it is `invalid` (`farbench report RUN` says why)"
    labels = list(dict.fromkeys(label for _, label in timed))
    more = ", …" if len(labels) > 5 else ""
    return f"; cases with times are {', '.join(map(repr, labels[:5]))}{more}" if labels else ""


def series_of(times: Iterable[PastTime]) -> tuple[Series, ...]:
    """Times of earlier runs, oldest first, as series by subject and device."""
    found: dict[tuple[Subject, str, str], list[PastTime]] = {}
    for time in times:
        found.setdefault((time.subject, time.host, time.device_uuid), []).append(time)
    return tuple(_series(*key, points) for key, points in found.items())


def _series(subject: Subject, host: str, device_uuid: str, points: list[PastTime]) -> Series:
    values = [log(point.median_us) for point in points]
    parts = segments(values)
    levels = [statistics.median(values[part]) for part in parts]
    changes = [
        Change(points[part.start].run_id, points[part.start].started_at, exp(before), exp(after))
        for part, before, after in zip(parts[1:], levels, levels[1:], strict=False)
    ]
    deviations = [abs(v - level) for part, level in zip(parts, levels, strict=True) for v in values[part]]
    return Series(
        subject=subject,
        label=points[-1].label,
        payload=points[-1].payload,
        host=host,
        device_uuid=device_uuid,
        points=tuple(points),
        changes=tuple(changes),
        level_us=exp(levels[-1]),
        spread=MAD_TO_DEVIATION * statistics.median(deviations) if len(points) > 2 else None,
    )
