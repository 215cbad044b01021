"""Examining hosts side by side, each within its time: what is not known when that is over is said to be so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from orchestrator.errors import HostError, HostUnreachable, UsageError
from orchestrator.inventory import HostSpec, resolve_environment
from orchestrator.launch.dialogue import Dialogue
from orchestrator.launch.exchange import Exchange
from orchestrator.launch.messages import Hello, printable
from orchestrator.transport.base import OpeningTransport
from orchestrator.transport.config import resolve
from orchestrator.transport.target import Target

from . import gpus, host, libraries, reach
from .cheap import clock_check, python_check
from .check import Check, HostHealth, State, failed, ok, skipped, warning

LIMIT_S = 10.0
PINGS = 3
SLOW_S = 0.5
_RESERVE_S = 1.0
"""Kept back for the answers on their way."""

AFTER_LOGIN = ("python", "round trip", "clock", "shell", "logout", "load", "workdir", "space", "tmp")
GROUPS: Mapping[str, Sequence[str]] = {
    "host": ("shell", "logout", "load"), "slurm": ("slurm",), "workdir": ("workdir", "space"), "tmp": ("tmp",), "gpus": gpus.NAMES, "software": libraries.NAMES,
}  # fmt: skip
"""The checks that each group of the host's facts answers."""
_ALOUD = {
    "workdir": "does its file system hang", "devices": "does the driver hang",
    "payload python": "does starting it, or `activate:`, hang",
}  # fmt: skip
ORDER = (
    *reach.STEPS, "env", "python", "round trip", "clock", "shell", "logout", "load", "slurm", "workdir", "space", "tmp",
    *gpus.NAMES, *libraries.NAMES,
)  # fmt: skip


def examine(
    hosts: Sequence[HostSpec],
    open_transport: Callable[[HostSpec], OpeningTransport],
    *,
    environ: Mapping[str, str],
    limit_s: float = LIMIT_S,
    on_done: Callable[[HostHealth], None] | None = None,
) -> list[HostHealth]:
    """The health of every host, in the order given; takes little more than `limit_s` however the hosts behave.

    `on_done` is called from other threads, as hosts are done."""
    started = time.monotonic()
    examinations = [_Examination(spec, open_transport, environ, limit_s) for spec in hosts]
    for examination in examinations:
        threading.Thread(
            target=examination.run, args=(on_done,), name=f"doctor {examination.spec.name}", daemon=True
        ).start()
    for examination in examinations:
        examination.done.wait(max(0.0, started + limit_s - time.monotonic()))
    return [examination.health() for examination in examinations]


class _Examination:
    """One host; what is known so far may be read at any time."""

    def __init__(
        self,
        spec: HostSpec,
        open_transport: Callable[[HostSpec], OpeningTransport],
        environ: Mapping[str, str],
        limit_s: float,
    ) -> None:
        self.spec = spec
        self.done = threading.Event()
        self._open = open_transport
        self._environ = environ
        self._limit_s = limit_s
        self._started = time.monotonic()
        self._ended: float | None = None
        self._lock = threading.Lock()
        self._known: dict[str, Check] = {}
        self._target: Target | None = None
        self._transport: OpeningTransport | None = None
        self._connected = False
        self._greeted = False
        self._gpus: list[Mapping[str, Any]] = []
        self._software: Mapping[str, Any] | None = None

    def run(self, on_done: Callable[[HostHealth], None] | None) -> None:
        """Ask everything."""
        try:
            self._ask()
        finally:
            self._ended = time.monotonic()
            self.done.set()
        if on_done is not None:
            on_done(self.health())

    def health(self) -> HostHealth:
        """What is known by now; the rest is told as what did not answer in time."""
        with self._lock:
            known = dict(self._known)
        if self._ended is None and not self._greeted:
            step = (
                "exec" if self._connected else self._transport.opening_step if self._transport else "connect"
            )
            for check in reach.too_slow(self._limit_s, step, self._target):
                known.setdefault(check.name, check)
        late = self._ended is None and self._greeted
        why = f"not known within {self._limit_s:.0f} s" if late else "the host was not reached"
        for name in (*AFTER_LOGIN, *gpus.NAMES, *libraries.NAMES):
            known.setdefault(name, _unknown(name, why, self.spec.name) if late else skipped(name, why))
        checks = [known[name] for name in ORDER if name in known]
        elapsed_s = (self._ended or time.monotonic()) - self._started
        return HostHealth(self.spec.name, checks, min(elapsed_s, self._limit_s) if late else elapsed_s)

    def _say(self, checks: Sequence[Check]) -> None:
        with self._lock:
            for check in checks:
                self._known[check.name] = check

    def _ask(self) -> None:
        try:
            if not self.spec.embedded:
                self._target = resolve(self.spec, environ=self._environ, warn=lambda _: None)
            transport = self._transport = self._open(self.spec)
            transport.connect()
        except HostError as error:
            self._say(reach.not_reached(error, self._target))
            return
        self._say(reach.reached(self.spec, self._target))
        self._connected = True
        try:
            exchange, hello = Dialogue(transport, self.spec).converse(self._command())
        except HostError as error:
            self._say(reach.not_started(error))
            return
        self._greeted = True
        try:
            self._say([ok("exec", "/bin/sh"), python_check(hello)])
            self._listen(exchange, hello)
        except HostError as error:
            self._say([check for check in reach.not_started(error) if check.state is State.FAILED])
        finally:
            exchange.close()

    def _command(self) -> dict[str, Any]:
        try:
            plain = dict(resolve_environment(self.spec, self._environ).plain)
        except UsageError as error:
            # Runs would be refused for it; what is on the host can be told all the same.
            fix = "set them here before you run farbench"
            if self.spec.launcher.slurm is not None:
                fix = "take it out of `env` in hosts.yaml"
            self._say([failed("env", str(error), fix, blocking=True)])
            plain = {name: value for name, value in self.spec.env.items() if isinstance(value, str)}
        left = self._started + self._limit_s - time.monotonic()
        return {
            "name": "doctor", "python": self.spec.python, "activate": self.spec.activate, "devices": self.spec.devices,
            "env": plain, "distributions": list(libraries.DISTRIBUTIONS), "budget_s": max(1.0, left - _RESERVE_S),
            "slurm": None if self.spec.launcher.slurm is None else list(self.spec.launcher.slurm.options()),
        }  # fmt: skip

    def _listen(self, exchange: Exchange, hello: Hello) -> None:
        clock = _Clock(exchange)
        clock.ping()
        while True:
            message = exchange.next_message(self._limit_s)
            if message is None or message["type"] == "done":
                break
            if message["type"] == "pong":
                clock.pong(message)
            elif message["type"] == "facts":
                self._judge(str(message.get("group")), message.get("facts"), message.get("error"), exchange)
        self._say(clock.checks())

    def _judge(self, group: str, facts: Any, error: Any, exchange: Exchange) -> None:
        names = GROUPS.get(group, ())
        if not isinstance(facts, dict):
            self._say([_unknown(name, printable(str(error), 200), self.spec.name) for name in names])
            return
        facts = _inert(facts)
        try:
            if self.spec.launcher.slurm is not None and group in ("host", "gpus"):
                self._say(self._of_login_node(group, facts, exchange))
            elif group == "slurm":
                self._say(host.judge_slurm(facts))
            elif group == "host":
                self._say(host.judge_host(facts, exchange.noise))
            elif group == "workdir":
                self._say(host.judge_workdir(facts))
            elif group == "tmp":
                self._say(host.judge_tmp(facts))
            elif group == "gpus":
                self._gpus = list(facts.get("gpus") or [])
                self._say(gpus.judge_gpus(facts))
                self._say_software()
            elif group == "software":
                self._software = facts
                self._say_software()
        except Exception as broken:  # noqa: BLE001 - a host is outside: what it says may be anything
            self._say(_nonsense(names, broken))

    def _of_login_node(self, group: str, facts: Mapping[str, Any], exchange: Exchange) -> list[Check]:
        """What is measured is elsewhere: of where we are only the shell matters."""
        judged = host.judge_host(facts, exchange.noise) if group == "host" else []
        shell = [check for check in judged if check.name == "shell"]
        others = [name for name in GROUPS[group] if name != "shell"]
        return [
            *shell,
            *(
                skipped(name, "this is the login node; the nodes of a job are not known before")
                for name in others
            ),
        ]

    def _say_software(self) -> None:
        """The fit of the software depends on the GPUs: judged again when these are known."""
        if self._software is None:
            return
        try:
            self._say(libraries.judge_software(self._software, self._gpus, self.spec.name))
        except Exception as broken:  # noqa: BLE001 - the same; the GPUs' own answer may be right
            self._say(_nonsense(libraries.NAMES, broken))


class _Clock:
    """Round-trip time and clock offset, from a few small questions one after another."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._sent_at_s = 0.0
        self._sent = 0.0
        self._best: tuple[float, float] | None = None  # (round trip, offset), of the fastest answer
        self._count = 0

    def ping(self) -> None:
        self._sent_at_s, self._sent = time.time(), time.monotonic()
        with suppress(HostUnreachable):  # who takes no more says why in what is read next
            self._exchange.send({"type": "ping", "n": self._count})

    def pong(self, message: Mapping[str, Any]) -> None:
        trip_s = time.monotonic() - self._sent
        if message.get("n") != self._count or not isinstance(message.get("time"), (int, float)):
            return
        offset_s = float(message["time"]) - (self._sent_at_s + trip_s / 2)
        self._best = min(self._best or (trip_s, offset_s), (trip_s, offset_s))
        self._count += 1
        if self._count < PINGS:
            self.ping()
        else:
            self._exchange.send({"type": "enough"})

    def checks(self) -> list[Check]:
        if self._best is None:
            return [skipped("round trip", "no answer"), skipped("clock", "no answer")]
        trip_s, offset_s = self._best
        text = f"{trip_s * 1000:.1f} ms"
        slow = warning("round trip", text, "a slow link: it costs time at the start of a run, never accuracy")
        return [slow if trip_s > SLOW_S else ok("round trip", text), clock_check(offset_s, trip_s / 2)]


def _nonsense(names: Sequence[str], broken: Exception) -> list[Check]:
    return [warning(name, f"its answer makes no sense: {broken!r}"[:200]) for name in names]


def _unknown(name: str, why: str, host: str) -> Check:
    """A check without an answer. The first of each group is told aloud, so that silence is not taken for health."""
    if name not in _ALOUD:
        return skipped(name, why)
    return warning(name, why, f"{_ALOUD[name]}? Ask this host alone: farbench doctor {host}")


def _inert(value: Any) -> Any:
    """What a host said, with all its text fit for a terminal."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(str(key), 200): _inert(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_inert(item) for item in value]
    return value
