"""The commands of the dialogue (docs/architecture.md): each answers over the channel and changes little itself."""

from __future__ import annotations

import os
import sys
import time
import traceback
from typing import Any, Callable, Dict, List, Mapping

from . import devices, lock, procs, slurm
from .channel import Channel, Context
from .coordination import may_steer, take_over
from .follow import TakenOver, follow
from .journal import Journal, read_events
from .launcher import LaunchError, agent_pid, enqueue, lay_out, request, settle, start_agent
from .liveness import Liveness, began, end_state
from .paths import RunPaths, read_json
from .places import claim, find
from .standing import standing
from .wire import portable

CANCEL_PATIENCE_S = 30.0


class Refusal(Exception):
    """A command that cannot be obeyed: the last answer."""

    def __init__(self, step: str, path: str, error: str, hint: str = "") -> None:
        super().__init__(error)
        self.answer = {"type": "refused", "step": step, "path": path, "error": error, "hint": hint or None}


def get_ready() -> None:
    """What can be done before a command is known; it changes nothing on this host."""
    devices.ask_ahead(os.environ)


def dispatch(command: Mapping[str, Any], context: Context) -> None:
    """Obey one command. `context` comes from the stub: nonce, workdir, input_fd, output_fd, pending."""
    channel = Channel(context.nonce, context.input_fd, context.output_fd, context.pending)
    name = str(command.get("name"))
    try:
        try:
            handler = _COMMANDS.get(name)
            if handler is None:
                raise Refusal("understand the command", "", f"unknown command {name!r}", "update farbench")
            handler(channel, command, context)
        except Refusal as refusal:
            channel.send(refusal.answer)
        except BrokenPipeError:
            raise
        except OSError as error:
            where = portable(error.filename) if isinstance(error.filename, str) else context.workdir
            channel.send(Refusal(name, where, error.strerror or str(error)).answer)
        except Exception as error:  # noqa: BLE001 - the boundary: the controller must hear why there is no answer
            traceback.print_exc()
            channel.send(Refusal(name, context.workdir, f"{type(error).__name__}: {error}").answer)
    except BrokenPipeError:
        sys.stderr.write("farbench: the connection is gone\n")


def _launch(channel: Channel, command: Mapping[str, Any], context: Context) -> None:
    job = command["job"]
    paths = claim(context.workdir, command["run_id"], str(command.get("host") or job.get("host")))
    _refuse_if_taken_over(paths, command)
    if not lock.is_held(paths):
        lay_out(paths, job, command["tree"])
    more = {"id": str(command["coordinator"])} if command.get("coordinator") else {}
    enqueue(paths, command.get("queue") or [], bool(command.get("sealed")), **more)
    try:
        pid, already = start_agent(paths, command.get("secrets") or {}, command.get("first") is True)
    except LaunchError as error:
        raise Refusal("start the agent", portable(paths.log("agent")), str(error)) from error
    settle(paths)
    channel.send({"type": "launched", "pid": pid, "already": already, "run_dir": portable(paths.root)})
    if command.get("follow") is not None:
        _stream(channel, paths, command, int(command["follow"]))


def _follow(channel: Channel, command: Mapping[str, Any], context: Context) -> None:
    paths = _existing(command, context)
    _refuse_if_taken_over(paths, command)
    _stream(channel, paths, command, int(command.get("offset") or 0))


def _stream(channel: Channel, paths: RunPaths, command: Mapping[str, Any], offset: int) -> None:
    take_over(paths, command)
    token = command.get("coordinator")
    try:
        follow(channel, paths, offset, str(command.get("before") or ""), token)
    except TakenOver:
        raise _taken_over(paths) from None


def _refuse_if_taken_over(paths: RunPaths, command: Mapping[str, Any]) -> None:
    token = command.get("coordinator")
    if token is not None and not command.get("claim") and not may_steer(paths, token):
        raise _taken_over(paths)


def _taken_over(paths: RunPaths) -> Refusal:
    hint = "`farbench attach` looks on; `farbench resume` takes it back"
    return Refusal("coordinate", portable(paths.root), "another farbench has taken this run over", hint)


def _status(channel: Channel, command: Mapping[str, Any], context: Context) -> None:
    paths = _existing(command, context)
    liveness = Liveness(paths)
    alive = liveness.alive()
    offset = os.stat(paths.journal).st_size if os.path.exists(paths.journal) else 0
    state = "running" if alive else end_state(paths)
    answer = {"type": "status", "agent": alive, "state": state, "offset": offset, "pid": agent_pid(paths)}
    channel.send({**answer, **standing(paths), "note": liveness.note or liveness.why})


def _cancel(channel: Channel, command: Mapping[str, Any], context: Context) -> None:
    paths = _existing(command, context)
    request(paths, {"type": "cancel"})
    deadline = time.monotonic() + CANCEL_PATIENCE_S
    if slurm.asked_for(paths):
        _await_slurm(paths, deadline)
    who = read_json(paths.identity)
    while lock.is_held(paths) and time.monotonic() < deadline and not procs.is_stopped(who):
        time.sleep(0.02)
    fd = lock.acquire(paths, wait_s=0.5)
    if fd is None:
        fd = _put_down(paths)
    try:
        if end_state(paths) == "dead":
            _end_for_dead_agent(paths)
    finally:
        os.close(fd)
    count = sum(event.get("type") == "measurement" for event in read_events(paths.journal))
    channel.send({"type": "cancelled", "measurements": count})


def _await_slurm(paths: RunPaths, deadline: float) -> None:
    """Wait until the agent of a job has ended, or end the job: at once where it has not begun. Where Slurm cannot be asked to,
    a job that begins later finds that it is not wanted any more."""
    while end_state(paths) == "dead":
        late_s = time.monotonic() - deadline
        try:
            number = slurm.find(paths)
            job = None if number is None else slurm.look(number)
            if job is None or not job.alive or (job.state == "COMPLETING" and late_s >= CANCEL_PATIENCE_S):
                break
            if late_s >= CANCEL_PATIENCE_S:
                hint = f"scancel {job.number}"
                raise Refusal("cancel", portable(paths.root), f"{job} and does not end", hint)
            if job.waits or late_s >= 0:
                slurm.cancel(job.number)
        except slurm.SlurmError as error:
            number = slurm.number_of(paths)
            if number is None or not began(paths, number):
                break
            if late_s >= 0:
                hint = f"once Slurm answers: `farbench cancel` again, or scancel {number}"
                raise Refusal("cancel", portable(paths.root), str(error), hint) from None
        time.sleep(0.5)
    if end_state(paths) == "dead":
        slurm.forget(paths)


def _put_down(paths: RunPaths) -> int:
    """End an agent that does not react, or cannot (SIGSTOP), and take its lock."""
    who = read_json(paths.identity)
    if isinstance(who, dict) and procs.is_alive(who):
        os.kill(int(who["pid"]), 9)
    fd = lock.acquire(paths, wait_s=10.0)
    if fd is None:
        raise Refusal("cancel", portable(paths.lock), "the agent does not react and cannot be ended")
    return fd


def _end_for_dead_agent(paths: RunPaths) -> None:
    """What the agent would have done, had it lived: end the workers, and say that the run is cancelled."""
    for who in (read_json(paths.identity), read_json(paths.job)):
        if isinstance(who, dict) and isinstance(who.get("nonce"), str):
            procs.end_marked(who["nonce"])
    journal = Journal(paths)
    counts: Dict[str, int] = {}
    for event in read_events(paths.journal):
        if event.get("type") == "measurement":
            status = str(event["measurement"]["status"])
            counts[status] = counts.get(status, 0) + 1
    journal.append("cancel_requested")
    journal.append("agent_finished", state="cancelled", counts=counts)
    journal.close()
    for name in paths.requests():
        os.unlink(os.path.join(paths.control, name))


def _fetch(channel: Channel, command: Mapping[str, Any], context: Context) -> None:
    from .fetching import send_files

    send_files(channel, _existing(command, context), command["files"], command.get("limit"))


def _list(channel: Channel, command: Mapping[str, Any], context: Context) -> None:
    paths = _existing(command, context)
    files: List[List[Any]] = []
    for top in (paths.logs, paths.collected):
        for folder, _, names in os.walk(top):
            for name in sorted(names):
                path = os.path.join(folder, name)
                if os.path.isfile(path) and not os.path.islink(path):
                    files.append([portable(os.path.relpath(path, paths.root)), os.stat(path).st_size])
    channel.send({"type": "files", "files": sorted(files)})


def _logs(channel: Channel, command: Mapping[str, Any], context: Context) -> None:
    from .tailing import stream_logs

    stream_logs(channel, _existing(command, context), command)


def _probe(channel: Channel, command: Mapping[str, Any], context: Context) -> None:
    from .probe import probe

    channel.send({"type": "probe", **probe({**command, "workdir": context.workdir})})


def _doctor(channel: Channel, command: Mapping[str, Any], context: Context) -> None:
    from .checks import examine

    examine(channel, command, context)


def _environment(channel: Channel, command: Mapping[str, Any], context: Context) -> None:
    from . import setup

    setup.describe(channel, command, context)


def _setup(channel: Channel, command: Mapping[str, Any], context: Context) -> None:
    from . import setup

    try:
        setup.install(channel, command, context)
    except setup.Failed as failure:
        raise Refusal(failure.step, failure.path, str(failure), failure.hint) from None


def _runs(channel: Channel, command: Mapping[str, Any], context: Context) -> None:
    from .housekeeping import list_runs

    channel.send({"type": "runs", "runs": list_runs(context.workdir)})


def _gc(channel: Channel, command: Mapping[str, Any], context: Context) -> None:
    from .housekeeping import collect_garbage

    dry_run = bool(command.get("dry_run"))
    done = collect_garbage(context.workdir, command.get("keep") or [], dry_run, command.get("home"))
    channel.send({"type": "gc", **done})


def _existing(command: Mapping[str, Any], context: Context) -> RunPaths:
    host = command.get("host")
    paths = find(context.workdir, command["run_id"], None if host is None else str(host))
    if paths is None:
        where = portable(RunPaths(context.workdir, command["run_id"]).root)
        raise Refusal("find the run", where, "this host has no such run")
    return paths


_COMMANDS: Dict[str, Callable[[Channel, Mapping[str, Any], Any], None]] = {
    "launch": _launch,
    "follow": _follow,
    "status": _status,
    "cancel": _cancel,
    "fetch": _fetch,
    "list": _list,
    "logs": _logs,
    "probe": _probe,
    "doctor": _doctor,
    "environment": _environment,
    "setup": _setup,
    "runs": _runs,
    "gc": _gc,
}
