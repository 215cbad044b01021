"""GPU time of single calls from CUPTI's records: when their kernels, copies and fills began and ended on the device.

Needs `cupti-python` (bindings of one CUDA version) of the CUDA version that torch is built for, no newer than the CUPTI
library beside it: bindings that are newer read the library's records wrong. Whether it works here is tried, not believed:
a kernel that spins for a known time must be recorded, once, and with about that time.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from importlib import metadata
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Union

from . import cuda

OLDEST_MAJOR = 13
SWITCH = "FARBENCH_CUPTI"
BUFFER_BYTES = 1 << 22

# The trial's kernel spins at least this long, and no GPU is so slow that it takes twenty times of it.
SPIN_US = 50.0
SPIN_AT_MOST = 20.0

# A call is queued before the kernel that opens its bracket ends: tracing makes each launch a few µs longer.
ISSUE_SLACK = 3.0
ISSUE_SLACK_US = 50.0


class Unusable(Exception):
    """Why CUPTI cannot time here."""


class _Record(NamedTuple):
    correlation_id: int
    name: str
    start_ns: int
    end_ns: int


class Span(NamedTuple):
    """A call on the device: microseconds from its first kernel's start to its last one's end, and those of them in which
    a kernel ran. Kernels that the host launches one by one stand a µs or more apart."""

    us: float
    busy_us: float


class Tracer:
    """CUPTI's activity records of this process. It is attached to the process while `spans` runs, and only then: other
    timers, the host's above all, must not pay for it."""

    def __init__(self, cupti: Any) -> None:
        """Try it. Raises `Unusable`, or what CUPTI raises."""
        self._cupti = cupti
        kinds = cupti.ActivityKind
        self._kinds = {int(kind) for kind in (kinds.CONCURRENT_KERNEL, kinds.MEMCPY, kinds.MEMSET)}
        self._kernel = int(kinds.CONCURRENT_KERNEL)
        self._records: List[_Record] = []
        self._bracket = self._try()

    def spans(
        self,
        work: Callable[[], Any],
        count: int,
        issue_us: float,
        before: Optional[Callable[[], None]] = None,
    ) -> List[Span]:
        """The span of each of `count` runs of `work`.

        `before` runs ahead of each and is not in it. Each run stands between two spinning kernels, told by their name
        and the order of launches; the first also hides how long `issue_us` the host takes to launch. Raises
        RuntimeError when records are missing.
        """

        def bracketed() -> None:
            for _ in range(count):
                if before is not None:
                    before()
                cuda.block(ISSUE_SLACK * issue_us + ISSUE_SLACK_US)
                work()
                cuda.block(0.0)

        return _spans(self._trace(bracketed), self._bracket, count)

    def _try(self) -> str:
        """The spinning kernel's name, once it is recorded as it should be."""
        found = self._trace(lambda: cuda.block(SPIN_US))
        if len(found) != 1:
            raise Unusable("CUPTI recorded {} kernels where one ran".format(len(found)))
        took_us = (found[0].end_ns - found[0].start_ns) / 1e3
        if not SPIN_US <= took_us <= SPIN_AT_MOST * SPIN_US:
            raise Unusable(
                "CUPTI says {:.0f} µs of a kernel that spins for {:.0f} µs".format(took_us, SPIN_US)
            )
        return found[0].name

    def _trace(self, work: Callable[[], Any]) -> List[_Record]:
        cuda.synchronize()
        del self._records[:]
        enabled: List[int] = []
        try:
            for kind in sorted(self._kinds):
                self._cupti.activity_enable(kind)
                enabled.append(kind)
            self._cupti.activity_register_callbacks(_buffer, self._completed)
            work()
            cuda.synchronize()
            self._cupti.activity_flush_all(0)
        finally:
            for kind in enabled:
                self._cupti.activity_disable(kind)
            self._cupti.finalize()
        return sorted(self._records)

    def _completed(self, activities: List[Any]) -> None:
        for activity in activities:
            if activity.kind in self._kinds:
                name = str(activity.name) if activity.kind == self._kernel else ""
                self._records.append(_Record(activity.correlation_id, name, activity.start, activity.end))


def _buffer() -> Tuple[int, int]:
    """What CUPTI asks when it needs room: bytes, and how many records at most (0: as many as fit)."""
    return BUFFER_BYTES, 0


def _spans(records: List[_Record], bracket: str, count: int) -> List[Span]:
    runs: List[List[_Record]] = []
    is_open = False
    for record in records:
        if record.name == bracket:
            is_open = not is_open
            if is_open:
                runs.append([])
        elif is_open:
            runs[-1].append(record)
    if len(runs) != count or is_open:
        raise RuntimeError("CUPTI lost records: {} of {} calls were seen".format(len(runs), count))
    if not all(runs):
        raise RuntimeError("CUPTI recorded no kernel of a call")
    return [_span(run) for run in runs]


def _span(run: List[_Record]) -> Span:
    busy_ns, reached = 0, 0
    for record in sorted(run, key=lambda record: record.start_ns):
        busy_ns += max(0, record.end_ns - max(record.start_ns, reached))
        reached = max(reached, record.end_ns)
    return Span((reached - min(record.start_ns for record in run)) / 1e3, busy_ns / 1e3)


_found: Dict[str, Union[Tracer, Unusable]] = {}


def tracer() -> Tracer:
    """The process's tracer; made, and tried, at the first call. Raises `Unusable`."""
    if "tracer" not in _found:
        try:
            _found["tracer"] = Tracer(_bindings())
        except Unusable as error:
            _found["tracer"] = error
        except Exception as error:  # noqa: BLE001 - a library that lies about its version fails in any way, at any call
            text = str(error).strip().split("\n")[0] or type(error).__name__
            _found["tracer"] = Unusable("CUPTI does not work here: {}".format(text))
    found = _found["tracer"]
    if isinstance(found, Unusable):
        raise found
    return found


def forget() -> None:
    """Try anew at the next call."""
    _found.clear()


def _bindings() -> Any:
    if os.environ.get(SWITCH) == "0":
        raise Unusable("{}=0 switches CUPTI off".format(SWITCH))
    if importlib.util.find_spec("cupti") is None:
        raise Unusable("cupti-python is not installed")
    objection = version_objection(
        _version("cupti-python"), cuda.runtime_version(), _version("nvidia-cuda-cupti")
    )
    if objection is not None:
        raise Unusable(objection)
    return importlib.import_module("cupti.cupti")


def version_objection(
    bindings: Optional[str], runtime: Optional[str], library: Optional[str]
) -> Optional[str]:
    """Why this `cupti-python` does not match torch's CUDA version, or the installed CUPTI library's, or None."""
    if bindings is None:
        return "nobody knows the version of the module cupti: it was not installed as cupti-python"
    if _numbers(bindings)[0] < OLDEST_MAJOR:
        return "cupti-python {} is too old: needs {} or newer".format(bindings, OLDEST_MAJOR)
    if runtime is not None and _numbers(bindings)[0] != _numbers(runtime)[0]:
        return "cupti-python {} does not match torch's CUDA {}".format(bindings, runtime)
    if library is not None and _numbers(bindings) > _numbers(library):
        return "cupti-python {} is newer than nvidia-cuda-cupti {}".format(bindings, library)
    return None


def _version(distribution: str) -> Optional[str]:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> Tuple[int, ...]:
    """Major and minor."""
    return tuple(int(part) if part.isdigit() else 0 for part in version.split(".")[:2])
