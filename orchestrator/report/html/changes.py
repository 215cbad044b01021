"""The page of a comparison: each matched measurement's change with its interval, what was left out, what else changed."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.compare import phrases
from orchestrator.compare.values import Comparison, Outcome, Pair, tally
from orchestrator.report.html.blocks import (
    Block,
    Cell,
    Chart,
    Column,
    Figure,
    Page,
    Section,
    Table,
    Text,
    Tone,
)
from orchestrator.report.html.curves import thinned
from orchestrator.report.html.page import plain, to_html
from orchestrator.wording import number, visible

_TONES: dict[Outcome, Tone] = {Outcome.SLOWER: "bad", Outcome.FASTER: "good", Outcome.UNCLEAR: "suspect", Outcome.SAME: "muted"}  # fmt: skip
_ORDER = (Outcome.SLOWER, Outcome.FASTER, Outcome.UNCLEAR, Outcome.SAME)


def render(comparison: Comparison) -> str:
    """The comparison as one HTML file."""
    return to_html(page(comparison))


def page(comparison: Comparison) -> Page:
    """What is on it."""
    counts = tally(comparison.pairs)
    told = ", ".join(
        f"{counts[outcome.value]} {outcome.value}" for outcome in _ORDER if counts[outcome.value]
    )
    summary = [
        f"A: {phrases.side(comparison.a)}",
        f"B: {phrases.side(comparison.b)}",
        f"{len(comparison.pairs)} matched: {told or 'nothing'}; {len(comparison.left_out)} left out",
        *comparison.warnings,
    ]
    if comparison.threshold is not None:
        summary.append(f"Changes below {100 * comparison.threshold:g}% are of no interest.")
    sections = [_changes(comparison.pairs), _left_out(comparison), _differences(comparison)]
    return Page(
        visible(f"{comparison.a.name} against {comparison.b.name}", 200),
        [visible(line, 1000) for line in summary],
        [section for section in sections if section is not None],
    )


def _changes(pairs: Sequence[Pair]) -> Section:
    if not pairs:
        return Section("Changes", [Text("Nothing could be compared.")])
    ordered = sorted(pairs, key=lambda p: (_ORDER.index(p.outcome), -abs(p.change)))
    rows = [_row(pair) for pair in ordered]
    columns = [
        Column("Case"), Column("Backend", choices=True), Column("Verdict", choices=True), Column("Change", "number"),
        Column("95% interval", "number"), Column("Noise floor", "number"), Column("A, µs", "number"),
        Column("B, µs", "number"), Column("Host", choices=True), Column("Device model", choices=True), Column("Why", "prose"),
        Column("Notes", "prose"), Column("Case id", detail=True), Column("Row", detail=True), Column("Timer", detail=True),
        Column("Cache", detail=True), Column("Noise known from", detail=True), Column("p-value", detail=True),
    ]  # fmt: skip
    lead = (
        "A change is B's time over A's, less one: above zero B is slower. It is called one only where noise does not explain it, "
        "counting that many pairs were looked at; the noise floor is the least change that could have been."
    )
    blocks: list[Block] = [_chart(ordered), Table("Every matched measurement", columns, rows)]
    return Section("Changes", blocks, lead)


def _row(pair: Pair) -> list[Cell | str | None]:
    s, a, b = pair.match.subject, pair.match.a, pair.match.b
    interval = None
    if pair.low is not None and pair.high is not None:
        interval = Cell(f"{_percent(pair.low)} to {_percent(pair.high)}", pair.high - pair.low)
    noise = f"{pair.noise}, {pair.noise_runs} runs" if pair.noise_runs else pair.noise
    host = a.host if a.host == b.host else f"{a.host} and {b.host}"
    return [
        visible(pair.match.label, 200),
        visible(s.backend),
        Cell(pair.outcome.value, float(_ORDER.index(pair.outcome)), _TONES[pair.outcome]),
        Cell(_percent(pair.change), pair.change),
        interval,
        None if pair.floor is None else Cell(f"{100 * pair.floor:.2f}%", pair.floor),
        Cell(number(a.median_us), a.median_us),
        Cell(number(b.median_us), b.median_us),
        visible(host),
        visible(s.device_model),
        visible(pair.why, 1000),
        visible("; ".join(pair.notes), 1000),
        s.case_id,
        visible(s.row),
        visible(s.timer),
        visible(s.cache or ""),
        visible(noise or ""),
        None if pair.p_value is None else f"{pair.p_value:.3g}",
    ]


def _chart(pairs: Sequence[Pair]) -> Chart:
    """Every change with its interval, sorted by size: what stands apart from the rest stands at the ends."""
    ranked = sorted(pairs, key=lambda p: p.change)
    place = {id(pair): rank for rank, pair in enumerate(ranked, 1)}
    traces = []
    for series, outcome in enumerate(_ORDER):
        members = thinned([pair for pair in ranked if pair.outcome is outcome])
        if members:
            traces.append(
                {
                    "type": "scatter", "mode": "markers", "name": outcome.value, "series": series,
                    "x": [place[id(p)] for p in members], "y": [100 * p.change for p in members], "hoverinfo": "text",
                    "hovertext": [
                        plain(f"{p.match.label}, {p.match.subject.backend}: {_percent(p.change)} ({p.outcome.value})", 300)
                        for p in members
                    ],
                    "error_y": {
                        "type": "data", "symmetric": False,
                        "array": [100 * ((p.high if p.high is not None else p.change) - p.change) for p in members],
                        "arrayminus": [100 * (p.change - (p.low if p.low is not None else p.change)) for p in members],
                    },
                }
            )  # fmt: skip
    layout = {
        "xaxis": {
            "title": {"text": "measurements, by their change"},
            "showgrid": False,
            "showticklabels": False,
        },
        "yaxis": {
            "title": {"text": "change of time"},
            "ticksuffix": "%",
            "zeroline": True,
            "rangemode": "tozero",
        },
        "showlegend": True,
    }
    return Chart("Changes", "Each with its 95% interval; above zero is slower.", {"": Figure(traces, layout)})


def _left_out(comparison: Comparison) -> Section | None:
    if not comparison.left_out:
        return None
    columns = [
        Column("Case"), Column("Backend", choices=True), Column("Why", "prose"), Column("A", "prose"), Column("B", "prose"),
        Column("Payload", choices=True), Column("Case id", detail=True), Column("Row", detail=True),
    ]  # fmt: skip
    rows = [
        [visible(o.label, 200), visible(o.backend), visible(o.why, 1000), visible(o.a, 1000), visible(o.b, 1000), visible(o.payload),
         o.case_id, visible(o.row)]
        for o in comparison.left_out
    ]  # fmt: skip
    return Section("Left out", [Table("What could not be compared", columns, rows)])


def _differences(comparison: Comparison) -> Section:
    if not comparison.differences:
        return Section("Environments", [Text("Nothing that is known of the environments differs.")])
    columns = [Column("Where", choices=True), Column("What"), Column("A", "prose"), Column("B", "prose")]
    rows = [
        [visible(d.where, 200), visible(d.what, 200), visible(d.a, 1000), visible(d.b, 1000)]
        for d in comparison.differences
    ]
    return Section("Environments", [Table("What is not the same on both sides", columns, rows)])


def _percent(change: float) -> str:
    return f"{100 * change:+.2f}%"
