"""The run's journal: one JSON object a line, append-only, durable, and able to tell of a full disk."""

from __future__ import annotations

import errno
import json
import os
import time
from typing import Any, Dict, Iterator, Mapping

from .paths import RunPaths
from .syncing import Syncer
from .wire import dump

RESERVE_BYTES = 1 << 20
SYNC_AFTER_S = 0.1
_FULL = (errno.ENOSPC, errno.EDQUOT)


class JournalFull(Exception):
    """Nothing more can be written, not even into the reserve."""


class Journal:
    """Appends events. Lines begin to be put on disk at the latest 100 ms after they were written, measurements at once.

    1 MiB lies in a file beside the journal; when the disk fills up it is given back, so that the end of the run can
    still be told. `full` is True from then on."""

    def __init__(self, paths: RunPaths) -> None:
        self._reserve = paths.reserve
        self._fd = os.open(paths.journal, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._syncer = Syncer(self._fd)
        self._dirty_since: float = 0.0
        self._urgent = False
        self.full = False
        self._end_torn_line()
        self._reserve_room()

    @property
    def size(self) -> int:
        """Bytes written so far: where the next line begins."""
        return os.fstat(self._fd).st_size

    def append(self, kind: str, **fields: Any) -> None:
        """Write one event. Raises JournalFull."""
        event: Dict[str, Any] = {"t": round(time.time(), 6), "mono": round(time.monotonic(), 6), "type": kind}
        event.update(fields)
        self._write(dump(event) + b"\n")
        self._urgent = self._urgent or kind in ("measurement", "agent_finished", "released")
        self._dirty_since = self._dirty_since or time.monotonic()

    def sync_due(self, now: float) -> float:
        """Seconds until `sync_soon` must be called; infinity when all is on its way to the disk."""
        if not self._dirty_since:
            return float("inf")
        return 0.0 if self._urgent else max(0.0, self._dirty_since + SYNC_AFTER_S - now)

    def sync_soon(self) -> None:
        """Begin to put everything written so far on disk; nobody waits for that."""
        if self._dirty_since:
            self._dirty_since, self._urgent = 0.0, False
            self._syncer.ask()
        error = self._syncer.take_error()
        if error is not None:
            self._sync_failed(error)

    def sync(self) -> None:
        """Put everything written so far on disk."""
        self._dirty_since, self._urgent = 0.0, False
        try:
            os.fsync(self._fd)
        except OSError as error:
            self._sync_failed(error)

    def _sync_failed(self, error: OSError) -> None:
        if error.errno not in _FULL:
            raise error
        self._drop_reserve()

    def close(self) -> None:
        """Sync, and give the reserve back."""
        self._syncer.stop()
        self.sync()
        os.close(self._fd)
        self._unlink_reserve()

    def _write(self, line: bytes) -> None:
        start = os.fstat(self._fd).st_size
        view = memoryview(line)
        tries = 0
        while view:
            try:
                view = view[os.write(self._fd, view) :]
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                tries += 1
                if not self.full:
                    self._drop_reserve()
                elif tries > 20:
                    os.ftruncate(self._fd, start)  # no reader ever sees half a line of ours
                    raise JournalFull(os.strerror(error.errno)) from error
                else:
                    time.sleep(0.05)  # a file system may give freed blocks out a moment later

    def _reserve_room(self) -> None:
        try:
            fd = os.open(self._reserve, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self.full = error.errno in _FULL
            return
        try:
            _allocate(fd, RESERVE_BYTES)
        except OSError as error:
            if error.errno in _FULL:
                self._drop_reserve()
        finally:
            os.close(fd)

    def _drop_reserve(self) -> None:
        self.full = True
        self._unlink_reserve()

    def _unlink_reserve(self) -> None:
        try:
            os.unlink(self._reserve)
        except FileNotFoundError:
            pass

    def _end_torn_line(self) -> None:
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            self._write(b"\n")


def _allocate(fd: int, size: int) -> None:
    """Make a file take up `size` bytes for good, also where the file system cannot simply reserve them."""
    try:
        os.posix_fallocate(fd, 0, size)
    except (AttributeError, OSError) as error:
        if isinstance(error, OSError) and error.errno in _FULL:
            raise
        view = memoryview(os.urandom(size))  # a compressing file system stores zeros as nothing
        while view:
            view = view[os.write(fd, view) :]


def read_events(path: str) -> Iterator[Dict[str, Any]]:
    """Every event of a journal in order; lines that are no JSON object (a writer was killed) are passed over."""
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below; a missing journal has no events
    except FileNotFoundError:
        return
    with file:
        for line in file:
            try:
                event = json.loads(line.decode("utf-8"))
            except ValueError:
                continue
            if isinstance(event, dict) and line.endswith(b"\n"):
                yield event


def last_event(path: str) -> Dict[str, Any]:
    """The newest whole event of a journal, or {}."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            # The longest line that can be last is a `released` of a whole queue.
            file.seek(max(0, size - (1 << 20)))
            tail = file.read()
    except FileNotFoundError:
        return {}
    for line in reversed(tail[: tail.rfind(b"\n") + 1].split(b"\n")):
        try:
            event = json.loads(line.decode("utf-8"))
        except ValueError:
            continue
        if isinstance(event, dict):
            return event
    return {}


def state_of(event: Mapping[str, Any]) -> str:
    """How a run whose agent is gone stands, by its newest event: `finished`, `cancelled` or `dead`."""
    state = event.get("state") if event.get("type") == "agent_finished" else None
    return str(state) if state in ("finished", "cancelled") else "dead"
