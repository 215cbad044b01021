"""The words of a comparison that its table, its Markdown and its JUnit file share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from orchestrator.compare.values import Comparison, LeftOut, Match, Outcome, Pair, SideLine, Subject
from orchestrator.wording import number, visible

LABEL_LENGTH = 120
COLUMNS = ("case", "backend", "A, µs", "B, µs", "change", "95% interval", "floor", "verdict")
NUMERIC = (2, 3, 4, 5, 6)
ORDER = {Outcome.SLOWER: 0, Outcome.FASTER: 1, Outcome.UNCLEAR: 2, Outcome.SAME: 3}
_SOURCES = {
    "history": "earlier runs of the same measurement",
    "host": "earlier runs of other measurements on the host",
    "samples": "the samples of the two runs, and what is usual for the timer (there are too few earlier runs)",
}


def percent(value: float | None, *, signed: bool = True) -> str:
    """A fraction as per cent with three significant digits, or what it is times: `+1.25%`, `-12.3%`, `12×`."""
    if value is None:
        return ""
    if value >= 9:
        return f"{number(value + 1, 3)}×"
    size = abs(value) * 100
    digits = 2 if size < 10 else 1 if size < 100 else 0
    text = f"{size:.{digits}f}%"
    if not signed:
        return text
    return ("-" if value < 0 else "+") + text if float(text[:-1]) else text


def title(comparison: Comparison) -> str:
    """Both sides."""
    return f"A: {side(comparison.a)}\nB: {side(comparison.b)}"


def side(line: SideLine) -> str:
    """A side in one line."""
    began = (line.started_at or "").replace("T", " ")[:16]
    parts = [line.name, line.sweep or "", f"{began} UTC" if began else ""]
    return visible(" · ".join(part for part in parts if part))


def summary(comparison: Comparison) -> list[str]:
    """How many of each verdict, and what was left out."""
    counts = ", ".join(f"{comparison.counts.get(o.value, 0)} {o.value}" for o in ORDER)
    lines = [
        f"{len(comparison.pairs)} compared: {counts}" if comparison.pairs else "Nothing could be compared."
    ]
    if comparison.threshold is not None:
        lines.append(f"changes below {percent(comparison.threshold, signed=False)} are of no interest")
    if comparison.left_out:
        lines.append(f"{len(comparison.left_out)} left out")
    return lines


def groups(comparison: Comparison) -> list[tuple[str, list[Pair]]]:
    """The pairs by payload and device with its conditions, in the order of the run; worst verdicts first in each."""
    found: dict[str, list[Pair]] = {}
    for pair in comparison.pairs:
        found.setdefault(_heading(pair.match), []).append(pair)
    for members in found.values():
        members.sort(key=lambda pair: ORDER[pair.outcome])
    return list(found.items())


def _heading(match: Match) -> str:
    subject = match.subject
    conditions = f"timer {subject.timer}" + (f", cache {subject.cache}" if subject.cache else "")
    return visible(f"{match.payload} on {subject.device_model or 'no device'} · {conditions}")


def crowded(comparison: Comparison) -> frozenset[Subject]:
    """What was measured on several devices, so that its rows must say where."""
    counts = Counter(pair.match.subject for pair in comparison.pairs)
    return frozenset(subject for subject, count in counts.items() if count > 1)


def cells(pair: Pair, notes: list[str], crowd: frozenset[Subject] = frozenset()) -> list[str]:
    """A row of the table, in the order of `COLUMNS`; what has to be said of it is added to `notes`."""
    match = pair.match
    interval = "" if pair.low is None else f"{percent(pair.low)} … {percent(pair.high)}"
    return [
        label(match, crowd),
        visible(match.subject.backend, LABEL_LENGTH),
        number(match.a.median_us),
        number(match.b.median_us),
        percent(pair.change),
        interval,
        percent(pair.floor, signed=False),
        pair.outcome.value + _mark(pair, notes),
    ]


def label(match: Match, crowd: frozenset[Subject]) -> str:
    """A case, with the row that tells it from others of one program, and the place where it was measured in several."""
    place = f"@ {match.b.host} {match.b.device_uuid}" if match.subject in crowd else ""
    return visible(" ".join(p for p in (match.label, match.subject.row, place) if p), LABEL_LENGTH)


def remarks(pair: Pair) -> str:
    """Why it is unclear, and what is to be known of the two sides."""
    return visible("; ".join(part for part in (pair.why, *pair.notes) if part))


def _mark(pair: Pair, notes: list[str]) -> str:
    said = remarks(pair)
    if not said:
        return ""
    if said not in notes:
        notes.append(said)
    return f" [{notes.index(said) + 1}]"


def legend(pairs: Iterable[Pair]) -> list[str]:
    """What the columns mean, and where the floors are from."""
    members = list(pairs)
    lines = ["change: B over A; floor: the least change that can be told from noise here"]
    for source, words in _SOURCES.items():
        runs = [pair.noise_runs for pair in members if pair.noise == source]
        if runs and len({pair.noise for pair in members}) > 1:
            lines.append(f"floor of {len(runs)} from {words}")
        elif runs:
            lines.append(f"floors from {words}")
    freaks = sum(pair.freaks for pair in members)
    if freaks:
        lines.append(f"{freaks} of the floors set by single runs that were far off when nothing had changed")
    return lines


def left_out(missing: LeftOut) -> str:
    """What was left out and why, in one line."""
    what = " ".join(part for part in (missing.label, missing.row, missing.backend) if part)
    return visible(f"{what}: {missing.why}")


def changed(comparison: Comparison) -> list[str]:
    """What is not the same on both sides."""
    return [visible(f"{d.where}: {d.what}: {d.a} → {d.b}") for d in comparison.differences]
