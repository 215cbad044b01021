"""A payload as a process: serving an agent case by case, or standing alone with one JSON line a measurement."""

from __future__ import annotations

import faulthandler
import gc
import importlib
import importlib.util
import json
import os
import sys
import time
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Set

from . import channel, device, environment, failures, scripts, selection, streams
from .declare import Payload
from .gang import Gang
from .measure import CaseRun, Reporter


def main(payload: Payload, cases: Sequence[Mapping[str, Any]], argv: Optional[Sequence[str]] = None) -> None:
    """Run the payload and end the process: under an agent until it says so, else all of `cases`.

    Exit code 0 when every measurement is ok or unsupported and at least one is ok, else 1 (always 0 under an agent); 2 for
    a case or backend that the script does not have.
    """
    if scripts.taken(payload):
        return
    descriptors = channel.take_agent_descriptors()
    if descriptors is not None:
        _enable_faulthandler()
        serve(payload, cases, *descriptors)
        sys.exit(0)
    options = selection.parse(payload.name, argv, cases)
    if options.list:
        try:
            print("\n".join(map(selection.line, options.chosen)), flush=True)
        except BrokenPipeError:
            os._exit(1)  # who reads has seen enough, as `head` does
        sys.exit(0)
    out = channel.take_stdout()
    _enable_faulthandler()
    sys.exit(0 if stand_alone(payload, options.chosen, out) else 1)


def _enable_faulthandler() -> None:
    try:
        faulthandler.enable()  # where a crash happened, in the log
    except (AttributeError, OSError, ValueError):
        pass  # no usable standard error


class _AgentReporter(Reporter):
    def __init__(self, out: channel.ResultChannel) -> None:
        self._out = out

    def phase(self, backend: str, phase: str) -> None:
        self._out.send({"type": "phase", "backend": backend, "phase": phase})

    def measurement(self, record: Dict[str, Any]) -> None:
        self._out.send({"type": "measurement", "measurement": record})


def serve(
    payload: Payload, cases: Iterable[Mapping[str, Any]], requests: Any, out: channel.ResultChannel
) -> None:
    """Answer the agent until it says exit or goes away. `cases` only tells which libraries to import beforehand."""
    start = time.perf_counter()
    streams.keep()
    target = prepare_process(payload, cases)
    out.send(
        {
            "type": "ready",
            "import_s": time.perf_counter() - start,
            "environment": environment.describe(target, _distributions(payload, cases)),
        }
    )
    reporter = _AgentReporter(out)
    crossed: Dict[str, Set[Any]] = {}
    served = scripts.Scripts(sys.argv[0], payload)
    targets = {"torch" in _modules(payload, cases): target}
    for line in iter(requests.readline, b""):
        message = json.loads(line.decode("utf-8"))
        if message["type"] == "exit":
            break
        if message["type"] == "case":
            if "port" in message:
                os.environ["MASTER_PORT"] = str(message["port"])  # for who makes a process group of each case
            healthy = _serve_case(served, message, targets, reporter, crossed)
            streams.restore()
            out.send({"type": "case_done", "healthy": healthy})
    target.gang.close()
    _leave()


def _serve_case(
    served: scripts.Scripts,
    message: Mapping[str, Any],
    targets: Dict[bool, device.Device],
    reporter: Reporter,
    crossed: Dict[str, Set[Any]],
) -> bool:
    """`targets`: the device with torch in use, and without; another payload may be the first to need torch."""
    item = message["case"]
    try:
        payload = served.payload_of(message)
        needed = _modules(payload, [item])
        for name in sorted(needed):
            _import(name)
        uses_torch = "torch" in needed or True in targets
        if uses_torch not in targets:
            targets[uses_torch] = device.detect(uses_torch, Gang.of(os.environ))
        target = targets[uses_torch]
    except Exception as error:  # noqa: BLE001 - a user's script: its failure is the outcome of its cases
        for record in scripts.refusals(error, item):
            reporter.measurement(record)
        return True
    return CaseRun(payload, item, target, reporter, crossed.setdefault(payload.name, set())).run()


def _leave() -> None:
    """End the process at once: taking down an interpreter with torch in it takes half a second of the device's time."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):
            pass  # closed by a library
    os._exit(0)


class _LineReporter(Reporter):
    def __init__(self, out: channel.ResultChannel, item: Mapping[str, Any], speaks: bool) -> None:
        self._out = out
        self._speaks = speaks  # of several ranks one does
        self._about = {key: item.get(key) for key in ("case_id", "label", "payload", "params")}
        self.statuses: List[str] = []

    def phase(self, backend: str, phase: str) -> None:
        streams.restore()
        print("farbench: {}  {}  {}".format(self._about["label"], backend, phase), file=sys.stderr)

    def measurement(self, record: Dict[str, Any]) -> None:
        self.statuses.append(record["status"])
        if self._speaks:
            self._out.send(dict(self._about, **record))


def stand_alone(payload: Payload, cases: Sequence[Mapping[str, Any]], out: channel.ResultChannel) -> bool:
    """Run `cases` one after another, one JSON line a measurement; whether all went well."""
    streams.keep()
    target = prepare_process(payload, cases)
    statuses: List[str] = []
    crossed: Set[Any] = set()
    for item in cases:
        reporter = _LineReporter(out, item, target.gang.is_lead)
        healthy = CaseRun(payload, item, target, reporter, crossed).run()
        statuses += reporter.statuses
        streams.restore()
        if not healthy:
            print("farbench: stopping; run the other cases in a new process (--case)", file=sys.stderr)
            return False
    target.gang.close()
    return "ok" in statuses and set(statuses) <= {"ok", "unsupported"}


def prepare_process(payload: Payload, cases: Iterable[Mapping[str, Any]]) -> device.Device:
    """Import what the cases' backends share (torch, once a process) and find the device."""
    _find_own_tools()
    for name in sorted(_modules(payload, cases)):
        _import(name)
    gc.collect()
    gc.freeze()  # what the imports made stays: later collections need not look at it again
    return device.detect("torch" in _modules(payload, cases), Gang.of(os.environ))


def _modules(payload: Payload, cases: Iterable[Mapping[str, Any]]) -> Set[str]:
    """Which of the libraries that backends share the cases need."""
    needed = {
        library.module
        for name in _backend_names(cases)
        if name in payload.backends
        for library in payload.backends[name].needs.libraries
    }
    return needed & {"numpy", "torch"}


def _import(name: str) -> None:
    if importlib.util.find_spec(name) is not None:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - whatever keeps it from loading, the backends that need it will say so
            failures.log(error, "import {}".format(name))


def _find_own_tools() -> None:
    """Put the interpreter's own programs on PATH, as activating its environment would: a session over SSH has a bare one,
    and libraries that compile at first use call `ninja` by its name."""
    folder = os.path.dirname(sys.executable)
    path = os.environ.get("PATH", os.defpath)
    if folder and folder not in path.split(os.pathsep):
        os.environ["PATH"] = path + os.pathsep + folder


def _backend_names(cases: Iterable[Mapping[str, Any]]) -> List[str]:
    return [name for item in cases for name in item["backends"]]


def _distributions(payload: Payload, cases: Iterable[Mapping[str, Any]]) -> List[str]:
    return [
        name
        for backend in _backend_names(cases)
        if backend in payload.backends
        for library in payload.backends[backend].needs.libraries
        for name in library.installed_as
    ]
