"""What a payload declares: how a case becomes a problem, and the backends that solve it.

payload = Payload("gemm", prepare=Problem)

@payload.backend("torch", Needs(device="any", libraries=(Library("torch"),)))
def torch_matmul(problem):
    return Call(run=lambda inputs, out: torch.mm(*inputs, out=out), inputs=(problem.a, problem.b), …)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

from .device import Device


class Unsupported(Exception):
    """A backend does not do this case here; the message says why. Never an error, never a fallback."""


@dataclass(frozen=True)
class Library:
    """A library that a backend imports.

    `distributions` are the names it is installed under (default: the module's); `minimum` the oldest version that
    serves. `gone_after` maps a distribution to the last of its versions that still has `symbol`; `hint` says where it is.
    """

    module: str
    distributions: Tuple[str, ...] = ()
    minimum: Optional[str] = None
    symbol: Optional[str] = None
    gone_after: Mapping[str, str] = field(default_factory=dict)
    hint: str = ""

    @property
    def installed_as(self) -> Tuple[str, ...]:
        """The distributions to look for."""
        return self.distributions or (self.module,)


@dataclass(frozen=True)
class Needs:
    """What a backend needs. `device`: "cpu", "cuda", or "any" (the GPU where there is one, else the CPU).

    `fp4`: tensor cores that multiply FP4 (sm_100 or newer). `since`: the oldest GPU it runs on, (major, minor);
    `capabilities`: the only ones.
    """

    device: str = "any"
    libraries: Tuple[Library, ...] = ()
    fp4: bool = False
    since: Optional[Tuple[int, int]] = None
    capabilities: Tuple[Tuple[int, int], ...] = ()


_FUNCTIONS = (
    "run",
    "reference",
    "make_out",
    "float_reference",
    "value",
    "inspect",
    "tune",
    "describe",
    "metrics",
    "restore",
    "captured",
)


@dataclass
class Call:
    """One backend, ready to be called on one case.

    `run(inputs, out)` makes one call and returns its output; the harness passes `inputs` or a copy of it in other
    memory (same shapes and strides), and an `out` made by `make_out` (None where the library allocates its output).
    `reference()` is what the output should be, `float_reference()` what it would be without any quantisation.
    What is compared is the output's first array, or `value(output)` where an output has to be read first (codes and
    scales, say). `limits` (`min_cosine`, `max_rel_error`, `max_outlier`) are this backend's own where the sweep asks for
    none; `inspect(output)` may add an objection of its own, or None, and facts for `extra`.
    `flops` and `bytes_moved` are of one call; `precision` ("bf16", "fp8", "nvfp4") picks the peak to compare with.
    `tune()` runs once, untimed, before anything else; `describe()` afterwards adds to `extra` (a tactic, say).
    `metrics(median_us)` gives figures of its own. `restore(inputs)` makes inputs anew for a call that overwrites them:
    it runs before each sample, outside of its time; `repeatable` says that it need not, since the call does the same work on
    what it left (an average in place, say). `captured()` runs after calls were captured in a graph and
    before its replay, for libraries that have to be told: what a replay then does is not what eager calls do.
    """

    run: Callable[[Any, Any], Any]
    inputs: Any
    reference: Callable[[], Any]
    make_out: Optional[Callable[[], Any]] = None
    float_reference: Optional[Callable[[], Any]] = None
    reference_name: str = "reference"
    value: Optional[Callable[[Any], Any]] = None
    limits: Mapping[str, float] = field(default_factory=dict)
    inspect: Optional[Callable[[Any], Tuple[Optional[str], Dict[str, Any]]]] = None
    flops: Optional[float] = None
    bytes_moved: Optional[float] = None
    precision: Optional[str] = None
    resolved: Optional[str] = None
    on_cpu: bool = False
    tune: Optional[Callable[[], None]] = None
    describe: Optional[Callable[[], Dict[str, Any]]] = None
    metrics: Optional[Callable[[float], Dict[str, float]]] = None
    restore: Optional[Callable[[Any], None]] = None
    repeatable: bool = False
    captured: Optional[Callable[[], None]] = None
    extra: Dict[str, Any] = field(default_factory=dict)

    def faults(self) -> Optional[str]:
        """What of it is no function and must be one (an array in place of a reference, say), or None."""
        for name in ("run", "reference"):
            if getattr(self, name) is None:
                return "Call.{} is missing".format(name)
        for name in _FUNCTIONS:
            value = getattr(self, name)
            if value is not None and not callable(value):
                return "Call.{} is {}: it must be a function that gives it".format(name, type(value).__name__)
        return None

    @property
    def renewed(self) -> bool:
        """Whether every timed call needs its inputs restored before."""
        return self.restore is not None and not self.repeatable


@dataclass
class Reported:
    """For a backend that measures by itself: what it found, instead of a `Call`. Times in microseconds."""

    samples_us: Tuple[float, ...] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    accuracy: Optional[Mapping[str, Any]] = None


@dataclass(frozen=True)
class Backend:
    """A named implementation: what it needs, and how it is built for a problem."""

    name: str
    needs: Needs
    build: Callable[[Any], Any]


class Payload:
    """A benchmark: `prepare(params, device)` turns a case's parameters into the problem all its backends share.

    `collective` says that its calls are made by all ranks of a gang together (`device.gang`). A problem that has a
    `close()` is closed when its case is over.
    """

    def __init__(
        self, name: str, prepare: Callable[[Mapping[str, Any], Device], Any], collective: bool = False
    ) -> None:
        self.name = name
        self.prepare = prepare
        self.collective = collective
        self.backends: Dict[str, Backend] = {}

    def backend(self, name: str, needs: Optional[Needs] = None) -> Callable[[Any], Any]:
        """Register the decorated function `build(problem) -> Call | Reported` as a backend."""

        def register(build: Callable[[Any], Any]) -> Callable[[Any], Any]:
            self.add(Backend(name, needs or Needs(), build))
            return build

        return register

    def add(self, backend: Backend) -> None:
        """Register a backend; a name can be taken once."""
        if backend.name in self.backends:
            raise ValueError("backend {!r} is declared twice".format(backend.name))
        self.backends[backend.name] = backend
