"""Settings of the whole process that a backend may change (TF32, determinism, threads, …), and must not change for others.

Each backend has its own: what it sets while it is built holds for all of its calls, and for nobody else's. References are
computed under the settings that the case began with.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Tuple

from . import blas_threads, streams

_Setting = Tuple[str, Callable[[], Any], Callable[[Any], Any]]

_TORCH_FLAGS = (
    ("backends.cuda.matmul", "allow_fp16_reduced_precision_reduction"),
    ("backends.cuda.matmul", "allow_bf16_reduced_precision_reduction"),
    ("backends.cuda.matmul", "allow_fp16_accumulation"),
    ("backends.cuda.matmul", "allow_tf32"),
    ("backends.cudnn", "allow_tf32"),
    ("backends.cudnn", "benchmark"),
    ("backends.cudnn", "deterministic"),
    ("backends.cudnn", "enabled"),
    ("backends.mkldnn", "enabled"),
    ("backends.opt_einsum", "enabled"),
    ("backends.opt_einsum", "strategy"),
    # How torch 2.9 and newer names float32 products. What is set here may make what is older, above, unreadable.
    ("backends", "fp32_precision"),
    ("backends.cuda.matmul", "fp32_precision"),
    ("backends.cudnn", "fp32_precision"),
    ("backends.cudnn.conv", "fp32_precision"),
    ("backends.cudnn.rnn", "fp32_precision"),
    ("backends.mkldnn", "fp32_precision"),
    ("backends.mkldnn.matmul", "fp32_precision"),
    ("backends.mkldnn.conv", "fp32_precision"),
    ("backends.mkldnn.rnn", "fp32_precision"),
)

# (name, what reads it, the name of what sets it beside that)
_TORCH_SWITCHES = (
    ("flash attention", "backends.cuda.flash_sdp_enabled", "enable_flash_sdp"),
    ("memory efficient attention", "backends.cuda.mem_efficient_sdp_enabled", "enable_mem_efficient_sdp"),
    ("plain attention", "backends.cuda.math_sdp_enabled", "enable_math_sdp"),
    ("cuDNN attention", "backends.cuda.cudnn_sdp_enabled", "enable_cudnn_sdp"),
    ("BLAS library", "backends.cuda.preferred_blas_library", "preferred_blas_library"),
    ("linear algebra library", "backends.cuda.preferred_linalg_library", "preferred_linalg_library"),
    ("anomaly detection", "is_anomaly_enabled", "set_anomaly_enabled"),
)


class Settings:
    """Keeps apart what the backends of one case set. What its `prepare` sets holds for all of them, until `over`."""

    def __init__(self) -> None:
        self._before = self._base = _read()
        self._own: Dict[str, Dict[str, Any]] = {}

    def prepared(self) -> None:
        """The problem is made; from here on the case begins."""
        self._base = _read()

    def over(self) -> None:
        """Set the process as it was before the case."""
        _write(self._before)

    @contextmanager
    def of(self, backend: str) -> Iterator[None]:
        """Within, the process is set as this backend left it; afterwards as the case began."""
        _write(self._own.get(backend, self._base))
        try:
            yield
        finally:
            self._own[backend] = _read()
            _write(self._base)
            streams.restore()  # it may have closed what the others print to

    @contextmanager
    def neutral(self) -> Iterator[None]:
        """Within, the process is set as the case began."""
        before = _read()
        _write(self._base)
        try:
            yield
        finally:
            _write(before)

    def changed(self, backend: str) -> Dict[str, str]:
        """What this backend set, by name."""
        own = self._own.get(backend, {})
        return {name: str(own[name]) for name, value in self._base.items() if own.get(name, value) != value}


class Apart:
    """Keeps apart what the scripts of one worker set as they are loaded: each one's holds in its own cases."""

    def __init__(self, own: str) -> None:
        """`own`: the script that is running, and has set what it sets."""
        self._of = {own: _read()}

    def load(self, script: str, load: Callable[[], Any]) -> Any:
        """`load()` in a process that no other script has set."""
        _write(_untouched)
        found = load()
        self._of[script] = _read()
        return found

    def enter(self, script: str) -> None:
        """Set the process as this script left it."""
        _write({**_untouched, **self._of[script]})


def _read() -> Dict[str, Any]:
    found = {}
    for name, read, _ in _settings():
        try:
            found[name] = read()
        except Exception:  # noqa: BLE001, S112 - a library of another version, or in a state of its own making
            continue
    return found


def _write(wanted: Dict[str, Any]) -> None:
    settings = [setting for setting in _settings() if setting[0] in wanted]
    # Twice: one may be unreadable until another is set back (TF32, by its old and its new name).
    for attempt in range(2):
        failed = []
        for name, read, write in settings:
            try:
                if read() != wanted[name]:
                    write(wanted[name])
            except Exception as error:  # noqa: BLE001 - as in `_read`; what cannot be put back is told
                failed.append(name)
                if attempt:
                    print("farbench: {} cannot be set back: {}".format(name, error), file=sys.stderr)
        if not failed:
            return


def _settings() -> List[_Setting]:
    """(name, how to read it, how to set it); only of what is imported already."""
    found: List[_Setting] = [("working directory", os.getcwd, os.chdir)]
    if hasattr(os, "sched_getaffinity"):
        found.append(
            ("CPU affinity", lambda: os.sched_getaffinity(0), lambda value: os.sched_setaffinity(0, value))
        )
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        found.append(("numpy errors", numpy.geterr, lambda value: numpy.seterr(**value)))
    found += blas_threads.settings()
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "set_num_threads"):
        found += _of_torch(torch)
    return found


def _of_torch(torch: Any) -> List[_Setting]:
    found: List[_Setting] = [
        ("torch default dtype", torch.get_default_dtype, torch.set_default_dtype),
        ("torch threads", torch.get_num_threads, torch.set_num_threads),
        ("torch gradients", torch.is_grad_enabled, torch.set_grad_enabled),
        (
            "torch deterministic algorithms",
            lambda: (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ),
            lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
        ),
        (
            "torch float32 matmul precision",
            torch.get_float32_matmul_precision,
            torch.set_float32_matmul_precision,
        ),
        (
            "torch default device",
            lambda: str(torch.get_default_device()),
            # "cpu" is what it is when nobody set one; set explicitly, it would cost every call.
            lambda value: torch.set_default_device(None if value == "cpu" else value),
        ),
    ]
    found += _of_autocast(torch)
    for name, read, write in _TORCH_SWITCHES:
        owner, read = _at(torch, read)
        if read is not None and hasattr(owner, write):
            found.append(("torch " + name, read, getattr(owner, write)))
    for place, flag in _TORCH_FLAGS:
        _, owner = _at(torch, place)
        if owner is not None:
            found.append(("torch.{}.{}".format(place, flag), *_flag(owner, flag)))
    return found


def _of_autocast(torch: Any) -> List[_Setting]:
    """Whether it is on, and to which dtype: whoever enters it and never leaves it makes others compute in 16 bits."""
    if not hasattr(torch, "get_autocast_dtype"):  # before torch 2.4
        return [
            ("torch autocast cuda", torch.is_autocast_enabled, torch.set_autocast_enabled),
            ("torch autocast cuda dtype", torch.get_autocast_gpu_dtype, torch.set_autocast_gpu_dtype),
            ("torch autocast cpu", torch.is_autocast_cpu_enabled, torch.set_autocast_cpu_enabled),
            ("torch autocast cpu dtype", torch.get_autocast_cpu_dtype, torch.set_autocast_cpu_dtype),
        ]
    found: List[_Setting] = []
    for kind in ("cuda", "cpu"):
        for what, read, write in (
            ("", torch.is_autocast_enabled, torch.set_autocast_enabled),
            (" dtype", torch.get_autocast_dtype, torch.set_autocast_dtype),
        ):
            name = "torch autocast {}{}".format(kind, what)
            found.append((name, functools.partial(read, kind), functools.partial(write, kind)))
    return found


def _at(root: Any, path: str) -> Tuple[Any, Any]:
    """(the owner of what lies at a dotted path, that itself); None where there is nothing."""
    owner, value = None, root
    for part in path.split("."):
        owner, value = value, getattr(value, part, None)
    return owner, value


def _flag(owner: Any, flag: str) -> Tuple[Callable[[], Any], Callable[[Any], Any]]:
    second = flag + "_split_k"  # read by a name of its own, set as the second of two
    if hasattr(owner, second):
        return (lambda: (getattr(owner, flag), getattr(owner, second))), (
            lambda value: setattr(owner, flag, value)
        )
    return (lambda: getattr(owner, flag)), (lambda value: setattr(owner, flag, value))


class _Watch:
    """An importer that reads a library's settings as soon as it is imported, before anybody can have changed them."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        """As `importlib.abc.MetaPathFinder.find_spec`."""
        if name not in ("torch", "numpy"):
            return None
        at = sys.meta_path.index(cls)
        del sys.meta_path[at]
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(at, cls)
        if spec is not None and spec.loader is not None and name not in sys.modules:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                _untouched.update({**_read(), **_untouched})

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_untouched = _read()
sys.meta_path.insert(0, _Watch)
