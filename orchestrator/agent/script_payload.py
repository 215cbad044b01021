"""The worker of script payloads: runs any program once a case and backend, and reports what it printed.

It is a process of its own, forked from the agent, and speaks the protocol of every worker. So the agent treats all
payloads alike, and results of any size are read where they cannot make it slow or big.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import selectors
import signal
import subprocess
import tempfile
import time
from typing import Any, BinaryIO, Dict, List, Mapping, Optional, Sequence, Tuple

from . import procs
from .attempt import DEFAULT_TIMEOUT_S, seconds
from .exits import MemoryKills, describe, words_of
from .fitting import fitting, some
from .logs import TAIL_BYTES
from .paths import RunPaths
from .script_folder import Folder
from .script_results import (
    LARGEST_DOCUMENT,
    LONGEST_LINE,
    JsonLineFilter,
    Others,
    Outcome,
    ResultsError,
    identity,
    measurements,
    read_rows,
)
from .script_samples import DEFAULT_TARGET_REL_ERROR
from .spawning import WORKER_VARIABLE, adopt_orphans, execute, payload_python
from .wire import LONGEST_MESSAGE, dump, native

TERM_GRACE_S = 2.0
NO_RESULT = "it ended without a result"
_CHUNK = 1 << 16
_ROUND_IT = 4096  # bytes of a message beside its measurement


def serve(paths: RunPaths, job: Mapping[str, Any], payload: str) -> None:
    """Serve cases until told to end; the process's environment names the descriptors, as every worker's does."""
    incoming = int(os.environ.pop("FARBENCH_WORKER_IN"))
    outgoing = int(os.environ.pop("FARBENCH_WORKER_OUT"))
    for fd in (incoming, outgoing):
        os.set_inheritable(fd, False)
    adopt_orphans()
    runner = _Runner(paths, job, job["payloads"][payload], outgoing)
    signal.signal(signal.SIGTERM, _end)
    runner.send({"type": "ready", "import_s": 0.0, "environment": runner.environment()})
    with open(incoming, "rb") as messages:
        for line in messages:
            message = json.loads(line.decode("utf-8"))
            if message["type"] == "exit":
                return
            if message["type"] == "case":
                runner.run_case(message["case"], int(message["attempt"]))


def _end(*_: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)


class _Runner:
    def __init__(
        self, paths: RunPaths, job: Mapping[str, Any], config: Mapping[str, Any], outgoing: int
    ) -> None:
        self._paths = paths
        self._job = job
        self._config = config
        self._outgoing = outgoing
        self._worker = os.environ[WORKER_VARIABLE]
        self._nonce = os.environ[procs.NONCE_VARIABLE]
        results = config.get("results") or {}
        self._source = str(results.get("from") or "stdout")
        self._format = str(results.get("format") or "json_lines")
        self._left_out = ""
        self._bell, bell_writer = os.pipe()
        for fd in (self._bell, bell_writer):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(bell_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def environment(self) -> Dict[str, Any]:
        """What tells this host's results from those of another time."""
        return {
            "kind": "script",
            "python": payload_python(self._job) if self._config.get("python") else None,
            "system": platform.platform(),
            "machine": platform.machine(),
        }

    def send(self, message: Mapping[str, Any]) -> None:
        """Tell the agent."""
        view = memoryview(dump(message) + b"\n")
        while view:
            view = view[os.write(self._outgoing, view) :]

    def run_case(self, case: Mapping[str, Any], attempt: int) -> None:
        """Every backend asked for, one after the other."""
        reported: Dict[str, str] = dict(case.get("reported") or {})
        others = Others({*case["backends"], *case["commands"]}, reported)
        for backend in case["backends"]:
            self.send({"type": "phase", "backend": backend, "phase": "measure"})
            for measurement in self._run(case, backend, attempt, others):
                # A row may name a backend of its own; `asked` is the one that this execution was for.
                fits = fitting(measurement, LONGEST_MESSAGE - _ROUND_IT)
                self.send({"type": "measurement", "measurement": fits, "asked": backend})
                reported.setdefault(identity(measurement), backend)
        self.send({"type": "case_done", "healthy": True})

    def _run(
        self, case: Mapping[str, Any], backend: str, attempt: int, others: Others
    ) -> List[Dict[str, Any]]:
        keys = [str(key) for key in self._config.get("keys") or ()]
        several = self._worker if self._job.get("replicate_devices") else ""
        folder = Folder(self._paths, str(case["case_id"]), backend, attempt, several)
        try:
            folder.fill(self._config.get("files") or {}, executable=not self._config.get("python"))
            argv = self._argv(case, backend, folder)
            with tempfile.TemporaryFile(dir=folder.path) as spool:
                outcome, words = self._execute(argv, folder.path, case, spool)
                rows, outcome = self._rows(folder, spool, outcome)
            self._tell(case, backend, folder.collect(self._config.get("collect") or ()))
        except OSError as error:
            rows, outcome = (
                [],
                Outcome("error", f"{error.strerror or error}: {error.filename or folder.path}"),
            )
            words = None
        finally:
            folder.remove()
        if outcome.status == "ok" and not rows:
            outcome = Outcome("error", "; ".join(filter(None, (NO_RESULT, self._left_out))))
        elif self._left_out:
            self._tell(case, backend, [self._left_out])
        if outcome.status != "ok" and words:
            outcome = Outcome(outcome.status, f"{outcome.reason}; it last printed: {words}")
        target = float((case.get("measure") or {}).get("target_rel_error") or DEFAULT_TARGET_REL_ERROR)
        return measurements(rows, backend, keys, outcome, others, target)

    def _tell(self, case: Mapping[str, Any], backend: str, problems: Sequence[str]) -> None:
        if problems:
            self.send({"type": "problem", "message": f"{case.get('label')}, {backend}: {some(problems)}"})

    def _argv(self, case: Mapping[str, Any], backend: str, folder: Folder) -> List[str]:
        argv = [str(argument) for argument in case["commands"][backend]]
        if self._config.get("python"):
            return [payload_python(self._job), *argv]
        if argv[0] in (self._config.get("files") or {}):
            argv[0] = os.path.join(folder.path, native(argv[0]))
        return argv

    def _rows(
        self, folder: Folder, spool: BinaryIO, outcome: Outcome
    ) -> "tuple[List[Dict[str, Any]], Outcome]":
        """The rows, and the outcome made worse if they cannot be read."""
        try:
            if self._source == "stdout":
                spool.seek(0)
                return read_rows(spool, self._format), outcome
            with folder.open(self._source) as source:
                return read_rows(source, self._format), outcome
        except FileNotFoundError:
            problem = f"it wrote no {self._source}"
        except (ResultsError, ValueError) as error:
            problem = str(error)
        if outcome.status == "ok":
            return [], Outcome("error", problem)
        return [], Outcome(outcome.status, f"{outcome.reason}; {problem}")

    # --- one execution ---------------------------------------------------------------------------------------

    def _execute(
        self, argv: Sequence[str], cwd: str, case: Mapping[str, Any], spool: BinaryIO
    ) -> Tuple[Outcome, Optional[str]]:
        """How it ended, and what it printed last."""
        limit_s = seconds(case.get("timeout_s"), DEFAULT_TIMEOUT_S)
        kept = (procs.NONCE_VARIABLE, WORKER_VARIABLE, "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
        marks = {name: os.environ[name] for name in kept if name in os.environ}
        activate = self._job.get("activate")
        kills = MemoryKills()
        deadline = time.monotonic() + limit_s
        errors, inherited = os.pipe()
        try:
            process = execute(
                argv,
                {},
                marks,
                str(activate) if activate else None,
                cwd,
                output=inherited,
                stdout=subprocess.PIPE,
            )
        except (OSError, ValueError) as error:
            os.close(errors)
            return Outcome("error", f"cannot start {argv[0]}: {_why(error, argv)}"), None
        finally:
            os.close(inherited)
        self._left_out = ""
        output = _Sink(spool if self._source == "stdout" else None, self._format)
        complaints = _Sink(None, self._format)
        try:
            in_time = self._pump(process, {_descriptor(process): output, errors: complaints}, deadline)
        finally:
            self._end_all(process)
            os.close(errors)
        if not in_time:
            return Outcome("timeout", f"it ran longer than timeout_s = {limit_s:g} s"), None
        self._left_out = output.left_out()
        words = words_of(complaints.tail, output.tail)
        code = process.returncode
        if code == 0:
            return Outcome("ok"), words
        out_of_memory = kills.verdict(code)
        if out_of_memory:
            return Outcome("oom", out_of_memory), None
        return Outcome("error" if code > 0 else "crashed", describe(code)), words

    def _pump(
        self, process: "subprocess.Popen[bytes]", sinks: "Mapping[int, _Sink]", deadline: float
    ) -> bool:
        """Take its output until it is dead (known by wait, never by end-of-file); whether that was in time."""
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            for fd in sinks:
                os.set_blocking(fd, False)
                selector.register(fd, selectors.EVENT_READ)
            selector.register(self._bell, selectors.EVENT_READ)
            while process.poll() is None and time.monotonic() < deadline:
                for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                    if key.fd == self._bell:
                        _drain(self._bell)
                    elif sinks[key.fd].take(key.fd) == 0:
                        selector.unregister(key.fd)
        in_time = process.poll() is not None
        if not in_time:
            self._end_all(process)
        for fd, sink in sinks.items():
            for _ in range(LARGEST_DOCUMENT // _CHUNK):
                if sink.take(fd) <= 0:
                    break
            sink.close()
        process.stdout.close()
        return in_time

    def _end_all(self, process: "subprocess.Popen[bytes]") -> None:
        """End it and everything that it started, also what left its session or cleared its environment."""
        if process.poll() is None:
            procs.end(_below, grace_s=TERM_GRACE_S)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # where processes cannot be listed
                process.wait()
        procs.end(lambda: {*procs.find_marked(self._nonce, _mark(self._worker)), *_below()}, grace_s=0.0)
        _reap()


class _Sink:
    """Where what a program prints goes: into the log, and what may be results into the spool as well, if there is one.

    `tail` is the end of it."""

    def __init__(self, spool: Optional[BinaryIO], form: str) -> None:
        self.tail = bytearray()
        self._spool = spool
        self._filter = JsonLineFilter() if form == "json_lines" else None
        self._left = LARGEST_DOCUMENT + 1  # one more: whoever reads it then sees that it is too long

    def take(self, fd: int) -> int:
        """Move what there is, at most 64 KiB: the number of bytes, 0 at the end of it, -1 when there is nothing now."""
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return -1
        view = memoryview(data)
        while view:
            view = view[os.write(2, view) :]
        self.tail += data
        del self.tail[:-TAIL_BYTES]
        if self._spool is not None:
            self._keep(self._filter.feed(data) if self._filter else data)
        return len(data)

    def close(self) -> None:
        """The stream has ended."""
        if self._spool is not None:
            if self._filter:
                self._keep(self._filter.flush())
            self._spool.flush()

    def left_out(self) -> str:
        """What of it was no chatter and is not in the spool, in words."""
        if self._filter is None or not self._filter.left_out:
            return ""
        return f"lines of more than {LONGEST_LINE >> 20} MiB that began like results were left out: {self._filter.left_out}"

    def _keep(self, data: bytes) -> None:
        if self._spool is not None and self._left > 0:
            self._left -= self._spool.write(data[: self._left])


def _descriptor(process: "subprocess.Popen[bytes]") -> int:
    assert process.stdout is not None
    return process.stdout.fileno()


def _mark(worker: str) -> bytes:
    """The environment entry that every process of a worker carries."""
    return os.fsencode(f"{WORKER_VARIABLE}={worker}")


def _below() -> List[int]:
    """Every process of the case: this one has no other children, and orphans become its own."""
    return procs.descendants(os.getpid())


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass


def _why(error: Exception, argv: Sequence[str]) -> str:
    """The system's reason; where there was too much to hand over, with what is largest of it."""
    reason = getattr(error, "strerror", None) or str(error)
    if getattr(error, "errno", None) != errno.E2BIG:
        return reason
    sizes = [(len(os.fsencode(value)), f"variable {name}") for name, value in os.environ.items()]
    sizes += [(len(os.fsencode(value)), f"argument {number}") for number, value in enumerate(argv)]
    size, name = max(sizes)
    return f"{reason}: {name} has {size} bytes, and Linux takes at most 131071 in one"
