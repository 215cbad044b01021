"""Live progress of a run in a terminal, redrawn in place."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from orchestrator.cli.plain import Problems, amount, bad_line, duration, is_bad, leaving_line
from orchestrator.cli.terminal import TERMINAL
from orchestrator.events import Fold
from orchestrator.model import Measurement
from orchestrator.run.news import HostPhase
from orchestrator.run.observer import Estimate, HostView

SHOWN_WORKERS = 32

_STYLE = {
    HostPhase.OK: "green",
    HostPhase.RUNNING: "",
    HostPhase.CONNECTING: "dim",
    HostPhase.RECONNECTING: "yellow",
}


class LiveProgress:
    """Hosts and their workers, redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._estimate = Estimate()
        self._problems = Problems()
        self._hosts: dict[str, HostView] = {}
        self._live: Live | None = None
        self._drawn = Group()

    def begin(self, run_id: str, expected: int) -> None:
        """Start drawing."""
        TERMINAL.show(self)

    def show(self) -> None:
        """Begin to redraw."""
        # A new one each time: on its return an old one erases as many lines as it had drawn.
        self._live = Live(self._drawn, console=self._console, refresh_per_second=8, transient=True)
        self._live.start()

    def hide(self) -> None:
        """Leave the screen; what was printed stays."""
        if self._live is not None:
            self._live.stop()
        self._live = None

    def host_changed(self, view: HostView) -> None:
        """Drawn at the next tick; an error also stays on the screen afterwards."""
        self._hosts[view.name] = view
        if view.phase.final and (view.detail or view.phase is not HostPhase.OK):
            self._console.print(
                Text(view.detail or f"{view.name}: {view.phase}", style="red"), soft_wrap=True
            )

    def measured(self, measurement: Measurement) -> None:
        """What went wrong stays on the screen."""
        if is_bad(measurement):
            self._console.print(Text(bad_line(measurement), style="yellow"), soft_wrap=True)

    def tick(self, fold: Fold, expected: int) -> None:
        """Draw; what hosts complain of stays on the screen."""
        for line in self._problems.fresh(fold):
            self._console.print(Text(line, style="yellow"), soft_wrap=True)
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
        self._drawn = Group(table, Text(amount(fold, expected, self._estimate)))
        if (live := self._live) is not None:
            live.update(self._drawn)

    def interrupted(self, unlaunched: Sequence[str]) -> None:
        """One line: what is waited for, and how not to wait. Who is being asked something has answered with it."""
        if TERMINAL.give_up():
            raise KeyboardInterrupt
        self._console.print(Text(leaving_line(unlaunched)), soft_wrap=True)

    def end(self) -> None:
        """Take the view down; what was printed stays."""
        TERMINAL.hide()
