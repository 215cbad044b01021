"""Facts that `doctor` judges, collected side by side and sent as each is known; answers pings meanwhile.

One stuck group (a driver or a file system that hangs) never holds up the others: each runs in a thread of its own,
and what is not known at the end of the time is said to be missing.
"""

from __future__ import annotations

import errno
import os
import pwd
import queue
import select
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Optional

from . import devices, gpu_health, slurm, software
from .channel import Channel, Context
from .leases import LeaseError, Leases
from .logind import kills_at_logout
from .wire import finite, portable

_POLL_S = 0.02
_BUSY_TRIES = 10


def examine(channel: Channel, command: Mapping[str, Any], context: Context) -> None:
    """Send `facts {"group", "facts" or null, "error"}` for every group, then `done`.

    `command`: `python activate devices env distributions budget_s`. Meanwhile `{"type": "ping", "n"}` is answered with
    `pong {"n", "time"}` (UTC seconds); `done` waits for `{"type": "enough"}`, at most as long as the budget."""
    budget_s = min(60.0, float(command.get("budget_s") or 8.0))
    environ = {**os.environ, **{str(k): str(v) for k, v in (command.get("env") or {}).items()}}
    workdir = context.workdir
    groups: Dict[str, Callable[[], Dict[str, Any]]] = {
        "host": lambda: _host(),
        "workdir": lambda: _folder(workdir),
        "tmp": lambda: _folder(_temporary(environ)),
        "gpus": lambda: _gpus(command.get("devices", "all"), environ, workdir, budget_s - 1.0),
        "software": lambda: software.look(
            command.get("python"),
            command.get("activate"),
            [str(name) for name in command.get("distributions") or ()],
            environ,
            budget_s - 1.0,
        ),
    }
    if isinstance(command.get("slurm"), list):
        groups["slurm"] = lambda: _slurm([str(option) for option in command["slurm"]])
    known: "queue.Queue[Dict[str, Any]]" = queue.Queue()
    for name, collect in groups.items():
        threading.Thread(target=_collect, args=(name, collect, known), name=name, daemon=True).start()
    missing = set(groups)
    enough = False
    deadline = time.monotonic() + budget_s
    while (missing or not enough) and not channel.closed and time.monotonic() < deadline:
        enough = _answer_pings(channel, _POLL_S) or enough
        while not known.empty():
            facts = known.get()
            missing.discard(facts["group"])
            channel.send({"type": "facts", **facts})
    for name in sorted(missing):
        channel.send(
            {"type": "facts", "group": name, "facts": None, "error": f"not known within {budget_s:.0f} s"}
        )
    channel.send({"type": "done"})
    # A thread that hangs in a driver would hold up the end of this process.
    sys.stderr.flush()
    os._exit(0)


def _collect(name: str, collect: Callable[[], Dict[str, Any]], known: "queue.Queue[Dict[str, Any]]") -> None:
    try:
        known.put({"group": name, "facts": finite(collect())[0], "error": None})
    except Exception as error:  # noqa: BLE001 - a thread's boundary: the other groups go on, the reason is told
        known.put({"group": name, "facts": None, "error": f"{type(error).__name__}: {error}"})


def _answer_pings(channel: Channel, timeout_s: float) -> bool:
    """Answer what has come in; whether the controller has enough of it."""
    enough = False
    if select.select([channel.input_fd], [], [], timeout_s)[0]:
        channel.read_available()
    for message in channel.messages():
        if message.get("type") == "ping":
            channel.send({"type": "pong", "n": message.get("n"), "time": time.time()})
        enough = enough or message.get("type") == "enough"
    return enough


def _slurm(asked: List[str]) -> Dict[str, Any]:
    """{"version", "told": when and where such a job could begin, "error": why Slurm would not take it}"""
    try:
        version = slurm.version()
        return {"version": version, "told": slurm.rehearse(asked), "error": None}
    except slurm.SlurmError as error:
        return {"version": None, "told": None, "error": str(error)}


def _host() -> Dict[str, Any]:
    try:
        entry = pwd.getpwuid(os.getuid())
        user, shell = entry.pw_name, entry.pw_shell or None
    except KeyError:
        user, shell = str(os.getuid()), None  # no entry in passwd: a container with an arbitrary uid
    home = os.path.expanduser("~")
    try:
        load: Optional[float] = os.getloadavg()[0]
    except OSError:
        load = None
    return {
        "user": user,
        "shell": shell,
        "home": portable(home),
        "home_writable": os.access(home, os.W_OK | os.X_OK),
        "kills_at_logout": kills_at_logout(user),
        "load": load,
        "cpus": os.cpu_count(),
        "kernel": f"{os.uname().sysname} {os.uname().release} {os.uname().machine}",
    }


def _folder(path: str) -> Dict[str, Any]:
    """What can be done in a folder: {"path", "mode", "owner", "filesystem", "free_bytes", "free_inodes", "size_bytes",
    "write_error", "exec_error"}"""
    facts: Dict[str, Any] = {"path": portable(path), "write_error": None, "exec_error": None}
    try:
        entry, room = os.stat(path), os.statvfs(path)
    except OSError as error:
        facts["write_error"] = error.strerror or str(error)
        return facts
    facts["mode"] = entry.st_mode & 0o7777
    facts["owner"] = entry.st_uid
    facts["filesystem"] = _filesystem(path)
    facts["free_bytes"] = room.f_bavail * room.f_frsize
    facts["size_bytes"] = room.f_blocks * room.f_frsize
    facts["free_inodes"] = room.f_favail if room.f_files else None
    try:
        fd, program = tempfile.mkstemp(prefix=".farbench-doctor-", dir=path)
    except OSError as error:
        facts["write_error"] = error.strerror or str(error)
        return facts
    try:
        try:
            os.write(fd, b"#!/bin/sh\nexit 0\n".ljust(65536, b"\n"))
            os.fsync(fd)
            os.fchmod(fd, 0o700)
        finally:
            os.close(fd)
        facts["exec_error"] = exec_error(program)
    except OSError as error:
        facts["write_error"] = error.strerror or str(error)
    finally:
        os.unlink(program)
    return facts


def _temporary(environ: Mapping[str, str]) -> str:
    """Where a payload puts temporary files: what the host's `env:` says counts, even if there is no such folder."""
    named = next((environ[name] for name in ("TMPDIR", "TEMP", "TMP") if environ.get(name)), None)
    return named or tempfile.gettempdir()


def exec_error(program: str) -> Optional[str]:
    """Why a program cannot be run, or None."""
    for _ in range(_BUSY_TRIES):
        try:
            code = subprocess.call([program], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            return None if code == 0 else f"exit status {code}"
        except OSError as error:
            if error.errno != errno.ETXTBSY:
                return error.strerror or str(error)
            time.sleep(_POLL_S)  # another thread forked while the file was open for writing
    return None


def _filesystem(path: str) -> Optional[str]:
    """The type of the file system, from the longest mount point that the path is below."""
    real, best, kind = os.path.realpath(path), "", None
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
            mounts = [line.split() for line in file]
    except OSError:
        return None
    for fields in mounts:
        point = fields[1].replace("\\040", " ") if len(fields) > 2 else ""
        if point and (real + "/").startswith(point.rstrip("/") + "/") and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def _gpus(spec: Any, environ: Mapping[str, str], workdir: str, timeout_s: float) -> Dict[str, Any]:
    """The devices that a run would use, and the health of the GPUs among them: `gpu_health.look` and more."""
    facts: Dict[str, Any] = {
        "devices": [],
        "error": None,
        "problems": [],
        "gpus": [],
        "processes": [],
        "problem": None,
    }
    try:
        facts["devices"], facts["problems"] = devices.discover(spec, environ, timeout_s / 2)
    except devices.DeviceError as error:
        facts["error"] = str(error)
    if any(device["kind"] == "gpu" for device in facts["devices"]) or facts["problems"]:
        facts.update(gpu_health.look(environ, timeout_s / 2))
    uuids = [device["uuid"] for device in facts["devices"] if device["kind"] == "gpu"]
    facts["holders"] = _holders(uuids, workdir)
    return facts


def _holders(uuids: Any, workdir: str) -> Dict[str, Any]:
    """Who of farbench's own runs holds which GPU."""
    found = {}
    leases = Leases(workdir)
    for uuid in uuids:
        try:
            holder = leases.holder_of(uuid)
        except LeaseError:
            continue  # nobody has leased anything here, or we may not look
        if holder is not None:
            found[uuid] = holder
    return found
