"""Settings of the whole process that a backend may change (TF32, determinism, threads, …), and must not change for others.

Each backend has its own: what it sets while it is built holds for all of its calls, and for nobody else's. References are
computed under the settings that the case began with.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Tuple

from . import streams

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
)


class Settings:
    """Keeps apart what the backends of one case set."""

    def __init__(self) -> None:
        self._base = _read()
        self._own: Dict[str, Dict[str, Any]] = {}

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


def _read() -> Dict[str, Any]:
    found = {}
    for name, read, _ in _settings():
        try:
            found[name] = read()
        except Exception:  # noqa: BLE001, S112 - a library of another version, or in a state of its own making
            continue
    return found


def _write(wanted: Dict[str, Any]) -> None:
    for name, read, write in _settings():
        try:
            if name in wanted and read() != wanted[name]:
                write(wanted[name])
        except Exception as error:  # noqa: BLE001 - as in `_read`; what cannot be put back is told
            print("farbench: {} cannot be set back: {}".format(name, error), file=sys.stderr)


def _settings() -> List[_Setting]:
    """(name, how to read it, how to set it); only of what is imported already."""
    found: List[_Setting] = [("working directory", os.getcwd, os.chdir)]
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        found.append(("numpy errors", numpy.geterr, lambda value: numpy.seterr(**value)))
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
    for place, flag in _TORCH_FLAGS:
        owner = torch
        for part in place.split("."):
            owner = getattr(owner, part, None)
        if owner is not None:
            found.append(("torch.{}.{}".format(place, flag), *_flag(owner, flag)))
    return found


def _flag(owner: Any, flag: str) -> Tuple[Callable[[], Any], Callable[[Any], Any]]:
    return (lambda: getattr(owner, flag)), (lambda value: setattr(owner, flag, value))
