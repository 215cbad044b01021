"""The footnotes of a table: why there is no number, what speaks against one, and where it is from."""

from __future__ import annotations

from orchestrator.model import Measurement, Status
from orchestrator.report.speedup import NoSpeedup, Speedup
from orchestrator.report.whole import PENDING

_NOTE_LENGTH = 300


class Footnotes:
    """Footnotes of a table: equal ones share a number."""

    def __init__(self, run_id: str, unread: str | None) -> None:
        self.lines: list[str] = []
        self._run_id = run_id
        self._unread = unread

    def of(self, measurement: Measurement, against: Speedup | NoSpeedup | None) -> int | None:
        """What is to be known of a measurement, and why it has no speed-up."""
        told = []
        reason = (measurement.reason or "").strip().split("\n", 1)[0]
        if measurement.status is not Status.OK:
            told.append(f"{measurement.status}: {reason or 'no reason given'}")
            if not measurement.status.is_result:
                told.append(f"farbench resume {self._run_id} measures it")
        elif measurement.verdict != "valid":
            why = ", ".join(measurement.reasons) or reason or "no reason given"
            told.append(f"{measurement.verdict}: {why}")
        elif measurement.reasons:  # a program's own samples, which no verdict rests on
            told.append(f"valid, but {', '.join(measurement.reasons)}")
        if reason and measurement.status is Status.OK and (measurement.reasons or not told):
            told.append(reason)  # how it was measured in another way than was asked for: not cold, by events
        if measurement.run_id != self._run_id:
            told.append(f"of run {measurement.run_id}")
        if isinstance(against, NoSpeedup) and not against.comparable:
            told.append(f"no speed-up: {against.why}")
        return self._number("; ".join(told)) if told else None

    def of_nothing(self, *, pending: bool) -> int | None:
        """Of a cell without any measurement: it is still to come, or may be of a run that we do not have, or was not
        asked for."""
        if pending:
            return self._number(PENDING)
        if self._unread is None:
            return None
        return self._number(f"not of this run: see run {self._unread}, which is not in this archive")

    def _number(self, line: str) -> int:
        line = line.strip().split("\n", 1)[0][:_NOTE_LENGTH]
        if line not in self.lines:
            self.lines.append(line)
        return self.lines.index(line) + 1
