"""How payload processes are started: their command line, their environment, their end with ours."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import traceback
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

from .wire import encoded, native

# A function has positional parameters of its own, so a `set --` in the user's line cannot disturb ours. What it prints
# goes to the log: standard output is the program's. The trap tells of its failure also where it ends the shell
# (`exit`, `set -e`, a file that is not there). Our own variables are set again after it: an activation may well export
# CUDA_VISIBLE_DEVICES.
_ACTIVATION_FAILED = "farbench: activate failed: exit code "
_ACTIVATE = (
    'farbench_activate() { eval "$1"; }; '
    f"trap 'farbench_code=$?; echo \"{_ACTIVATION_FAILED}$farbench_code\" >&2; exit $farbench_code' EXIT; "
    'farbench_activate "$1" >&2; farbench_code=$?; [ "$farbench_code" -eq 0 ] || exit "$farbench_code"; '
    "trap - EXIT; farbench_count=$2; shift 2; "
    'while [ "$farbench_count" -gt 0 ]; do export "$1"; shift; farbench_count=$((farbench_count - 1)); done; '
    'exec "$@"'
)
WORKER_VARIABLE = "FARBENCH_WORKER"
_DEFAULTS = {"PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1"}
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_OOM_SCORE = b"500"


def payload_python(job: Mapping[str, Any]) -> str:
    """The interpreter of the payloads: the job's, else ours."""
    python = job.get("python")
    return os.path.expanduser(native(str(python))) if python else sys.executable


def activation_failure(log_tail: str) -> Optional[str]:
    """`activate failed: exit code 3` where a log ends with that, else None."""
    last = log_tail.rstrip().rpartition("\n")[2]
    if not last.startswith(_ACTIVATION_FAILED):
        return None
    return last[len("farbench: ") :]


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


def execute(
    argv: Sequence[str],
    env: Mapping[str, str],
    marks: Mapping[str, str],
    activate: Optional[str],
    cwd: str,
    output: int,
    keep: Tuple[int, ...] = (),
    stdout: Optional[int] = None,
    adopts: bool = False,
) -> "subprocess.Popen[bytes]":
    """Start a payload process in a session of its own, what it prints on `output`. Raises OSError, ValueError.

    `adopts`: what loses its parent below it becomes its child (see `orphans`)."""
    line, environment = command_line(argv, env, marks, activate)
    return subprocess.Popen(
        line,
        env=environment,
        cwd=encoded(cwd),
        stdin=subprocess.DEVNULL,
        stdout=output if stdout is None else stdout,
        stderr=output,
        pass_fds=keep,
        start_new_session=True,
        preexec_fn=die_with_parent(adopts),
    )


def name_process(name: str) -> None:
    """What `ps -o comm` calls this process; at most 15 bytes of it are shown."""
    libc = _libc()
    if libc is not None:
        libc.prctl(_PR_SET_NAME, encoded(name), 0, 0, 0)


def adopt_orphans() -> None:
    """From now on, whatever loses its parent below this process becomes its own child, wherever Linux offers that."""
    libc = _libc()
    if libc is not None:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Forked:
    """A child of ours that runs a function of this program; `poll` and `returncode` are those of Popen."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: Optional[int] = None

    def poll(self) -> Optional[int]:
        """How it ended, or None as long as it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        return self.returncode


def fork(
    function: Callable[[], None], env: Mapping[str, str], cwd: str, output: int, keep: Tuple[int, ...]
) -> Forked:
    """Run `function` in a child, in a session of its own, as `execute` would a program."""
    prepare = die_with_parent()
    pid = os.fork()
    if pid:
        return Forked(pid)
    try:
        os.setsid()
        prepare()
        os.chdir(cwd)
        inherited = _inherited()
        os.environ.clear()
        os.environb.update(inherited)
        os.environb.update({encoded(name): encoded(value) for name, value in env.items()})
        run_forked(function, output, keep)
    finally:
        os._exit(1)


def run_forked(function: Callable[[], None], output: Union[int, str], keep: Tuple[int, ...]) -> None:
    """Become the process of `function`, right after a fork: its own streams, no descriptor but those of `keep`,
    no handler of the parent's. Never returns."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        log = (
            output
            if isinstance(output, int)
            else os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        )
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard, fd in ((0, nothing), (1, log), (2, log)):
            os.dup2(fd, standard)
        _close_all_but({0, 1, 2, *keep})
        function()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:  # noqa: BLE001 - the process's boundary: whatever it is goes to its log
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _close_all_but(keep: Set[int]) -> None:
    try:
        open_fds = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        open_fds = list(range(256))
    for fd in open_fds:
        if fd not in keep:
            try:
                os.close(fd)
            except OSError:
                pass  # the listing's own, or not open


def die_with_parent(adopts: bool = False) -> Callable[[], None]:
    """What a child does before it becomes the payload: it will be killed when we are, and before us when memory
    runs out. (A lease dies with its holder, so no worker may live on without it.) `adopts`: see `execute`."""
    parent = os.getpid()
    libc = _libc()

    def prepare() -> None:
        if libc is not None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(137)
            if adopts:
                libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
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
