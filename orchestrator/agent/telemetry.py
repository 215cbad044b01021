"""What the devices did while something was measured on them; `looks` has the rules for what makes a number doubtful.

Whose a process is. In the host's own PID namespace a process is ours by its number: it is in `own_pids`, or `owns`
knew it when it was seen (it may be gone by the end). In a container the driver shows the host's PIDs, which say
nothing to us. There, ours is what was not there at `baseline`, taken before our worker started, and came until the end
of the first window after it; what was there before, or came later, is foreign.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from .gauges import NvmlGauges, SmiGauges, open_gauges
from .looks import DeviceWindow, judge, steady_clock_mhz

PERIOD_S = 0.05
SLOW_EVERY = 10
ANSWER_S = 10.0

# The inode of the first PID namespace (PROC_PID_INIT_INO in the kernel's include/linux/proc_ns.h).
_HOST_NAMESPACE = "pid:[4026531836]"


_Command = Tuple[Callable[[], Any], "queue.Queue[Any]", bool]

_hangs = threading.Event()
"""Set once a call did not come back: the driver is the same for every sampler of this process."""


class _Strangers:
    """Which of the host's PIDs are not ours, where numbers say nothing: known by what changed."""

    def __init__(self) -> None:
        self.before: Optional[Set[int]] = None
        self.adopted: Optional[Set[int]] = None


class Sampler:
    """Watches the devices of one worker, from a thread of its own that only lives from `begin` to `end`.

    Each call returns within `ANSWER_S` even if the driver hangs; after that every sampler of this process stays silent
    and `problem` says why. CPU slots, and hosts on which nothing can be asked, have no telemetry: `end` gives
    (None, []). Windows of the same worker that overlap need a sampler each (`another`)."""

    def __init__(
        self,
        devices: Sequence[Mapping[str, Any]],
        environ: Optional[Mapping[str, str]] = None,
        owns: Optional[Callable[[int], bool]] = None,
        host_pids: Optional[bool] = None,
    ) -> None:
        """`owns(pid)` tells whether a PID of our namespace is ours; it is called in the thread, at most once a PID and window.

        `host_pids` says whether the driver's PIDs are those of our namespace (None: find out)."""
        self._devices = devices
        self._uuids = [device["uuid"] for device in devices if device["kind"] == "gpu"]
        self._environ = dict(os.environ if environ is None else environ)
        self._owns = owns
        self._host_pids = in_host_pid_namespace() if host_pids is None else host_pids
        self._strangers = _Strangers()
        self.steady_clock_mhz: Optional[float] = None
        """The SM clock of the window that ended last, if it can be held against another window's (`looks`)."""
        self._commands: "Optional[queue.Queue[_Command]]" = None
        # Of the thread alone:
        self._gauges: Optional["NvmlGauges | SmiGauges"] = None
        self._windows: Optional[Dict[str, DeviceWindow]] = None
        self._compute: Set[int] = set()
        self._graphics: Set[int] = set()
        self._known: Dict[int, bool] = {}

    @property
    def problem(self) -> Optional[str]:
        """Why there is no telemetry although there is a driver."""
        return "no telemetry: the NVIDIA driver hangs" if _hangs.is_set() else None

    def another(self) -> Sampler:
        """A sampler of the same worker, which shares what is known of whose the processes are."""
        other = Sampler(self._devices, self._environ, self._owns, self._host_pids)
        other._strangers = self._strangers
        return other

    def baseline(self) -> None:
        """Remember whose processes are on the devices; before a worker starts, and again before its successor does."""
        self._ask(self._take_baseline, last=self._commands is None)

    def begin(self) -> None:
        """Start a window."""
        self._ask(self._open_window)

    def end(self, own_pids: Iterable[int]) -> Tuple[Optional[Dict[str, Any]], List[str]]:
        """Close the window: (telemetry, reasons). `own_pids` are the processes of this worker, in our PID namespace."""
        if self._commands is None:
            return None, []
        own = set(own_pids)
        self.steady_clock_mhz = None
        answer = self._ask(lambda: self._close_window(own), last=True)
        return answer if answer is not None else (None, [])

    def _ask(self, work: Callable[[], Any], last: bool = False) -> Any:
        """Let the thread do something and wait for it; `last` ends the thread."""
        if not self._uuids or _hangs.is_set():
            return None
        if self._commands is None:
            self._commands = queue.Queue()
            threading.Thread(target=self._run, args=(self._commands,), name="telemetry", daemon=True).start()
        answer: queue.Queue[Any] = queue.Queue()
        self._commands.put((work, answer, last))
        if last:
            self._commands = None
        try:
            return answer.get(timeout=ANSWER_S)
        except queue.Empty:
            _hangs.set()
            return None

    # --- in the thread ---------------------------------------------------------------------------------------

    def _run(self, commands: "queue.Queue[_Command]") -> None:
        if self._gauges is None:
            self._gauges = open_gauges(self._uuids, self._environ)
        turn, due, last = 0, 0.0, False
        while not last:
            watching = self._windows is not None and self._gauges is not None and self._gauges.continuous
            try:
                work, answer, last = commands.get(
                    timeout=max(0.0, due - time.monotonic()) if watching else None
                )
            except queue.Empty:
                turn += 1
                self._look(slowly=turn % SLOW_EVERY == 0)
            else:
                answer.put(None if self._gauges is None else work())
            due = time.monotonic() + PERIOD_S

    def _take_baseline(self) -> None:
        assert self._gauges is not None
        present: Set[int] = set()
        for uuid in self._uuids:
            present.update(*self._gauges.pids(uuid))
        self._strangers.before, self._strangers.adopted = present, None

    def _open_window(self) -> None:
        self._windows = {uuid: DeviceWindow() for uuid in self._uuids}
        self._compute, self._graphics, self._known = set(), set(), {}
        self._look(slowly=True)
        if self._strangers.before is None:
            # Nobody told when our worker started: what is here now must be taken for it.
            self._strangers.before, self._strangers.adopted = set(), self._compute | self._graphics

    def _close_window(self, own: Set[int]) -> Optional[Tuple[Dict[str, Any], List[str]]]:
        if self._windows is None:
            return None
        self._look(slowly=True)
        windows, self._windows = list(self._windows.values()), None
        self.steady_clock_mhz = steady_clock_mhz(windows)
        seen = self._compute | self._graphics
        if self._host_pids:
            foreign = {pid for pid in seen if pid not in own and not self._known.get(pid, False)}
        else:
            if self._strangers.adopted is None:
                self._strangers.adopted = seen - (self._strangers.before or set())
            foreign = seen - self._strangers.adopted - own
        return judge(windows, foreign & self._compute, foreign)

    def _look(self, slowly: bool) -> None:
        assert self._gauges is not None
        assert self._windows is not None
        for uuid, window in self._windows.items():
            window.add(self._gauges.read(uuid, slowly))
            if not slowly:
                continue
            compute, graphics = self._gauges.pids(uuid)
            self._compute |= compute
            self._graphics |= graphics
            if self._owns is not None and self._host_pids:
                for pid in (compute | graphics) - set(self._known):
                    self._known[pid] = self._owns(pid)


def in_host_pid_namespace() -> bool:
    """Whether our PIDs are the host's, as the driver counts."""
    try:
        return os.readlink("/proc/self/ns/pid") == _HOST_NAMESPACE
    except OSError:
        return False
