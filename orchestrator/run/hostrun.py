"""One host of a run, on a thread of its own: connect, launch, follow, and follow again after every break.

What comes from the host is handed to the coordinator through a queue, in order; nothing here interprets it.
A link that breaks after the launch was asked for is never a failure of a case: the agent goes on, and we follow it again
from where we were, with growing, jittered pauses. After `lost_after_s` without a word the host counts as overdue; it is
still followed as long as the run has something else to wait for.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from orchestrator.errors import ArchiveFault, FarbenchError, HostError, HostRefused, HostUnreachable
from orchestrator.inventory import HostSpec
from orchestrator.launch.dialogue import (
    Alive,
    Dialogue,
    End,
    Events,
    Following,
    Hello,
    Launched,
    Message,
    OtherJournal,
    Session,
)
from orchestrator.run.controls import Controls
from orchestrator.run.hosttask import HostTask
from orchestrator.run.news import Changed, Chunk, Current, HostPhase, News, Unkept
from orchestrator.transport.base import Transport

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 15.0
RELAUNCHES = 3
"""How often an agent that vanished (killed, host restarted) is started again before the host counts as lost."""
MISFORTUNES = 5
"""How often in a row a host that has its part of the run may refuse us before it counts as unusable."""
WITHDRAW_EVERY_S = 5.0
NO_SUCH_RUN = "find the run"
FINAL_STEPS = ("coordinate", NO_SUCH_RUN)
"""Steps whose refusal no second try changes."""
BEFORE_BYTES = 64
"""What of our copy's end is compared with the host's journal before that is followed further."""


def is_never_started(error: HostError, begun: bool) -> bool:
    """Whether a host says that it has no part of a run of which nothing was ever heard (`begun`) from it."""
    return error.step == NO_SUCH_RUN and not begun


def never_started(host: str, run_id: str) -> str:
    """That in words."""
    return f"{host}: the run was never started there; start it with: farbench resume {run_id}"


class HostRun:
    """Runs one `HostTask`; `control`, `confirm` and `stop` may be called from any thread."""

    def __init__(
        self,
        task: HostTask,
        open_transport: Callable[[HostSpec], Transport],
        outbox: queue.Queue[News],
        session: str,
        *,
        lost_after_s: float,
        clock: Callable[[], float] = time.monotonic,
        utc: Callable[[], float] = time.time,
    ) -> None:
        self.task = task
        self.clock_offset_s: float | None = None
        """How far the host's clock is ahead of ours, at most a message's way too little."""
        self.concern: str | None = None
        """What its greeting gave reason to tell of."""
        self._utc = utc
        self._open_transport = open_transport
        self._outbox = outbox
        self._session = Session(session, claim=True)
        self._lost_after_s = lost_after_s
        self._clock = clock
        self._stop = threading.Event()
        self._transport: Transport | None = None
        self._controls = Controls(task.spec.name)
        self._offset, self._before, self._base = task.offset, task.before, task.base
        self._begun = task.begun
        self._launched = task.follow_only
        self._asked = False
        self._current_at: int | None = None
        self._current = False
        self._heard_once = False
        self._relaunches = 0
        self._misfortunes = 0
        self._pending = False
        self._withdrawn_at = float("-inf")
        self._last_word = clock()
        self._thread = threading.Thread(target=self._run, name=f"host-{task.spec.name}", daemon=True)

    @property
    def name(self) -> str:
        """The host's name."""
        return self.task.spec.name

    @property
    def launched(self) -> bool:
        """Whether the host has its part of the run and would go on without us."""
        return self._launched

    @property
    def has_unconfirmed(self) -> bool:
        """Whether it has been given cases that it has not journalled yet."""
        return self._controls.unconfirmed

    @property
    def pending(self) -> bool:
        """Whether its agent has not begun yet, as it waits for something (a job of Slurm)."""
        return self._pending

    @property
    def alive(self) -> bool:
        """Whether its thread is at work."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin; returns at once. A second time it does nothing."""
        if self._thread.ident is None:
            self._thread.start()

    def stop(self) -> None:
        """Stop following, or trying to; the host goes on."""
        self._stop.set()
        self._controls.close()
        if self._transport is not None:
            self._transport.close()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread."""
        self._thread.join(timeout_s)

    def control(self, message: Mapping[str, Any]) -> None:
        """Tell the agent something (enqueue, release); see `Controls`."""
        self._controls.say(message)

    def withdraw(self) -> None:
        """Tell a host that waits to begin that there is nothing left to do; said again as long as it still waits."""
        if self._clock() - self._withdrawn_at >= WITHDRAW_EVERY_S:
            self._withdrawn_at = self._clock()
            self._controls.say({"type": "withdraw"})

    def confirm(self, message_id: str) -> None:
        """The agent has journalled what came with this id."""
        self._controls.confirm(message_id)

    def _say(
        self, phase: HostPhase, detail: str | None = None, ended: str | None = None, overdue: bool = False
    ) -> None:
        self._outbox.put(Changed(self.name, phase, detail, ended, self._begun, overdue))

    def _run(self) -> None:
        pause = FIRST_PAUSE_S
        self._say(HostPhase.CONNECTING)
        while not self._stop.is_set():
            before = self._last_word
            try:
                if self._follow_once():
                    return
            except HostError as error:
                if self._stop.is_set() or self._is_final(error):
                    return
            except FarbenchError as error:  # what the host brought could not be kept here
                self._say(HostPhase.UNUSABLE, f"{self.name}: {error}")
                return
            except Exception as error:  # noqa: BLE001 - the thread's boundary: a bug here must not look like a hang
                detail = f"{self.name}: farbench failed: {type(error).__name__}: {error}"
                self._say(HostPhase.UNUSABLE, detail)
                return
            pause = FIRST_PAUSE_S if self._last_word > before else min(pause * 2, LONGEST_PAUSE_S)
            self._stop.wait(pause * random.uniform(0.5, 1.5))

    def _is_final(self, error: HostError) -> bool:
        """Tell how a try ended, and whether it was the last. One that has its part of the run is not given up lightly."""
        if error.step == NO_SUCH_RUN and self._begin_anew("the run's folder is gone; starting it anew"):
            return False
        unreachable = isinstance(error, HostUnreachable)
        # A link that breaks during the launch leaves open whether it succeeded; a refusal does not.
        self._begun = self._begun or (unreachable and self._asked)
        self._misfortunes = 0 if unreachable else self._misfortunes + 1
        hopeless = (
            isinstance(error, HostRefused) or error.step in FINAL_STEPS or self._misfortunes > MISFORTUNES
        )
        given_up = isinstance(error, HostUnreachable) and self._gives_up(error)
        if not self._begun or hopeless or given_up:
            self._say(HostPhase(error.state), self._said_of(error))
            return True
        silent_s = self._clock() - self._last_word
        overdue = silent_s > self._lost_after_s
        detail = (
            f"no word for {silent_s:.0f} s; last: {error.bare_message}" if overdue else error.bare_message
        )
        self._say(HostPhase.RECONNECTING, detail, overdue=overdue)
        return False

    def _gives_up(self, error: HostUnreachable) -> bool:
        """On coming back, a host that is not there is no reason to wait, unless it may be measuring out of reach."""
        return self.task.eager and not self._heard_once and (error.nobody_listens or not self._offset)

    def _said_of(self, error: HostError) -> str:
        if self.task.follow_only and is_never_started(error, bool(self._offset)):
            return never_started(self.name, self.task.run_id)
        return str(error)

    def _follow_once(self) -> bool:
        """Connect and follow until the link breaks or the agent is gone; whether the host is done."""
        for message in self._connected():
            self._last_word = self._clock()
            self._heard_once = True
            self._misfortunes = 0
            if self._heard(message):
                return True
        return False

    def _connected(self) -> Following:
        """A dialogue with the host's agent: launched the first time, followed again afterwards."""
        if self._transport is None:
            self._transport = self._open_transport(self.task.spec)
        self._transport.connect()
        if self._stop.is_set():
            self._transport.close()
        dialogue = Dialogue(self._transport, self.task.spec)
        offset = self._offset - self._base
        if self._launched:
            following = dialogue.follow(self.task.run_id, offset, before=self._before, session=self._session)
        else:
            first, self._asked = self.task.first and not self._asked, True
            following = dialogue.launch(
                job=self.task.job,
                tree=self.task.tree,
                queue=self.task.items(),
                sealed=self.task.sealed,
                secrets=self.task.secrets,
                follow_offset=offset,
                before=self._before,
                session=self._session,
                first=first,
            )
        self._controls.connect(following)
        if self._stop.is_set():
            following.close()
        return following

    def _heard(self, message: Message) -> bool:
        """Hand a message on; whether it was the last."""
        match message:
            case Hello():
                self.concern = _concern(message)
                return False
            case Launched():
                self._launched = self._begun = True
            case Alive():
                ahead_s = message.time - self._utc()
                self.clock_offset_s = max(ahead_s, self.clock_offset_s or ahead_s)
                self._session = Session(self._session.token)
                if self._current_at is None:
                    self._current_at = self._offset + message.behind
                self._pending = message.waits or (bool(message.note) and not self._offset)
                self._say(HostPhase.RUNNING, message.note)
            case Events():
                self._pending = False
                self._outbox.put(Chunk(self.name, self._base + message.offset, message.data))
                self._offset = self._base + message.offset + len(message.data)
                self._before = (self._before + message.data[-BEFORE_BYTES:])[-BEFORE_BYTES:]
            case OtherJournal():
                return self._began_anew()
            case End():
                return self._ended(message)
        if not self._current and self._current_at is not None and self._offset >= self._current_at:
            self._current = True
            self._outbox.put(Current(self.name))
        return False

    def _began_anew(self) -> bool:
        """The host has lost the run's folder: its new journal is added to what we have of the old one."""
        if self.task.follow_only:
            detail = f"{self.name}: the run's folder there is another one; `farbench resume` goes on with it"
            self._say(HostPhase.LOST, detail)
            return True
        self._base, self._before = self._offset, b""
        self._controls.forget()
        return False

    def _ended(self, end: End) -> bool:
        """Whether the host is done. An agent that vanished is started again: it takes up its own journal."""
        if end.state == "cancelled" or (end.state == "finished" and (end.sealed or end.reason)):
            problems: Sequence[str] = ()
            if self.task.at_end is not None and self._transport is not None:
                dialogue = Dialogue(self._transport, self.task.spec)
                try:
                    problems = self.task.at_end(dialogue, partial(self._say, HostPhase.RUNNING))
                except ArchiveFault as error:
                    self._outbox.put(Unkept(self.name, error))
                    problems = [f"its collected files are still there, as {error}"]
            told = [f"{self.name}: {text}" for text in (*filter(None, [end.reason]), *problems)]
            phase = HostPhase.UNUSABLE if end.reason else HostPhase.OK
            self._say(phase, "\n".join(told) or None, ended=end.state)
            return True
        gone = f"the agent is gone ({end.why})" if end.why else "the agent is gone"
        vanished = gone if end.state == "dead" else "the agent ended, as nobody dealt cases to it"
        if end.again and self._launch_again(f"{vanished}; starting it again"):
            return False
        detail = f"{self.name}: {vanished}, and cases are left; `farbench resume` starts it again"
        self._say(HostPhase.LOST, detail, ended=end.state)
        return True

    def _begin_anew(self, why: str) -> bool:
        """Start the host's part from nothing, if that may be done."""
        return self._launched and self._launch_again(why) and not self._began_anew()

    def _launch_again(self, why: str) -> bool:
        if self.task.follow_only or self._relaunches >= RELAUNCHES:
            return False
        self._relaunches += 1
        self._launched = False
        self._say(HostPhase.RECONNECTING, why)
        return True


def _concern(hello: Hello) -> str | None:
    """The cheap part of `farbench doctor`, as far as it is not well; asking costs nothing, the host has told already."""
    if hello.roomy:
        return None
    from orchestrator.doctor.cheap import room_checks

    return "; ".join(f"work folder: {check.found}" for check in room_checks(hello) if check.fix)
