"""The agent's event loop: takes cases in, gives devices to crews, obeys requests, and knows when it is done.

One thread. It sleeps until a worker speaks, a worker dies (SIGCHLD), somebody rings (a named pipe in `control/`), or
a time is due. Everything else is in the parts it drives: `inbox`, `crew`, `claims`, `journal`.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from typing import Any, Dict, Iterable, List, Optional

from . import lock, slurm
from .claims import Claims
from .crew import Crew
from .followers import Followers
from .history import History
from .inbox import Inbox
from .journal import Journal
from .leases import Leases
from .queueing import CaseQueue, Entry, Group
from .recorder import Recorder
from .runsetup import RunSetup
from .starts import StartFailures
from .wire import portable

LOOK_EVERY_S = 1.0
ABANDONED_AFTER_S = 600.0
NEVER_DEALT_S = 60.0
"""The same for an agent to which nobody has ever dealt a case: its controller had left when it was started."""


class Supervisor:
    """Runs one job to its end on this host's devices."""

    def __init__(
        self,
        setup: RunSetup,
        journal: Journal,
        history: History,
        devices: List[Dict[str, Any]],
        leases: Leases,
        selector: selectors.BaseSelector,
        why_no_device: str,
        lock_fd: int,
    ) -> None:
        self.gave_up = ""
        self._why_no_device = why_no_device
        self._lock_fd = lock_fd
        self._setup = setup
        self._journal = journal
        self._devices = devices
        self._selector = selector
        self._queue = CaseQueue()
        self._recorder = Recorder(journal, history, setup.job, setup.redactor, setup.paths.work)
        setup.tell = self._recorder.problem
        self._inbox = Inbox(setup.paths, setup.job, journal, history, self._queue, devices)
        self._wait = setup.job.get("wait_for_devices") is not False
        self._claims = Claims(leases, self._recorder, self._wait)
        self._starts = StartFailures()
        self._no_python = setup.missing_python()
        self._crews: List[Crew] = []
        self._stopping = ""
        self._stop_asked = False
        self._look_at = 0.0
        self._busy_at = time.monotonic()
        self._followers = Followers(setup.paths.followers, afar=slurm.options(setup.job) is not None)
        self._bells = _open_bells(setup.paths.wake)
        for bell in self._bells:
            selector.register(bell, selectors.EVENT_READ, self._ring)

    @property
    def newest_batch(self) -> str:
        """Name of the newest batch taken in."""
        return self._inbox.newest

    @property
    def sealed(self) -> bool:
        """Whether no more cases were to come."""
        return self._inbox.sealed

    def run(self) -> str:
        """Work until the end; its state: `finished`, `cancelled`, or `stopped` (by `stop`: the run is not over).

        Raises `lock.FolderGone`; the workers are still there then."""
        while True:
            # Each time: whoever is at work in a new folder has ended our workers, and that must not look like a crash.
            lock.require(self._setup.paths, self._lock_fd)
            now = time.monotonic()
            if self._stop_asked and not self._stopping:
                self._end_crews("stopped", give_back=False)
            if now >= self._look_at:
                self._look(now)
            self._schedule(now)
            self._claims.end_round()
            for crew in self._crews:
                crew.tick(time.monotonic())
            self._crews = [crew for crew in self._crews if crew.state != "over"]
            if self._journal.full and not self._stopping:
                self.gave_up = f"the disk is full: {portable(self._setup.paths.root)}"
                self._recorder.problem(f"{self.gave_up}: what has no result is given back")
                self._end_crews("finished", give_back=True)
            state = self._end_state(time.monotonic())
            if self._journal.sync_due(time.monotonic()) <= 0:
                self._journal.sync_soon()
            if state:
                self._claims.close()
                return state
            for key, _ in self._selector.select(self._patience(time.monotonic())):
                key.data()

    def stop(self) -> None:
        """End the workers soon, and leave the rest of the run to another agent; may be called in a signal handler."""
        self._stop_asked = True

    # --- what crews ask (see crew.Foreman) -------------------------------------------------------------------

    def next_entry(self, crew: Crew) -> Optional[Entry]:
        """The next case of the crew's own payload, else of another that the same workers can serve."""
        if self._stopping:
            return None
        groups = [crew.group, *(g for g in self._queue.groups() if self._setup.share_workers(g, crew.group))]
        for group in groups:
            if any(self._starts.retired(group.payload, device["uuid"]) for device in crew.devices):
                continue
            entry = self._queue.take(group, self._inbox.targets(crew.devices))
            if entry is not None:
                crew.group = group
                return entry
        return None

    def again(self, entry: Entry) -> None:
        """Doubtful measurements are made again when all that waits now has had its turn."""
        self._queue.add(entry)

    def may_wait(self, crew: Crew) -> bool:
        """A crew stays while cases of its payload may still come and no others wait for devices."""
        return not self._stopping and not self._inbox.sealed and not len(self._queue)

    def started(self, crew: Crew, ready: bool) -> None:
        """All workers of the crew got ready, or they did not."""
        payload = crew.group.payload
        self._starts.note(payload, [device["uuid"] for device in crew.devices], ready)
        for device in crew.devices:
            if self._starts.retired(payload, device["uuid"]):
                self._give_up(self._queue.drop(payload, device["uuid"]), "error", _START_FAILED, [device])
        for model, devices in self._by_model().items():
            if self._starts.given_up(payload, [device["uuid"] for device in devices]):
                self._give_up(self._queue.drop(payload, model), "error", _START_FAILED, devices[:1])
        if self._starts.given_up(payload, [device["uuid"] for device in self._devices]):
            self._give_up(self._queue.drop(payload), "error", _START_FAILED, crew.devices)

    # --- in and out ------------------------------------------------------------------------------------------

    def _ring(self) -> None:
        """Somebody has something for us, or a child died: look now."""
        for bell in self._bells:
            try:
                while os.read(bell, 4096):
                    pass
            except BlockingIOError:
                continue
        self._look_at = 0.0

    def _look(self, now: float) -> None:
        self._look_at = now + LOOK_EVERY_S
        self._inbox.take_batches()
        for request in self._inbox.requests():
            if request.get("type") == "cancel" and self._stopping != "cancelled":
                self._journal.append("cancel_requested")
                self._end_crews("cancelled", give_back=False)
            elif request.get("type") == "coordinator":
                self._journal.append("coordinator", epoch=request.get("epoch"))
            elif request.get("type") == "release":
                case_ids = request.get("case_ids") or ()
                self._inbox.release(self._queue.release(case_ids, request.get("device_model")))

    def _nothing_to_do_here(self, reason: str) -> None:
        """No case can be measured on this host: they are given back, and the reason is told."""
        self.gave_up = reason
        self._recorder.problem(f"{reason}: the cases are given back")
        self._inbox.release(self._queue.release_all(), reason)

    def _end_crews(self, state: str, give_back: bool) -> None:
        self._stopping = state
        for crew in self._crews:
            entry = crew.abandon()
            if entry is not None:
                self._queue.put_back(entry)
        if not self._journal.full:
            for waiting in self._queue.entries():
                self._recorder.settle(waiting)
        if give_back:
            self._inbox.release(self._queue.release_all(), self.gave_up)

    def _end_state(self, now: float) -> str:
        if self._crews:
            self._busy_at = now
            return ""
        if self._stopping:
            return self._stopping
        if not len(self._queue):
            self._look(now)  # what came at the last moment is not left lying
        if len(self._queue) or self._stopping:
            return ""
        if self._inbox.sealed:
            return "finished"
        patience_s = ABANDONED_AFTER_S if self._inbox.newest else NEVER_DEALT_S
        abandoned = now - self._busy_at > patience_s and not self._followers.any(now)
        return "finished" if abandoned else ""

    def _patience(self, now: float) -> float:
        times = [crew.next_tick(now) for crew in self._crews]
        times += [self._journal.sync_due(now), self._look_at - now]
        if len(self._queue) and not self._stopping:
            times.append(self._claims.next_try(now))
        return max(0.0, min(times))

    # --- who works on what -----------------------------------------------------------------------------------

    def _schedule(self, now: float) -> None:
        """Start crews on free devices, group after group; a gang that waits for devices is not overtaken."""
        if self._stopping or not len(self._queue):
            return
        if not self._devices:
            self._nothing_to_do_here(self._why_no_device or "no device can be used on this host")
            return
        if self._no_python:
            self._nothing_to_do_here(self._no_python)
            return
        for group in list(self._queue.groups()):
            if self._starts.given_up(group.payload, [device["uuid"] for device in self._devices]):
                self._give_up(self._queue.drop(group.payload), "error", _START_FAILED, self._devices)
            elif group.gang == 1:
                self._place_singles(group, now)
            else:
                self._refuse_too_large(group)
                if not self._place_gangs(group, now) and self._wait:
                    break
        if self._claims.refused and not self._crews and not self._wait:
            self._nothing_to_do_here(self._claims.why_refused(self._devices))

    def _by_model(self) -> Dict[str, List[Dict[str, Any]]]:
        """The devices by product name: a case is never measured on devices of several."""
        models: Dict[str, List[Dict[str, Any]]] = {}
        for device in self._devices:
            models.setdefault(device["name"], []).append(device)
        return models

    def _place_singles(self, group: Group, now: float) -> None:
        for device in self._free():
            targets = self._inbox.targets([device])
            if self._queue.has(group, targets) and not self._starts.retired(group.payload, device["uuid"]):
                self._start_crew(group, [device], now)

    def _refuse_too_large(self, group: Group) -> None:
        models = self._by_model()
        for lane in self._queue.lanes(group):
            devices = models.get(lane or "") or max(models.values(), key=len)
            if group.gang > len(devices):
                which = f" of one model ({devices[0]['name']})" if len(models) > 1 else ""
                reason = f"it needs {group.gang} devices{which}, and this host offers {len(devices)}"
                self._give_up(
                    self._queue.drop_lane(group, lane), "unsupported", reason, devices[:1] if lane else ()
                )

    def _place_gangs(self, group: Group, now: float) -> bool:
        """Whether later groups may have what is left of the devices."""
        may = True
        for devices in self._by_model().values():
            targets = self._inbox.targets(devices)
            while len(devices) >= group.gang and self._queue.has(group, targets):
                free = [
                    each
                    for each in self._free(devices)
                    if not self._starts.retired(group.payload, each["uuid"])
                ]
                if len(free) < group.gang or not self._start_crew(
                    group, self._claims.choose(free, group.gang, now), now
                ):
                    may = may and any(
                        crew.group == group and crew.devices[0] in devices for crew in self._crews
                    )
                    break
        return may

    def _start_crew(self, group: Group, devices: List[Dict[str, Any]], now: float) -> bool:
        lease = self._claims.claim(devices, now)
        if lease is None:
            return False
        entry = self._queue.take(group, self._inbox.targets(devices))
        assert entry is not None
        self._crews.append(Crew(self._setup, self._recorder, self, group, devices, lease, entry))
        return True

    def _free(self, devices: Optional[List[Dict[str, Any]]] = None) -> List[Dict[str, Any]]:
        used = {device["uuid"] for crew in self._crews for device in crew.devices}
        chosen = self._devices if devices is None else devices
        return [device for device in chosen if device["uuid"] not in used]

    def _give_up(
        self, entries: Iterable[Entry], status: str, reason: str, devices: Iterable[Dict[str, Any]]
    ) -> None:
        for entry in entries:
            self._recorder.give_up(entry, status, reason, list(devices))


_START_FAILED = "not tried: the payload's workers failed to start several times in a row"


def _open_bells(wake: str) -> List[int]:
    """Descriptors that become readable when somebody rings, or when a child dies."""
    try:
        os.mkfifo(wake, 0o600)
    except FileExistsError:
        pass
    bell = os.open(wake, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    reader, writer = os.pipe()
    for fd in (reader, writer):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return [bell, reader]
