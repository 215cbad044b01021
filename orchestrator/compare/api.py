"""Comparing two runs of an archive, or two lists of measurements."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from orchestrator.archive import Archive, RunFolder
from orchestrator.archive.notes import with_tag
from orchestrator.compare import baseline
from orchestrator.compare.deciding import decide
from orchestrator.compare.environments import differences
from orchestrator.compare.floors import NoiseOfHosts
from orchestrator.compare.pairing import match_all
from orchestrator.compare.reading import Past, Side, read_past, read_side
from orchestrator.compare.values import Comparison, Difference, PastTime, SideLine, tally
from orchestrator.errors import ArchiveError, UsageError
from orchestrator.model import Measurement

BASELINE = "baseline"
HISTORY = baseline.NAME


def compare(archive: Archive, a: str, b: str, *, threshold: float | None = None) -> Comparison:
    """Compare two runs: what b's times are of a's.

    `a` and `b` are run ids, unique beginnings of one, or `latest`; one of them may be `baseline` (the newest run with
    that tag) or `history` (the level of the earlier runs), and is then `a`, whichever way round they are given.
    `threshold` is the least change of interest as a fraction. Raises `ArchiveError` and `UsageError`.
    """
    if threshold is not None and not 0 <= threshold < 10:
        raise UsageError(f"a threshold of {100 * threshold:g}% makes no sense; give 0 to 1000")
    if b in (BASELINE, HISTORY):
        a, b = b, a
    if b in (BASELINE, HISTORY):
        raise UsageError(f"one of the two must be a run, not {a} and {b}")
    newer = read_side(archive, archive.find(b))
    if a == HISTORY:
        return _with_history(archive, newer, threshold)
    older = read_side(archive, _baseline(archive, newer.run_id) if a == BASELINE else archive.find(a))
    if older.run_id == newer.run_id:
        raise UsageError(f"both are run {newer.run_id}: a run cannot be compared with itself")
    past = _past(archive, (older, newer))
    found = compare_measurements(older.measurements, newer.measurements, past=past.times, threshold=threshold)
    return _with_names(found, _line(older, "run"), newer, past, older)


def compare_measurements(
    a: Iterable[Measurement],
    b: Iterable[Measurement],
    *,
    past: Sequence[PastTime] = (),
    threshold: float | None = None,
) -> Comparison:
    """Compare two lists of measurements; `past` are times of earlier runs, oldest first, that tell the noise."""
    matches, left_out = match_all(a, b)
    pairs = decide(matches, NoiseOfHosts(past), threshold)
    return Comparison(
        a=SideLine("measurements", "A"),
        b=SideLine("measurements", "B"),
        threshold=threshold,
        pairs=pairs,
        left_out=left_out,
        counts=tally(pairs),
    )


def _with_history(archive: Archive, newer: Side, threshold: float | None) -> Comparison:
    past = _past(archive, (newer,))
    matches, left_out = baseline.match_with_history(newer.measurements, past.times)
    pairs = decide(matches, NoiseOfHosts(past.times), threshold)
    runs = len({time.run_id for time in past.times})
    line = SideLine(HISTORY, f"{runs} earlier run{'' if runs == 1 else 's'}")
    found = Comparison(line, line, threshold, pairs, left_out, counts=tally(pairs))
    return _with_names(found, line, newer, past, None)


def _with_names(found: Comparison, line: SideLine, newer: Side, past: Past, older: Side | None) -> Comparison:
    told: tuple[Difference, ...] = ()
    if older is not None:
        ours, theirs = older.document, newer.document
        told = differences(
            found.pairs, ours.environments, theirs.environments, ours.versions, theirs.versions
        )
    return Comparison(
        a=line,
        b=_line(newer, "run"),
        threshold=found.threshold,
        pairs=found.pairs,
        left_out=found.left_out,
        differences=told,
        warnings=past.warnings,
        counts=found.counts,
    )


def _baseline(archive: Archive, newer: str) -> RunFolder:
    for run_id in with_tag(archive, BASELINE):
        if run_id != newer:
            return archive.find(run_id)
    raise ArchiveError(
        "no other run has the tag `baseline`: tag one with `farbench runs RUN --add-tag baseline`, or compare with `history`, "
        "the level of all earlier runs"
    )


def _past(archive: Archive, sides: Sequence[Side]) -> Past:
    """Earlier times of the cases of the sides: from before the newer one, and of neither."""
    cases: Collection[str] = {m.case_id for side in sides for m in side.measurements}
    if not cases:
        return Past()
    run_ids = [side.run_id for side in sides]
    return read_past(archive, case_ids=sorted(cases), before=max(run_ids), without=run_ids)


def _line(side: Side, kind: str) -> SideLine:
    return SideLine(kind, side.run_id, side.document.sweep.name, side.document.started_at)
