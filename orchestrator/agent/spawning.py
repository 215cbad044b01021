"""How payload processes are started: their command line, their environment, their end with ours."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from .wire import encoded

# A function has positional parameters of its own, so a `set --` in the user's line cannot disturb ours. Our own
# variables are set again after it: an activation may well export CUDA_VISIBLE_DEVICES.
_ACTIVATE = (
    'farbench_activate() { eval "$1"; }; farbench_activate "$1"; farbench_count=$2; shift 2; '
    'while [ "$farbench_count" -gt 0 ]; do export "$1"; shift; farbench_count=$((farbench_count - 1)); done; '
    'exec "$@"'
)
_DEFAULTS = {"PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1"}
_PR_SET_PDEATHSIG = 1
_OOM_SCORE = b"500"


def command_line(
    argv: Sequence[str], env: Mapping[str, str], marks: Mapping[str, str], activate: Optional[str]
) -> Tuple[List[bytes], Dict[bytes, bytes]]:
    """(arguments, environment) of a payload process: ours, then Python's defaults, then `env`, then `marks`.

    `activate` is a line for /bin/sh that runs before it; only `marks` stand above what it sets."""
    environment = {**{encoded(k): encoded(v) for k, v in _DEFAULTS.items()}, **_inherited()}
    for name, value in (*env.items(), *marks.items()):
        environment[encoded(name)] = encoded(value)
    line = [encoded(argument) for argument in argv]
    if activate:
        settings = [encoded(f"{name}={value}") for name, value in marks.items()]
        shell = [b"/bin/sh", b"-c", encoded(_ACTIVATE), b"farbench", encoded(activate)]
        line = [*shell, str(len(settings)).encode(), *settings, *line]
    return line, environment


def die_with_parent() -> Callable[[], None]:
    """What a child does before it becomes the payload: it will be killed when we are, and before us when memory
    runs out. (A lease dies with its holder, so no worker may live on without it.)"""
    parent = os.getpid()
    libc = _libc()

    def prepare() -> None:
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(137)
        try:
            fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
            os.write(fd, _OOM_SCORE)
            os.close(fd)
        except OSError:
            pass  # no Linux, or not allowed: only a preference

    return prepare


def _inherited() -> Dict[bytes, bytes]:
    # A worker of another run may have started the agent (farbench measuring farbench): its marks are not ours.
    return {name: value for name, value in os.environb.items() if not name.startswith(b"FARBENCH_")}


def _libc() -> Optional[ctypes.CDLL]:
    try:
        libc = ctypes.CDLL(None)
        libc.prctl  # noqa: B018 - only Linux has it
    except (OSError, AttributeError):
        return None
    return libc
