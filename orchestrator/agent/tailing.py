"""What workers print, sent to whoever asks: the end of each log, and on request whatever is added, worker after worker."""

from __future__ import annotations

import os
import select
import time
from typing import Any, Dict, List, Mapping, Optional

from .channel import Channel
from .liveness import Liveness
from .paths import RunPaths

LOOK_EVERY_S = 0.5
ALIVE_EVERY_S = 5.0
_CHUNK = 1 << 18
_LOOKED_BACK = 4 << 20
_SEGMENTS = (".tail1", ".tail2")
_LOG = ".log"


def stream_logs(channel: Channel, paths: RunPaths, command: Mapping[str, Any]) -> None:
    """Answer `log {"worker", "length"}` and the raw bytes, again and again, and `end {}` at last.

    `worker` names one log; `tail` is how many lines of each are sent first (null: all); with `follow` it goes on until
    the agent is gone."""
    only = command.get("worker")
    logs: Dict[str, Log] = {}
    tail: Optional[int] = None if command.get("tail") is None else max(0, int(command["tail"]))
    alive_at = 0.0
    liveness = Liveness(paths)
    try:
        while not channel.closed:
            alive = liveness.alive()  # looked at before the logs: what was printed before its end is sent
            for name in _names(paths.logs):
                if only in (None, name) and name not in logs:
                    logs[name] = Log(paths.log(name), tail)
            for name, log in logs.items():
                while True:
                    data = log.read()
                    if not data:
                        break
                    channel.send({"type": "log", "worker": name, "length": len(data)}, data)
            tail = None  # logs that appear later are sent from their beginning
            if not command.get("follow") or not alive:
                channel.send({"type": "end"})
                return
            if time.monotonic() >= alive_at:
                channel.send({"type": "alive", "agent": alive, "time": time.time()})
                alive_at = time.monotonic() + ALIVE_EVERY_S
            if select.select([channel.input_fd], [], [], LOOK_EVERY_S)[0]:
                channel.read_available()
    except BrokenPipeError:
        pass
    finally:
        for log in logs.values():
            log.close()


class Log:
    """One log while it is written (see logs.LogFile): its beginning, then two files that take turns, which are joined
    to it when its worker ends."""

    def __init__(self, path: str, tail: Optional[int]) -> None:
        self._path = path
        self._fd: Optional[int] = None
        self._name = ""
        self._offset = 0
        if tail is not None:
            self._go_to_tail(tail)

    def read(self) -> bytes:
        """What comes next, some 256 KiB at a time; b"" when there is nothing now."""
        if self._fd is None:
            self._open(self._path)
        if self._fd is None:
            return b""
        data = os.pread(self._fd, _CHUNK, self._offset)
        while not data and self._move_on():
            data = os.pread(self._fd, _CHUNK, self._offset)
        self._offset += len(data)
        return data

    def close(self) -> None:
        """Close what is open."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _move_on(self) -> bool:
        """Go to the file in which the log goes on, if there is one."""
        assert self._fd is not None
        size = os.fstat(self._fd).st_size
        if size < self._offset:  # it was begun anew
            self._offset = 0
            return size > 0
        segments = _segments(self._path)
        if self._name == self._path:
            return bool(segments) and self._open(segments[0])
        if self._name not in segments:
            # The worker has ended: the end of the whole log is what we were reading.
            left = size - self._offset
            if not self._open(self._path) or self._fd is None:
                return False
            self._offset = max(0, os.fstat(self._fd).st_size - left)
            return left > 0
        newer = segments[segments.index(self._name) + 1 :]
        return bool(newer) and self._open(newer[0])

    def _open(self, path: str) -> bool:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        self.close()
        self._fd, self._name, self._offset = fd, path, 0
        return True

    def _go_to_tail(self, lines: int) -> None:
        """Begin so that the last `lines` lines of what there is will be read; of each file at most its last 4 MiB."""
        for path in reversed([self._path, *_segments(self._path)]):
            if not self._open(path) or self._fd is None:
                continue
            size = os.fstat(self._fd).st_size
            if not lines:
                self._offset = size
                return
            first = max(0, size - _LOOKED_BACK)
            data = os.pread(self._fd, size - first, first)
            end = len(data) - data.endswith(b"\n")
            while lines and end >= 0:
                end = data.rfind(b"\n", 0, end)
                lines -= 1
            self._offset = first + end + 1
            if end >= 0:
                return  # else all of this file is wanted, and maybe some of the one before it


def _segments(path: str) -> List[str]:
    """The files beside a log in which its newest part lies, oldest first."""
    found = []
    for segment in _SEGMENTS:
        try:
            found.append((os.stat(path + segment).st_mtime_ns, path + segment))
        except OSError:
            continue
    return [name for _, name in sorted(found)]


def _names(folder: str) -> List[str]:
    try:
        return sorted(name[: -len(_LOG)] for name in os.listdir(folder) if name.endswith(_LOG))
    except FileNotFoundError:
        return []
