"""Starting a run on this host: its files laid out, its cases queued, its agent started if none lives."""

from __future__ import annotations

import os
import shutil
from functools import partial
from typing import Any, List, Mapping, Sequence, Tuple

from . import lock, slurm
from .daemon import run_agent
from .journal import Journal
from .liveness import ending, is_alive
from .paths import RunPaths, add_numbered, checked_relative, read_json, sync_file, write_json
from .spawning import run_forked
from .standing import standing
from .wire import dump, native


class LaunchError(Exception):
    """The agent could not be started."""


def lay_out(paths: RunPaths, job: Mapping[str, Any], tree: Mapping[str, str]) -> None:
    """Put the run's files where its workers expect them. Raises OSError, or ValueError for paths that lead elsewhere.
    `settle` puts them on disk.

    Files are copies: what a payload does to its own script must never reach the cache."""
    paths.make()
    for relative, sha256 in tree.items():
        target = os.path.join(paths.root, checked_relative(native(relative)))
        os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
        _copy(os.path.join(paths.workdir, "cache", bytes.fromhex(sha256).hex()), target)
    write_json(paths.tree, tree, sync=False)  # which uploads the run needs, should it be launched again
    write_json(paths.job, job, sync=False)


def settle(paths: RunPaths) -> None:
    """What was laid out outlives a power cut from here on: to be done before anybody is told that the run is here. (The
    agent need not wait for it: whoever launches the run again lays it out again.)"""
    for path in (paths.tree, paths.job):
        sync_file(path)


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


def start_agent(paths: RunPaths, secrets: Mapping[str, str], first: bool = False) -> Tuple[int, bool]:
    """(the agent's PID, whether it lived already). Raises LaunchError. `first`: see `run_agent`.

    Returns once the agent holds the run's lock. The secrets stay in memory."""
    asked = slurm.options(read_json(paths.job) or {})
    if asked is not None:
        return _start_by_slurm(paths, asked, first)
    if not lock.is_held(paths):
        answer = _spawn(paths, secrets, first)
        if answer not in ("ok", "already"):
            raise LaunchError(answer or f"it ended at once; see {paths.log('agent')}")
        if answer == "ok":
            return agent_pid(paths), False
    return agent_pid(paths), True


def _start_by_slurm(paths: RunPaths, asked: List[str], first: bool) -> Tuple[int, bool]:
    """As `start_agent`, but for an agent that will live elsewhere: returns once Slurm has taken the job."""
    held = slurm.submitting(paths)
    try:
        if is_alive(paths):
            return agent_pid(paths), True
        settle(paths)  # the node reads it over the network
        slurm.submit(paths, asked, first)
    except slurm.SlurmError as error:
        raise LaunchError(str(error)) from None
    finally:
        os.close(held)
    return 0, False


def withdraw(paths: RunPaths) -> None:
    """Take back a job of Slurm whose agent has not begun, since there is nothing left for it; one that has is left alone."""
    held = lock.acquire(paths, wait_s=0.5)  # so that no agent begins meanwhile
    if held is None:
        return
    try:
        number = slurm.find(paths)
        if number is None or ending(paths)["state"] != "dead" or not slurm.look(number).waits:
            return
        slurm.cancel(number)
        slurm.forget(paths)
        journal = Journal(paths)
        batch = max(paths.batches(), default="")
        counts = standing(paths)["counts"]
        journal.append("agent_finished", state="finished", counts=counts, batch=batch, sealed=True)
        journal.close()
    except slurm.SlurmError:
        pass  # whoever asked sees that the job still waits, and asks again
    finally:
        os.close(held)


def agent_pid(paths: RunPaths) -> int:
    """PID of the newest agent of the run; 0 if there never was one."""
    identity = read_json(paths.identity)
    pid = identity.get("pid") if isinstance(identity, dict) else None
    return pid if isinstance(pid, int) else 0


def _spawn(paths: RunPaths, secrets: Mapping[str, str], first: bool) -> str:
    """Fork the agent off; what it answers once it holds the lock, or fails to."""
    answer_reader, answer_writer = os.pipe()
    # Two forks, so that the agent is nobody's child (init's), and never a zombie of whoever follows. No exec: the
    # modules are loaded already, which spares the host a second start of Python, and the secrets are where they
    # belong, in memory.
    middle = os.fork()
    if middle == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                run_forked(
                    partial(run_agent, paths, secrets, first, answer_writer),
                    paths.log("agent"),
                    (answer_writer,),
                )
        finally:
            os._exit(0)
    os.close(answer_writer)
    os.waitpid(middle, 0)
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
