"""How this run starts its workers: from the job, the secrets, and what the host has."""

from __future__ import annotations

import errno
import os
import re
import selectors
import shutil
import time
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence, Tuple

from . import devices as devices_module
from . import jit_caches, ranks, script_payload
from .logs import LogFile, Redactor
from .paths import RunPaths, checked_relative
from .queueing import Group
from .spawning import execute, fork, payload_python
from .wire import native, portable
from .worker import Launch, Process, Worker

SCRIPT_SLACK_S = 20.0
"""The runner of script payloads keeps the time itself, so that it can save what was printed; we only watch it."""


class StartError(Exception):
    """A worker could not even be started; the message is a measurement's reason."""


class RunSetup:
    """Everything a worker's start needs; one object a run."""

    def __init__(
        self,
        paths: RunPaths,
        job: Mapping[str, Any],
        secrets: Mapping[str, str],
        selector: selectors.BaseSelector,
    ) -> None:
        self.paths = paths
        self.job = job
        self.nonce = str(job["nonce"])
        self.redactor = Redactor(secrets.values())
        self.tell: Callable[[str], None] = lambda message: None
        """Where what people should know goes."""
        self._secrets = dict(secrets)
        self._selector = selector
        self._serial = _newest_serial(paths.logs)
        self._caches: Dict[str, Dict[str, str]] = {}
        self._began: Dict[str, float] = {}
        self._told: List[str] = []

    def payload(self, name: str) -> Mapping[str, Any]:
        """What the job says of a payload. Raises StartError for an unknown one."""
        payload = self.job.get("payloads", {}).get(name)
        if not isinstance(payload, dict):
            raise StartError(f"the job knows no payload {name!r}")
        return payload

    def is_script(self, name: str) -> bool:
        """Whether a payload is any program, run once a case, and no worker of its own."""
        return (self.job.get("payloads", {}).get(name) or {}).get("kind") == "script"

    def share_workers(self, one: Group, other: Group) -> bool:
        """Whether a worker that was started for one of two groups can serve the other: templates on as many devices."""
        return (
            one.gang == other.gang and not self.is_script(one.payload) and not self.is_script(other.payload)
        )

    def script_of(self, name: str) -> Dict[str, str]:
        """What a worker is told of a case's payload: the script of a template."""
        config = self.payload(name)
        return {} if config.get("kind") == "script" else {"script": str(config.get("script"))}

    def slack_s(self, name: str) -> float:
        """How much later than a case's own limit we act."""
        return SCRIPT_SLACK_S if self.is_script(name) else 0.0

    def environment(self) -> Dict[str, str]:
        """The user's variables for payload processes, secrets among them."""
        env = {str(name): str(value) for name, value in (self.job.get("env") or {}).items()}
        return {**env, **self._secrets}

    def missing_python(self) -> str:
        """Why not one payload of the run can start, where `python:` of the host names no program; else empty."""
        python = payload_python(self.job)
        needed = all(
            payload.get("kind") != "script" or payload.get("python")
            for payload in (self.job.get("payloads") or {}).values()
        )
        # `activate` may bring the interpreter; a bare name is looked for when a worker starts.
        if not needed or self.job.get("activate") or not os.path.isabs(python) or os.access(python, os.X_OK):
            return ""
        why = "cannot be executed" if os.path.exists(python) else "is not there"
        return f"{portable(python)}, which `python:` names in hosts.yaml, {why} (`farbench doctor` checks it)"

    def start_workers(
        self,
        group: Group,
        devices: Sequence[Dict[str, Any]],
        on_message: Callable[[Worker, Dict[str, Any]], None],
    ) -> Iterator[Worker]:
        """The workers of a crew on its devices, each as soon as it is started. Raises StartError."""
        mask = devices_module.mask(devices)
        # A program that takes several devices starts its own processes.
        alone = group.gang == 1 or self.is_script(group.payload)
        for device, marks in zip(devices, [{}] if alone else ranks.variables(group.gang)):
            yield self.start_worker(device, group.payload, {**mask, **marks}, on_message)

    def start_worker(
        self,
        device: Mapping[str, Any],
        payload: str,
        marks: Mapping[str, str],
        on_message: Callable[[Worker, Dict[str, Any]], None],
    ) -> Worker:
        """A new worker process for a payload. Raises StartError."""
        self._serial += 1
        name = f"{device['kind']}{device['index']}-{self._serial:03d}"
        # Libraries drop files where they stand; this folder goes with the run, never with somebody's home.
        cwd = os.path.join(self.paths.work, name)
        program = payload
        try:
            os.makedirs(cwd, mode=0o700, exist_ok=True)
            self._caches[name] = self._choose_caches(device)
            launch, program = self._launch(payload, {**self.environment(), **self._caches[name]}, marks, cwd)
            log = LogFile(self.paths.log(name), self.redactor)
            worker = Worker(name, self.nonce, self._selector, log, on_message)
            self._began[name] = time.time()
            worker.start(launch)
        except OSError as error:
            raise StartError(self._why(error, program)) from error
        except ValueError as error:  # a zero byte in an argument or a variable
            raise StartError(f"cannot start {program}: {error}") from error
        return worker

    def clean_up(self, worker: str, compiling: bool = False) -> None:
        """Remove the folder a worker stood in. One that was ended while `compiling` may have left locks: tell of them."""
        environ = self._compilers(worker)
        self._caches.pop(worker, None)
        began = self._began.pop(worker, None)
        if compiling and began is not None:
            for lock in jit_caches.left_behind(environ, began)[:3]:
                self.tell(f"a compilation that was ended left a lock that others will wait for: {lock}")
        shutil.rmtree(os.path.join(self.paths.work, worker), ignore_errors=True)

    def explain_compiling(self, workers: Sequence[Worker]) -> str:
        """What workers that compile for too long may be waiting for."""
        own = [pid for worker in workers for pid in worker.own_pids()]
        return jit_caches.explain(self._compilers(workers[0].name), own)

    def _compilers(self, worker: str) -> Dict[str, str]:
        # As far as `activate` does not say otherwise.
        return {**os.environ, **self.environment(), **self._caches.get(worker, {})}

    def _choose_caches(self, device: Mapping[str, Any]) -> Dict[str, str]:
        folder = os.path.join(self.paths.work, "caches", f"{device['kind']}{device['index']}")
        environ = {**os.environ, **self.environment()}
        everything = self.job.get("jit_cache") == "private"
        chosen, problems = jit_caches.private(environ, folder, everything)
        for problem in problems:
            if problem not in self._told:
                self._told.append(problem)
                self.tell(f"{problem}: workers compile into private caches, anew in each run")
        return chosen

    def _launch(
        self, payload: str, env: Mapping[str, str], marks: Mapping[str, str], cwd: str
    ) -> Tuple[Launch, str]:
        """(how to start a worker of the payload, what that runs)."""
        config = self.payload(payload)
        if config.get("kind") == "script":
            # The runner applies `activate` to the program, not to itself.
            serve = partial(script_payload.serve, self.paths, self.job, payload)
            return (lambda own, out, keep: fork(serve, {**env, **marks, **own}, cwd, out, keep)), payload
        python = payload_python(self.job)
        argv = [python, os.path.join(self.paths.root, checked_relative(native(str(config.get("script")))))]
        activate = str(self.job.get("activate") or "") or None

        def start(own: Dict[str, str], out: int, keep: Tuple[int, int]) -> Process:
            return execute(argv, env, {**marks, **own}, activate, cwd, out, keep, adopts=True)

        return start, python

    def _why(self, error: OSError, program: str) -> str:
        if error.errno == errno.E2BIG:
            name, size = max(
                ((name, len(value)) for name, value in self.environment().items()),
                key=lambda pair: pair[1],
                default=("?", 0),
            )
            return (
                f"cannot start {program}: {error.strerror}; the largest variable is {name} with {size} bytes"
            )
        where = error.filename if isinstance(error.filename, str) else program
        return f"cannot start {program}: {error.strerror or error} ({where})"


def _newest_serial(logs: str) -> int:
    """The highest number in the names of workers that left a log here."""
    try:
        names = os.listdir(logs)
    except OSError:
        return 0
    found = (re.search(r"-(\d+)\.log", name) for name in names)
    return max((int(match.group(1)) for match in found if match), default=0)
