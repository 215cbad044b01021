"""Progress of a run as plain lines, for logs and pipes; and the words that the live view shares."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from orchestrator.cli.terminal import TERMINAL
from orchestrator.events import Fold
from orchestrator.model import Measurement, Status, Verdict
from orchestrator.run.observer import Estimate, HostView

PLAIN_EVERY_S = 5.0


def duration(seconds: float) -> str:
    """`7 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def amount(fold: Fold, expected: int, estimate: Estimate) -> str:
    """How far the run is, and how long it may still take. More rows than were asked for are as many more to measure."""
    done = fold.counts().total
    expected += fold.surplus
    left = estimate.seconds_left(time.monotonic(), done, expected)
    text = f"{done}/{expected} measured" if expected >= done else f"{done} measured"
    return text + (f", about {duration(left)} left" if left is not None and done < expected else "")


def is_bad(measurement: Measurement) -> bool:
    """Whether a person should see this one while the run goes on."""
    return measurement.status not in (Status.OK, Status.UNSUPPORTED) or measurement.verdict is Verdict.INVALID


def bad_line(measurement: Measurement) -> str:
    """One line about it."""
    reason = (measurement.reason or ", ".join(measurement.reasons) or "").splitlines()
    how = measurement.verdict if measurement.status is Status.OK else measurement.status
    why = f": {reason[0]}" if reason else ""
    return f"{measurement.host}: {measurement.label} {measurement.backend}: {how}{why}"


def leaving_line(unlaunched: Sequence[str]) -> str:
    """What Ctrl-C says before every host has its part."""
    return f"leaving as soon as every host can go on alone (not yet: {', '.join(unlaunched)}); Ctrl-C again leaves at once"


class Problems:
    """What hosts say that a person should know (clocks that cannot be locked, a driver that does not answer): each once."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._told: set[str] = set()

    def fresh(self, fold: Fold) -> list[str]:
        """One line for each that was not told yet."""
        lines = []
        for name, state in fold.hosts.items():
            if state.problem_count == self._seen.get(name, 0):
                continue
            self._seen[name] = state.problem_count
            lines += [f"{name}: {message.splitlines()[0]}" for message in state.problems if message.strip()]
        new = [line for line in dict.fromkeys(lines) if line not in self._told]
        self._told.update(new)
        return new


class PlainProgress:
    """One line for each change of a host, each problem and each failed measurement, and a count every few seconds."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._estimate = Estimate()
        self._problems = Problems()
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
        self._say(line)

    def measured(self, measurement: Measurement) -> None:
        """Only what went wrong is worth a line."""
        if is_bad(measurement):
            self._say(bad_line(measurement))

    def tick(self, fold: Fold, expected: int) -> None:
        """What hosts complain of; and a count, when there is a new one and the last is a while ago."""
        for line in self._problems.fresh(fold):
            self._say(line)
        done = fold.counts().total
        whole = expected + fold.surplus
        then, before = self._last
        if done != before and (self._clock() - then >= PLAIN_EVERY_S or done >= whole):
            self._last = (self._clock(), done)
            self._say(amount(fold, expected, self._estimate))
        else:
            self._estimate.seconds_left(self._clock(), done, whole)

    def interrupted(self, unlaunched: Sequence[str]) -> None:
        """One line: what is waited for, and how not to wait. Who is being asked something has answered with it."""
        if TERMINAL.give_up():
            raise KeyboardInterrupt
        self._say(leaving_line(unlaunched))

    def end(self) -> None:
        """Nothing to take down."""
