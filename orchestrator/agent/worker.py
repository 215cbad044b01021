"""One worker process: started in a session of its own, spoken to over private pipes, and gone for good when it ends."""

from __future__ import annotations

import errno
import json
import os
import selectors
import signal
import subprocess
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

from . import children, orphans, procs
from .logs import LogFile
from .spawning import WORKER_VARIABLE, Forked
from .wire import LONGEST_MESSAGE, Lines, dump, encoded

EXIT_GRACE_S = 5.0
TERM_GRACE_S = 2.0
LEFTOVERS_S = 5.0
_CHUNK = 1 << 16
_DRAIN_BYTES = 4 << 20

Process = Union["subprocess.Popen[bytes]", Forked]
Launch = Callable[[Dict[str, str], int, Tuple[int, int]], Process]


class Worker:
    """A payload process. All descriptors are on the caller's selector, whose data are functions without arguments.

    Life: started → (`stop`) → dead (waited for) → leftovers ended → `gone`. `tick` drives the steps that need time."""

    def __init__(
        self,
        name: str,
        nonce: str,
        selector: selectors.BaseSelector,
        log: LogFile,
        on_message: Callable[["Worker", Dict[str, Any]], None],
    ) -> None:
        self.name = name
        self.log = log
        self.returncode: Optional[int] = None
        self.stopping = False
        self.gone = False
        self.pid = 0
        self._nonce = nonce
        self._selector = selector
        self._on_message = on_message
        self._process: Optional[Process] = None
        self._fds: Dict[str, int] = {}
        self._incoming = Lines()
        self._reading = False
        self._unsettled: Optional[int] = None
        self._outgoing = bytearray()
        self._escalate_at = float("inf")
        self._give_up_at = float("inf")
        self._signals: List[signal.Signals] = []
        self._tree: List[procs.Identity] = []  # what was below it when it was told to end

    def start(self, launch: Launch) -> None:
        """Start the process. `launch` gets our marks for its environment, the descriptor for what it prints, and those
        that it keeps. Raises what `launch` raises."""
        to_child, self._fds["in"] = os.pipe()
        self._fds["out"], from_child = os.pipe()
        self._fds["log"], output = os.pipe()
        marks = {
            procs.NONCE_VARIABLE: self._nonce,
            WORKER_VARIABLE: self.name,
            "FARBENCH_WORKER_IN": str(to_child),
            "FARBENCH_WORKER_OUT": str(from_child),
        }
        try:
            with children.start() as note:
                self._process = launch(marks, output, (to_child, from_child))
                note(self._process.pid)
        except BaseException:
            self._close_all()
            raise
        finally:
            for fd in (to_child, from_child, output):
                os.close(fd)
        self.pid = self._process.pid
        for fd in self._fds.values():
            os.set_blocking(fd, False)
        self._selector.register(self._fds["out"], selectors.EVENT_READ, self._read)
        self._selector.register(self._fds["log"], selectors.EVENT_READ, self.pump)

    def send(self, message: Mapping[str, Any]) -> None:
        """Give the worker a message; one that does not read never holds us up."""
        if "in" in self._fds and not self.stopping:
            self._outgoing += dump(message) + b"\n"
            self._flush()

    def stop(self, politely: bool) -> None:
        """Begin to end it: asked over its pipe first when `politely`, else by SIGTERM; SIGKILL follows in time."""
        if self.stopping and politely:
            return
        if politely:
            self.send({"type": "exit"})
        self.stopping = True
        self._signals = [signal.SIGTERM, signal.SIGKILL]
        self._escalate_at = time.monotonic() + (EXIT_GRACE_S if politely else 0.0)
        self._note_tree()
        if politely and not self._outgoing:
            self._close("in")
        self.tick(time.monotonic())

    def tick(self, now: float) -> None:
        """Do what is due: notice its death, send the next signal, end what it left behind."""
        if self.returncode is None:
            self._look()
        if self.returncode is None and now >= self._escalate_at and self._signals:
            self._note_tree()
            self._signal_tree(self._signals.pop(0))
            self._escalate_at = now + TERM_GRACE_S
            self._look()
        if self.returncode is not None and not self.gone:
            self._end_leftovers(now)

    def next_tick(self, now: float) -> float:
        """Seconds until `tick` has something to do, as far as time alone decides."""
        if self.returncode is not None:
            return 0.05
        return max(0.0, self._escalate_at - now) if self._signals else float("inf")

    def own_pids(self) -> List[int]:
        """The worker and everything below it."""
        return [self.pid, *procs.descendants(self.pid)] if self.pid else []

    def drain(self) -> None:
        """Move what it printed into the log: all there is, but never more than a few megabytes at once."""
        for _ in range(_DRAIN_BYTES // _CHUNK):
            before = self.log.position
            data = self._take("log")
            if not data:
                return
            self._unsettled = before if self._unsettled is None else self._unsettled
            self.log.write(data)

    def mark(self) -> None:
        """Let the log's tail begin with what was printed after the message that is being handled.

        Two pipes have no common order. What was taken since the messages were last looked at may have been printed before
        or after it, and is taken for after: last words are never lost, at the price of some earlier ones."""
        self.log.mark(self.log.position if self._unsettled is None else self._unsettled)

    def pump(self) -> None:
        """Take output first, then messages: whatever was said before that output is known then."""
        self.drain()
        self._read()

    def _look(self) -> None:
        """See whether the process is dead. Its group goes with it, while its PID is still held by the zombie."""
        process = self._process
        if process is None:
            self.returncode = 127
            return
        if hasattr(os, "waitid"):
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            if os.waitid(os.P_PID, process.pid, flags) is None:
                return
            self._signal_group(signal.SIGKILL)
        code = process.poll()
        if code is None:
            return
        children.own.discard(process.pid)
        self.pump()  # what was said before the death still counts
        self.returncode = code

    def _end_leftovers(self, now: float) -> None:
        if self._give_up_at == float("inf"):
            self._give_up_at = now + LEFTOVERS_S
        mark = encoded(f"{WORKER_VARIABLE}={self.name}")
        # Marked ones wherever they went; of its tree, and of what it left us, also those that cleared their environment.
        left = {*procs.find_marked(self._nonce, mark), *self._running_tree(), *orphans.adopted()}
        for pid in left:
            _signal(pid, signal.SIGKILL)
        if not left or now >= self._give_up_at:
            self.gone = True
            self.drain()
            self._close_all()

    def _note_tree(self) -> None:
        """Remember what is below it: once it is dead, nobody can tell whose these were."""
        if self.pid:
            known = set(self._tree)
            self._tree += [each for each in procs.tree(self.pid) if each not in known]

    def _running_tree(self) -> List[int]:
        return [each.pid for each in self._tree if procs.same(each)]

    def _signal_tree(self, number: signal.Signals) -> None:
        for pid in self._running_tree():
            if pid != self.pid:
                _signal(pid, number)
        self._signal_group(number)

    def _signal_group(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # nobody is left in it

    def _read(self) -> None:
        if self._reading:
            return  # a handler of a message drained the log, and the messages after it wait their turn
        self._reading = True
        try:
            for _ in range(_DRAIN_BYTES // _CHUNK):
                data = self._take("out")
                if not data:
                    self._unsettled = None
                    return
                self._incoming.feed(data)
                self._handle_lines()
        finally:
            self._reading = False

    def _handle_lines(self) -> None:
        for line in self._incoming.whole():
            self._on_message(self, _message(line))
        if len(self._incoming) > LONGEST_MESSAGE:
            self._incoming.clear()
            self._on_message(
                self, {"type": "garbage", "reason": f"a line of more than {LONGEST_MESSAGE >> 20} MiB"}
            )

    def _take(self, name: str) -> bytes:
        if name not in self._fds:
            return b""
        try:
            data = os.read(self._fds[name], _CHUNK)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        if not data:
            self._close(name)
        return data

    def _flush(self) -> None:
        if "in" not in self._fds:
            return
        fd = self._fds["in"]
        try:
            while self._outgoing:
                del self._outgoing[: os.write(fd, self._outgoing[:_CHUNK])]
        except BlockingIOError:
            if fd not in self._selector.get_map():
                self._selector.register(fd, selectors.EVENT_WRITE, self._flush)
            return
        except OSError as error:
            if error.errno != errno.EPIPE:
                raise
            self._outgoing.clear()  # it closed its end; whether it lives, waitpid tells
        if fd in self._selector.get_map():
            self._selector.unregister(fd)
        if self.stopping:
            self._close("in")

    def _close(self, name: str) -> None:
        fd = self._fds.pop(name, None)
        if fd is None:
            return
        if fd in self._selector.get_map():
            self._selector.unregister(fd)
        os.close(fd)

    def _close_all(self) -> None:
        for name in list(self._fds):
            self._close(name)
        self.log.close()


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        pass  # gone meanwhile, or not ours


def _message(line: bytes) -> Dict[str, Any]:
    try:
        message = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        return {"type": "garbage", "reason": line[:200].decode("utf-8", "replace")}
    return message
