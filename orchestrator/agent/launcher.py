"""Starting a run on this host: its files laid out, its cases queued, its agent started if none lives."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from . import lock
from .paths import RunPaths, add_numbered, checked_relative, read_json, write_json
from .wire import dump, encoded, native

# The agent runs from a copy of its own in the run's folder, so collecting the cache never takes it away.
_AGENT = (
    "import sys; sys.path.insert(0, sys.argv[1]); from farbench_agent.daemon import main; main(*sys.argv[2:])"
)


class LaunchError(Exception):
    """The agent could not be started."""


def lay_out(paths: RunPaths, cache: str, agent: str, job: Mapping[str, Any], tree: Mapping[str, str]) -> None:
    """Put the run's files where its workers expect them. Raises OSError, or ValueError for paths that lead elsewhere.

    Files are copies: what a payload does to its own script must never reach the cache."""
    paths.make()
    for relative, sha256 in tree.items():
        target = os.path.join(paths.root, checked_relative(native(relative)))
        os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
        _copy(os.path.join(cache, bytes.fromhex(sha256).hex()), target)
    _copy(agent, paths.agent)
    write_json(paths.job, job)


def enqueue(paths: RunPaths, items: Sequence[Mapping[str, Any]], sealed: bool, **more: Any) -> None:
    """Deliver a batch of cases; the very same batch is never delivered twice."""
    if items or sealed:
        add_numbered(paths.queue, dump({"items": list(items), "sealed": sealed, **more}), once=True)
        ring(paths)


def request(paths: RunPaths, message: Mapping[str, Any]) -> None:
    """Ask the agent for something."""
    add_numbered(paths.control, dump(message))
    ring(paths)


def ring(paths: RunPaths) -> None:
    """Wake the agent, if there is one; without this it looks once a second."""
    try:
        fd = os.open(paths.wake, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return  # nobody has the other end
    try:
        os.write(fd, b"!")
    except OSError:
        pass  # full of rings already
    finally:
        os.close(fd)


def start_agent(paths: RunPaths, secrets: Mapping[str, str]) -> Tuple[int, bool]:
    """(the agent's PID, whether it lived already). Raises LaunchError.

    Returns once the agent holds the run's lock. The secrets go through a pipe into its memory only."""
    if not lock.is_held(paths):
        answer = _spawn(paths, dump(dict(secrets)))
        if answer not in ("ok", "already"):
            raise LaunchError(answer or f"it ended at once; see {paths.log('agent')}")
        if answer == "ok":
            return agent_pid(paths), False
    return agent_pid(paths), True


def agent_pid(paths: RunPaths) -> int:
    """PID of the newest agent of the run; 0 if there never was one."""
    identity = read_json(paths.identity)
    pid = identity.get("pid") if isinstance(identity, dict) else None
    return pid if isinstance(pid, int) else 0


def _spawn(paths: RunPaths, secrets: bytes) -> str:
    secrets_reader, secrets_writer = os.pipe()
    answer_reader, answer_writer = os.pipe()
    argv: List[str] = [sys.executable, "-I", "-X", "utf8", "-c", _AGENT, paths.agent]
    argv += [paths.workdir, paths.run_id, str(answer_writer)]
    environment: Dict[bytes, bytes] = dict(os.environb)
    # Fork first, so that the agent is nobody's child (init's) and never a zombie of whoever follows.
    middle = os.fork()
    if middle == 0:
        status = 1
        try:
            log = os.open(paths.log("agent"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            subprocess.Popen(
                [os.fsencode(argument) for argument in argv],
                env=environment,
                cwd="/",
                stdin=secrets_reader,
                stdout=log,
                stderr=log,
                pass_fds=(answer_writer,),
                start_new_session=True,
            )
            status = 0
        except OSError as error:
            os.write(answer_writer, encoded(f"cannot start {sys.executable}: {error}"))
        finally:
            os._exit(status)
    os.close(secrets_reader)
    os.close(answer_writer)
    os.waitpid(middle, 0)
    try:
        with open(secrets_writer, "wb") as pipe:
            pipe.write(secrets)
    except BrokenPipeError:
        pass  # it ended already: the answer tells
    with open(answer_reader, "rb") as pipe:
        return pipe.read().decode("utf-8", "replace")


def _copy(source: str, target: str) -> None:
    temporary = f"{target}.{os.getpid()}.new"
    try:
        shutil.copyfile(source, temporary)
        os.rename(temporary, target)
    except OSError:
        if os.path.lexists(temporary):
            os.unlink(temporary)
        raise
