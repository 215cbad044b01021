"""A comparison as GitHub-flavoured Markdown: the verdict first, then what changed, the rest folded away."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.compare import phrases
from orchestrator.compare.values import Comparison, Outcome, Pair, Subject
from orchestrator.report.markdown import escaped, grid

_MARKS = {Outcome.SLOWER: "🔴", Outcome.FASTER: "🟢", Outcome.UNCLEAR: "⚪", Outcome.SAME: ""}


def render(comparison: Comparison) -> str:
    """The summary for a pull request. Nothing that was measured can act as markup."""
    return "\n".join(_lines(comparison)) + "\n"


def _lines(comparison: Comparison) -> Iterator[str]:
    slower = comparison.counts.get(Outcome.SLOWER.value, 0)
    if not comparison.pairs:
        yield "### Nothing could be compared"
    elif slower:
        yield f"### 🔴 {slower} of {len(comparison.pairs)} slower"
    else:
        yield f"### Nothing slower in {len(comparison.pairs)}"
    yield ""
    yield f"- A: {escaped(phrases.side(comparison.a))}"
    yield f"- B: {escaped(phrases.side(comparison.b))}"
    for line in phrases.summary(comparison):
        yield f"- {escaped(line)}"
    crowd = phrases.crowded(comparison)
    for heading, pairs in phrases.groups(comparison):
        yield from _group(heading, pairs, crowd)
    yield from _folded("Left out", [phrases.left_out(missing) for missing in comparison.left_out])
    yield from _folded("Not the same on both sides", phrases.changed(comparison))


def _group(heading: str, pairs: list[Pair], crowd: frozenset[Subject]) -> Iterator[str]:
    changed = [pair for pair in pairs if pair.outcome in (Outcome.SLOWER, Outcome.FASTER)]
    others = [pair for pair in pairs if pair.outcome not in (Outcome.SLOWER, Outcome.FASTER)]
    notes: list[str] = []
    yield ""
    yield f"#### {escaped(heading)}"
    if changed:
        yield ""
        yield from _table(changed, notes, crowd)
    if others:
        counts = ", ".join(
            f"{sum(pair.outcome is outcome for pair in others)} {outcome.value}"
            for outcome in (Outcome.UNCLEAR, Outcome.SAME)
        )
        yield ""
        yield f"<details{'' if changed else ' open'}><summary>{counts}</summary>"
        yield ""
        yield from _table(others, notes, crowd)
        yield ""
        yield "</details>"
    yield ""
    for line in phrases.legend(pairs):
        yield f"- {escaped(line)}"
    for position, note in enumerate(notes, 1):
        yield f"- [{position}] {escaped(note)}"


def _table(pairs: list[Pair], notes: list[str], crowd: frozenset[Subject]) -> Iterator[str]:
    rows = []
    for pair in pairs:
        row = phrases.cells(pair, notes, crowd)
        row[-1] = f"{_MARKS[pair.outcome]} {row[-1]}".strip()
        rows.append(row)
    yield from grid(phrases.COLUMNS, rows, phrases.NUMERIC)


def _folded(title: str, lines: list[str]) -> Iterator[str]:
    if not lines:
        return
    yield ""
    yield f"<details><summary>{title} ({len(lines)})</summary>"
    yield ""
    for line in lines:
        yield f"- {escaped(line)}"
    yield ""
    yield "</details>"
