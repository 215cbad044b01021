"""The report as one JSON document: `{"run": …, "measurements": […]}`."""

from __future__ import annotations

import json
from collections.abc import Iterator

from orchestrator.events.journal import measurement_line
from orchestrator.report.build import Report


def render(report: Report) -> str:
    """Strict ASCII JSON; a line for the run and one for each measurement: all that is in `results.jsonl`, and under
    `ceilings` its share of what was measured on its device, where that is known. `pending` is what an open run has not
    measured yet."""
    return "".join(_pieces(report))


def _pieces(report: Report) -> Iterator[str]:
    run = {**report.run.as_json(), "state": report.state}
    run |= {"counts": dict(report.counts.statuses), "verdicts": dict(report.counts.verdicts)}
    yield f'{{"run": {json.dumps(run, allow_nan=False)},\n"measurements": ['
    for number, (measurement, share) in enumerate(zip(report.measurements, report.shares, strict=True)):
        line = measurement_line(measurement).decode("ascii").rstrip("\n")
        if share is not None:
            line = f'{line[:-1]},"ceilings":{json.dumps(share.as_json(), allow_nan=False)}}}'
        yield ("," if number else "") + "\n" + line
    yield "\n]"
    if report.pending:
        told = ("case_id", "label", "payload", "params", "backend")
        still = [{name: getattr(m, name) for name in told} for m in report.pending]
        yield f',\n"pending": {json.dumps(still, allow_nan=False)}'
    yield "}\n"
