"""Facts about processes of this host, and ending those of a run.

A PID alone names nothing: it is used again after its process died, and after a reboot it belongs to someone
else. So a process is named by its PID, its start time and the boot id (`identity`), and every process of a run
is found by the mark it inherited in its environment (`FARBENCH_NONCE`), wherever it has been re-parented to.

Linux is read through /proc. Elsewhere (a controller's own macOS) `ps` and `sysctl` answer instead, and marked
processes cannot be found.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Set

from . import bounded

NONCE_VARIABLE = "FARBENCH_NONCE"

_PROC = "/proc"
DEAD_STATES = ("Z", "X", "x")
_STOPPED_STATES = ("T", "t")
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD in the kernel's include/linux/sched.h
_EXEC_TRIES = 200
_EXEC_PAUSE_S = 0.005


class Stat(NamedTuple):
    """What /proc/<pid>/stat says; `start_time` in clock ticks since boot.

    `in_exec`: in the middle of execve, when a process shows neither its old environment nor its new one."""

    pid: int
    state: str
    ppid: int
    pgid: int
    sid: int
    start_time: int
    in_exec: bool


class Identity(NamedTuple):
    """A process of this boot, whatever its PID may name later."""

    pid: int
    start_time: int


def boot_id() -> str:
    """An id of the time since this host last booted; "" where the system offers none."""
    try:
        with open(f"{_PROC}/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return _output(["sysctl", "-n", "kern.bootsessionuuid"])


def stat(pid: int) -> Optional[Stat]:
    """The process's entry in /proc, or None when there is no such process (or no /proc)."""
    try:
        with open(f"{_PROC}/{int(pid)}/stat", "rb") as file:
            line = file.read()
    except OSError:
        return None
    # The name stands in parentheses and may itself hold spaces and parentheses: the last one ends it.
    fields = line[line.rfind(b")") + 2 :].split()
    if len(fields) < 49:
        return None
    parent, group, session, flags = (int(fields[index]) for index in (1, 2, 3, 6))
    # No end of the environment is known yet. (That of a process we may not look into reads 0 as well.)
    in_exec = fields[48] == b"0" and not flags & _KERNEL_THREAD
    return Stat(int(pid), fields[0].decode(), parent, group, session, int(fields[19]), in_exec)


def start_time(pid: int) -> Optional[float]:
    """When the process started: clock ticks since boot (Linux), else seconds of the wall clock; None if it is gone.

    Never changes while the process lives; a zombie still has one."""
    if os.path.isdir(f"{_PROC}/self"):
        entry = stat(pid)
        return None if entry is None else entry.start_time
    text = _output(["ps", "-o", "lstart=", "-p", str(int(pid))])
    try:
        return time.mktime(time.strptime(text, "%a %b %d %H:%M:%S %Y"))
    except ValueError:
        return None


def identity(pid: Optional[int] = None) -> Dict[str, Any]:
    """{"pid", "start_time", "boot_id"} of a process (by default the caller): JSON values, for `is_alive` later."""
    pid = os.getpid() if pid is None else int(pid)
    return {"pid": pid, "start_time": start_time(pid), "boot_id": boot_id()}


def is_alive(who: Mapping[str, Any]) -> bool:
    """Whether exactly this process still runs here: same boot, same PID, same start time, and no zombie.

    Anything missing or malformed in `who` makes it False: it may come from a file another user wrote."""
    pid, started, boot = who.get("pid"), who.get("start_time"), who.get("boot_id")
    if not isinstance(pid, int) or isinstance(pid, bool) or pid <= 0 or not boot or boot != boot_id():
        return False
    if not isinstance(started, (int, float)) or start_time(pid) != started:
        return False
    entry = stat(pid)
    return entry is None or entry.state not in DEAD_STATES


def is_stopped(who: Any) -> bool:
    """Whether this process lives and has been stopped (SIGSTOP, a debugger): it reacts to nothing then."""
    if not isinstance(who, dict) or not is_alive(who):
        return False
    entry = stat(who["pid"])
    return entry is not None and entry.state in _STOPPED_STATES


def all_pids() -> List[int]:
    """Every PID that is visible here; [] without /proc."""
    try:
        return sorted(int(name) for name in os.listdir(_PROC) if name.isdigit())
    except OSError:
        return []


def environ_of(pid: int) -> Optional[List[bytes]]:
    """The `NAME=value` entries a process was started with, or None where they cannot be read."""
    try:
        with open(f"{_PROC}/{int(pid)}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return None


def find_marked(nonce: str, extra: Optional[bytes] = None) -> List[int]:
    """PIDs of processes that were started with `FARBENCH_NONCE=nonce` (and with the entry `extra`, `NAME=value`).

    Never the caller itself. Processes of other users are not readable, zombies have no environment: neither is
    found. An empty nonce finds nothing."""
    if not nonce:
        return []
    wanted = {os.fsencode(f"{NONCE_VARIABLE}={nonce}")}
    if extra is not None:
        wanted.add(extra)
    found: List[int] = []
    waiting = [pid for pid in all_pids() if pid != os.getpid()]
    for _ in range(_EXEC_TRIES):
        blank: List[int] = []
        for pid in waiting:
            entries = environ_of(pid)
            if entries == [b""]:
                entry = stat(pid)
                if entry is not None and entry.in_exec and _running(pid):
                    blank.append(pid)
                    continue
                entries = environ_of(pid)  # an exec may have ended between the two looks
            if entries is not None and wanted <= set(entries):
                found.append(pid)
        if not blank:
            break
        waiting = blank
        time.sleep(_EXEC_PAUSE_S)
    return sorted(found)


def children_of(pid: int) -> List[Stat]:
    """The children of a process, dead ones that nobody has waited for among them."""
    entries = (stat(other) for other in all_pids())
    return [entry for entry in entries if entry is not None and entry.ppid == pid]


def descendants(pid: int) -> List[int]:
    """PIDs below `pid` in the tree of parents, parents before children; those that were re-parented are not in it."""
    children: Dict[int, List[int]] = {}
    for other in all_pids():
        entry = stat(other)
        if entry is not None:
            children.setdefault(entry.ppid, []).append(other)
    found: List[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(0), [])
        found += below
        waiting += below
    return found


def tree(pid: int) -> List[Identity]:
    """Who is below `pid`, for `same` later."""
    entries = (stat(below) for below in descendants(pid))
    return [Identity(entry.pid, entry.start_time) for entry in entries if entry is not None]


def same(who: Identity) -> bool:
    """Whether exactly this process still runs."""
    entry = stat(who.pid)
    return entry is not None and entry.start_time == who.start_time and entry.state not in DEAD_STATES


def end(find: Callable[[], Iterable[int]], grace_s: float = 2.0, kill_s: float = 10.0) -> List[int]:
    """End every process that `find` gives: SIGTERM once each, SIGKILL from `grace_s` on, asking `find` again and again.

    Asking again catches what was forked meanwhile. Returns the PIDs still there `kill_s` after the first SIGKILL
    (a process stuck in the kernel, or one we may not signal); [] is the rule. The caller reaps its own children."""
    started = time.monotonic()
    asked: Set[int] = set()
    pause_s = 0.005
    while True:
        alive = [pid for pid in find() if _running(pid)]
        age_s = time.monotonic() - started
        if not alive or age_s > grace_s + kill_s:
            return alive
        for pid in alive:
            if age_s >= grace_s:
                _signal(pid, signal.SIGKILL)
            elif pid not in asked:
                asked.add(pid)
                _signal(pid, signal.SIGTERM)
                # A stopped process sees SIGTERM only once it runs again.
                _signal(pid, signal.SIGCONT)
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.1)


def end_marked(
    nonce: str, extra: Optional[bytes] = None, grace_s: float = 2.0, kill_s: float = 10.0
) -> List[int]:
    """End every process that `find_marked` finds, also those in sessions of their own; see `end`."""
    return end(lambda: find_marked(nonce, extra), grace_s, kill_s)


def _running(pid: int) -> bool:
    entry = stat(pid)
    return entry is not None and entry.state not in DEAD_STATES


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # it is gone, or not ours: `end` tells by looking again


def _output(argv: List[str]) -> str:
    try:
        done = bounded.run(argv, {**os.environ, "LC_ALL": "C"}, 5.0)
    except OSError:
        return ""
    return done.stdout.strip()
