"""What each device did when, from the hosts' journals."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.archive import RunDocument, RunFolder, files
from orchestrator.errors import ArchiveError
from orchestrator.events.journal import JournalLines
from orchestrator.report.html.blocks import Chart, Figure, Section, Text
from orchestrator.report.html.page import plain
from orchestrator.wording import number, visible

KINDS = ("waiting", "starting", "compiling", "checking", "measuring")
_KIND_OF_PHASE = {
    "prepare": "compiling",
    "compile": "compiling",
    "check": "checking",
    "measure": "measuring",
}
_RESULT = re.compile(rb'^.{0,120}?"type": ?"measurement"')
"""Results are most of a journal, and no part of the timeline: they are passed over without being parsed."""
BARS = 4000
DEVICES = 128
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Span:
    """A device of a host did `kind` from `start` to `end` (UTC seconds, by the host's monotonic clock); `what` names the
    first backend or holder, `pieces` how many spans were put together."""

    host: str
    device: str
    kind: str
    start: float
    end: float
    what: str = ""
    pieces: int = 1


def spans(folder: RunFolder, document: RunDocument) -> list[Span]:
    """Every span of a run, by host and time. What a journal says that makes no sense is left out."""
    found: list[Span] = []
    try:
        hosts = folder.host_names(tuple(document.hosts))
    except ArchiveError:
        return []  # the report stands without its timeline
    for host in hosts:
        reader = _Reader(host)
        for event in _events(folder.events(host)):
            reader.take(event)
        found += reader.finished()
    return found


def sections(folder: RunFolder, document: RunDocument) -> list[Section]:
    """The timeline as one chart, a line a device."""
    found = spans(folder, document)
    if not found:
        return [Section("Timeline", [Text("There is no journal that tells when its devices were at work.")])]
    begin = min(span.start for span in found)
    rows = sorted({(s.host, s.device) for s in found})
    names = _device_names(document)
    total = max(span.end for span in found) - begin
    drawn = _joined(found, total)
    busy = sum(s.end - s.start for s in found if s.kind == "measuring")
    share = 100 * busy / (total * len(rows)) if total > 0 else 0.0
    summary = (
        f"{number(total, 3)} s on {len(rows)} {'device' if len(rows) == 1 else 'devices'}, of which measuring takes "
        f"{share:.0f}%. Times are seconds since the first event; hosts are put side by side by their own clocks."
    )
    shown = rows[:DEVICES]
    if len(rows) > len(shown):
        summary += f" The first {len(shown)} devices are drawn."
    traces = [trace for kind in KINDS if (trace := _trace(kind, drawn, shown, begin))]
    layout = {
        "barmode": "overlay",
        "xaxis": {"title": {"text": "seconds"}, "range": [0, total or 1]},
        "yaxis": {
            "tickmode": "array", "tickvals": list(range(len(shown))), "range": [len(shown) - 0.5, -0.5],
            "ticktext": [plain(names.get(row, f"{row[0]} {row[1]}"), 24) for row in shown],
        },
        "showlegend": True,
    }  # fmt: skip
    chart = Chart("What the devices did", summary, {"": Figure(traces, layout, 150 + 30 * len(shown))})
    return [Section("Timeline", [chart])]


def _trace(kind: str, drawn: list[Span], rows: list[tuple[str, str]], begin: float) -> dict[str, Any] | None:
    position = {row: i for i, row in enumerate(rows)}
    chosen = [s for s in drawn if s.kind == kind and (s.host, s.device) in position]
    if not chosen:
        return None
    return {
        "type": "bar", "orientation": "h", "name": kind, "series": KINDS.index(kind), "hoverinfo": "text", "width": 0.7,
        "base": [round(s.start - begin, 4) for s in chosen], "x": [round(s.end - s.start, 4) for s in chosen],
        "y": [position[s.host, s.device] for s in chosen], "hovertext": [_hover(s, begin) for s in chosen],
    }  # fmt: skip


def _hover(span: Span, begin: float) -> str:
    more = f", {span.pieces} pieces" if span.pieces > 1 else ""
    when = f"{span.start - begin:.2f} s to {span.end - begin:.2f} s"
    return plain(f"{span.kind}{f' {span.what}' if span.what else ''}, {when}{more}", 300)


def _joined(found: list[Span], total: float) -> list[Span]:
    """Neighbours of one kind as one, with growing tolerance for gaps, until they can be drawn."""
    gap = total / 2000
    while True:
        joined: list[Span] = []
        open_at: dict[tuple[str, str, str], int] = {}
        for span in sorted(found, key=lambda s: (s.host, s.device, s.start)):
            key = (span.host, span.device, span.kind)
            before = joined[open_at[key]] if key in open_at else None
            if before is not None and span.start - before.end <= gap:
                what = before.what if span.what in (before.what, "") else "several backends"
                joined[open_at[key]] = replace(
                    before, end=max(before.end, span.end), what=what, pieces=before.pieces + span.pieces
                )
            else:
                open_at[key] = len(joined)
                joined.append(span)
        if len(joined) <= BARS or gap > total:
            return joined
        gap *= 2


@dataclass
class _Open:
    kind: str
    start: float
    what: str = ""


@dataclass
class _Worker:
    devices: tuple[str, ...]
    doing: _Open | None = None


@dataclass
class _Reader:
    """Turns the events of one host into spans."""

    host: str
    found: list[Span] = field(default_factory=list)
    _workers: dict[str, _Worker] = field(default_factory=dict)
    _waiting: dict[str, _Open] = field(default_factory=dict)
    _anchor: tuple[Any, float] | None = None
    _now: float = 0.0

    def take(self, event: Mapping[str, Any]) -> None:
        self._now = self._time(event)
        kind = event.get("type")
        match kind:
            case "agent_started" | "agent_finished":
                self._end_everything()
            case "lease_wait":
                holder = event.get("holder")
                user = holder.get("user") if isinstance(holder, dict) else None
                self._waiting.setdefault(
                    str(event.get("device")), _Open("waiting", self._now, f"for {user}" if user else "")
                )
            case "worker_starting":
                worker = self._worker(event)
                for device in worker.devices:
                    self._close(device, self._waiting.pop(device, None))
                worker.doing = _Open("starting", self._now)
            case "worker_ready" | "case_finished" | "case_started":
                self._switch(self._worker(event), None)
            case "phase":
                phase = _KIND_OF_PHASE.get(str(event.get("phase")))
                doing = _Open(phase, self._now, str(event.get("backend"))) if phase else None
                self._switch(self._worker(event), doing)
            case "worker_exited":
                self._switch(self._worker(event), None)
                self._workers.pop(str(event.get("worker")), None)

    def finished(self) -> list[Span]:
        """All spans; those still open end with the last event."""
        self._end_everything()
        return self.found

    def _time(self, event: Mapping[str, Any]) -> float:
        """UTC seconds, but as the monotonic clock counts them: a wall clock may be set while a run goes on."""
        wall, mono = event.get("t"), event.get("mono")
        if not isinstance(wall, int | float):
            return self._now
        if not isinstance(mono, int | float):
            return float(wall)
        if event.get("type") == "agent_started" and (
            self._anchor is None or self._anchor[0] != event.get("boot_id")
        ):
            self._anchor = (event.get("boot_id"), wall - mono)
        if self._anchor is None:
            self._anchor = (None, wall - mono)
        return float(mono + self._anchor[1])

    def _worker(self, event: Mapping[str, Any]) -> _Worker:
        name = str(event.get("worker"))
        devices = event.get("devices")
        worker = self._workers.setdefault(name, _Worker(()))
        if isinstance(devices, list) and devices:
            worker.devices = tuple(str(device) for device in devices)
        return worker

    def _switch(self, worker: _Worker, doing: _Open | None) -> None:
        for device in worker.devices:
            self._close(device, worker.doing)
        worker.doing = doing

    def _close(self, device: str, opened: _Open | None) -> None:
        if opened is not None and self._now > opened.start:
            self.found.append(Span(self.host, device, opened.kind, opened.start, self._now, opened.what))

    def _end_everything(self) -> None:
        for worker in self._workers.values():
            self._switch(worker, None)
        for device, opened in self._waiting.items():
            self._close(device, opened)
        self._workers, self._waiting = {}, {}


def _events(path: Path) -> Iterator[dict[str, Any]]:
    lines = JournalLines()
    try:
        with files.open_plain(path) as journal:
            while chunk := journal.read(_CHUNK_BYTES):
                for _, line in lines.feed(chunk):
                    if line is None or _RESULT.match(line):
                        continue
                    try:
                        event = json.loads(line)
                    except (ValueError, RecursionError):
                        continue  # an agent killed while it wrote
                    if isinstance(event, dict):
                        yield event
    except OSError:
        return  # the report stands without its timeline


def _device_names(document: RunDocument) -> dict[tuple[str, str], str]:
    return {
        (name, device.uuid): visible(f"{name}:{device.index}")
        for name, host in document.hosts.items()
        for device in host.devices
    }
