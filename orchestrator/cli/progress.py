"""Live progress of a run on standard error: a redrawn view in a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from orchestrator.events import Fold
from orchestrator.model import Measurement, Status, Verdict
from orchestrator.run.hostrun import HostPhase
from orchestrator.run.observer import Estimate, HostView

SHOWN_WORKERS = 32
PLAIN_EVERY_S = 5.0

_STYLE = {
    HostPhase.OK: "green",
    HostPhase.RUNNING: "",
    HostPhase.CONNECTING: "dim",
    HostPhase.RECONNECTING: "yellow",
}


def duration(seconds: float) -> str:
    """`7 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _amount(fold: Fold, expected: int, estimate: Estimate) -> str:
    done = fold.counts().total
    left = estimate.seconds_left(time.monotonic(), done, expected)
    text = f"{done}/{expected} measured" if expected >= done else f"{done} measured"
    return text + (f", about {duration(left)} left" if left is not None and done < expected else "")


def _is_bad(measurement: Measurement) -> bool:
    return measurement.status not in (Status.OK, Status.UNSUPPORTED) or measurement.verdict is Verdict.INVALID


def _bad_line(measurement: Measurement) -> str:
    reason = (measurement.reason or ", ".join(measurement.reasons) or "").splitlines()
    return f"{measurement.host}: {measurement.label} {measurement.backend}: {measurement.status}{': ' + reason[0] if reason else ''}"


class PlainProgress:
    """One line for each change of a host and each failed measurement, and a count every few seconds."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._estimate = Estimate()
        self._last = (clock(), 0)

    def begin(self, run_id: str, expected: int) -> None:
        """Nothing to say yet."""

    def host_changed(self, view: HostView) -> None:
        """One line."""
        detail = view.detail or ""
        line = (
            detail
            if detail.startswith(f"{view.name}:")
            else f"{view.name}: {view.phase}{': ' + detail if detail else ''}"
        )
        self._console.print(line, soft_wrap=True)

    def measured(self, measurement: Measurement) -> None:
        """Only what went wrong is worth a line."""
        if _is_bad(measurement):
            self._console.print(Text(_bad_line(measurement)), soft_wrap=True)

    def tick(self, fold: Fold, expected: int) -> None:
        """A count, when there is a new one and the last is a while ago."""
        done = fold.counts().total
        then, before = self._last
        if done != before and (self._clock() - then >= PLAIN_EVERY_S or done >= expected):
            self._last = (self._clock(), done)
            self._console.print(_amount(fold, expected, self._estimate), soft_wrap=True)
        else:
            self._estimate.seconds_left(self._clock(), done, expected)

    def end(self) -> None:
        """Nothing to take down."""


class LiveProgress:
    """Hosts and their workers, redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._estimate = Estimate()
        self._hosts: dict[str, HostView] = {}
        self._live = Live(console=console, refresh_per_second=8, transient=True)

    def begin(self, run_id: str, expected: int) -> None:
        """Start drawing."""
        self._live.start()

    def host_changed(self, view: HostView) -> None:
        """Drawn at the next tick; an error also stays on the screen afterwards."""
        self._hosts[view.name] = view
        if view.phase.final and view.phase is not HostPhase.OK:
            self._live.console.print(
                Text(view.detail or f"{view.name}: {view.phase}", style="red"), soft_wrap=True
            )

    def measured(self, measurement: Measurement) -> None:
        """What went wrong stays on the screen."""
        if _is_bad(measurement):
            self._live.console.print(Text(_bad_line(measurement), style="yellow"), soft_wrap=True)

    def tick(self, fold: Fold, expected: int) -> None:
        """Draw."""
        table = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
        for name, view in self._hosts.items():
            state = fold.hosts.get(name)
            results = sum(state.statuses.values()) if state else 0
            waiting = f"waiting for {', '.join(state.waiting)}" if state and state.waiting else ""
            detail = "" if view.phase.final else view.detail or waiting
            table.add_row(
                Text(name, style="bold"),
                Text(view.phase, style=_STYLE.get(view.phase, "red")),
                Text(f"{results} measured  {detail}"),
            )
        workers = fold.workers()
        now_s = time.time()
        for worker in workers[:SHOWN_WORKERS]:
            what = f"{worker.label or ''}  {worker.backend or ''}"
            elapsed = duration(max(0.0, now_s - worker.since)) if worker.since else ""
            table.add_row(
                Text(f"  {worker.worker}", style="dim"), Text(worker.phase), Text(f"{what}  {elapsed}")
            )
        if len(workers) > SHOWN_WORKERS:
            table.add_row("", "", f"and {len(workers) - SHOWN_WORKERS} more workers")
        self._live.update(Group(table, Text(_amount(fold, expected, self._estimate))))

    def end(self) -> None:
        """Take the view down; what was printed stays."""
        self._live.stop()
