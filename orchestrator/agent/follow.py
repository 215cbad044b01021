"""Streaming a run's journal to the controller as it grows, and taking the controller's requests meanwhile."""

from __future__ import annotations

import fcntl
import os
import select
import time
from typing import Any, Mapping, Optional

from .channel import Channel
from .coordination import may_steer
from .launcher import enqueue, request, withdraw
from .liveness import Liveness, ending
from .paths import RunPaths
from .watch import Watch

ALIVE_EVERY_S = 5.0
LOOK_EVERY_S = 1.0
GATHER_S = 0.015
"""An agent at work writes many short lines: sent one by one they would cost the controller more than the cases cost."""
_CHUNK = 1 << 16


class TakenOver(Exception):
    """Another controller steers the run now."""


def follow(
    channel: Channel, paths: RunPaths, offset: int, before: str = "", token: Optional[str] = None
) -> None:
    """Send the journal from byte `offset` on, in whole lines, until its agent is gone or nobody listens.

    `before` is what the follower holds of the journal just before `offset`, as hex: where the journal says otherwise it
    is another one (the folder was removed meanwhile), and that is the only answer. `token` names the follower's
    session; raises TakenOver once another one has the run. Holds a shared lock meanwhile: an agent whose queue stays
    open and empty asks whether anyone still follows."""
    if not _continues(paths.journal, offset, bytes.fromhex(before)):
        channel.send({"type": "other_journal"})
        return
    follower = os.open(paths.followers, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(follower, fcntl.LOCK_SH)
    journal = _Tail(paths.journal, offset)
    watch = Watch(paths.journal)
    liveness = Liveness(paths)
    alive_at = 0.0
    told: Optional[str] = None
    try:
        while not channel.closed:
            alive = liveness.alive()  # looked at before the journal: what it wrote before it went is sent
            if not alive:
                journal.close()  # over a network file system what was written last is seen by who opens it anew
            now = time.monotonic()
            if now >= alive_at or (alive and liveness.note != told):
                if token is not None and not may_steer(paths, token):
                    raise TakenOver
                behind = max(0, _size(paths.journal) - journal.offset)
                told = liveness.note
                note = {"note": told, "waits": liveness.waits} if told else {}
                channel.send({"type": "alive", "agent": alive, "time": time.time(), "behind": behind, **note})
                os.utime(follower)  # for an agent on a node that does not see our lock
                alive_at = now + ALIVE_EVERY_S
            sent = False
            while True:
                data = journal.read()
                if not data:
                    break
                sent = True
                channel.send(
                    {"type": "events", "offset": journal.offset - len(data), "length": len(data)}, data
                )
            if not alive:
                channel.send({"type": "end", "offset": journal.offset, **ending(paths), **liveness.verdict()})
                return
            if sent and not journal.ending:
                time.sleep(GATHER_S)
            watch.wait([channel.input_fd], min(LOOK_EVERY_S, alive_at - time.monotonic()), journal.ending)
            if select.select([channel.input_fd], [], [], 0)[0]:
                channel.read_available()
                for message in channel.messages():
                    if not may_steer(paths, token):
                        raise TakenOver
                    obey(paths, message)
    except BrokenPipeError:
        pass  # the connection is gone; the agent goes on
    finally:
        watch.close()
        journal.close()
        os.close(follower)


def obey(paths: RunPaths, message: Mapping[str, Any]) -> None:
    """One control line of a follower. What is not known is passed over: the controller may be newer."""
    kind = message.get("type")
    if kind == "cancel":
        request(paths, {"type": "cancel"})
    elif kind == "withdraw":
        withdraw(paths)
    elif kind == "release" and isinstance(message.get("case_ids"), list):
        request(
            paths,
            {"type": "release", "case_ids": message["case_ids"], "device_model": message.get("device_model")},
        )
    elif kind == "enqueue" and isinstance(message.get("items"), list):
        # An `id` tells a case that is offered again from a message that is only said again.
        more = {name: message[name] for name in ("id", "device_model") if message.get(name) is not None}
        enqueue(paths, message["items"], bool(message.get("sealed")), **more)


def _continues(path: str, offset: int, before: bytes) -> bool:
    """Whether the journal has exactly `before` in front of `offset`."""
    try:
        with open(path, "rb") as file:
            file.seek(offset - len(before))
            return file.read(len(before)) == before
    except FileNotFoundError:
        return offset == 0


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


class _Tail:
    """Whole lines of a growing file."""

    def __init__(self, path: str, offset: int) -> None:
        self.offset = offset
        self.ending = False  # whether the last word of an agent has been read
        self._path = path
        self._fd: Optional[int] = None

    def read(self) -> bytes:
        """The next whole lines, some 64 KiB at a time; b"" when there are none yet."""
        if self._fd is None:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return b""
        size = _CHUNK
        while True:
            data = os.pread(self._fd, size, self.offset)
            end = data.rfind(b"\n") + 1
            if end or len(data) < size:
                break
            size *= 4  # one line is longer than that
        if end:
            self.offset += end
            self.ending = b'"type":"agent_finished"' in data[max(0, end - 4096) : end]
        return data[:end]

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
