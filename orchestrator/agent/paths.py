"""Every path of a run on its host, and how its small files are written."""

from __future__ import annotations

import json
import os
import re
import secrets
from typing import Any, List

from .wire import dump, native

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class RunPaths:
    """Names of the files below `<workdir>/runs/<run id>/`. Raises ValueError for an id that is no file name."""

    def __init__(self, workdir: str, run_id: str) -> None:
        if not RUN_ID.fullmatch(run_id):
            raise ValueError(f"not a run id: {run_id!r}")
        self.workdir = workdir
        self.run_id = run_id
        self.root = os.path.join(workdir, "runs", run_id)
        self.host = os.path.join(self.root, "host")
        self.job = os.path.join(self.root, "job.json")
        self.coordinator = os.path.join(self.root, "coordinator.json")
        self.queue = os.path.join(self.root, "queue")
        self.control = os.path.join(self.root, "control")
        self.wake = os.path.join(self.control, "wake")
        self.lock = os.path.join(self.root, "agent.lock")
        self.followers = os.path.join(self.root, "followers.lock")
        self.identity = os.path.join(self.root, "agent.json")
        self.tree = os.path.join(self.root, "tree.json")
        self.journal = os.path.join(self.root, "events.jsonl")
        self.reserve = os.path.join(self.root, "events.reserve")
        self.scripts = os.path.join(self.root, "scripts")
        self.work = os.path.join(self.root, "work")
        self.collected = os.path.join(self.root, "collected")
        self.logs = os.path.join(self.root, "logs")
        self.slurm = os.path.join(self.root, "slurm.json")
        self.slurm_script = os.path.join(self.root, "slurm.sh")
        self.code = os.path.join(self.root, "agent")

    def make(self) -> None:
        """Create the run's folders (0700)."""
        for folder in (
            self.root,
            self.queue,
            self.control,
            self.scripts,
            self.work,
            self.collected,
            self.logs,
        ):
            os.makedirs(folder, mode=0o700, exist_ok=True)

    def inside(self, relative: str) -> str:
        """A file of the run by its relative path. Raises ValueError if that leads out of the run's folder."""
        path = os.path.join(self.root, checked_relative(native(relative)))
        real, root = os.path.realpath(path), os.path.realpath(self.root)
        if real != root and not real.startswith(root + os.sep):
            raise ValueError(f"leads out of the run's folder: {relative!r}")
        return path

    def log(self, worker: str) -> str:
        """The log of one worker."""
        return os.path.join(self.logs, f"{worker}.log")

    def batches(self) -> List[str]:
        """Names of the queue's batches, oldest first."""
        return _names(self.queue, ".json")

    def requests(self) -> List[str]:
        """Names of the requests to the agent that wait in `control/`, oldest first."""
        return _names(self.control, ".json")


def _names(folder: str, suffix: str) -> List[str]:
    try:
        found = [name for name in os.listdir(folder) if name.endswith(suffix) and not name.startswith(".")]
    except FileNotFoundError:
        return []
    return sorted(found)


def checked_relative(path: str) -> str:
    """`path`, normalised. Raises ValueError unless it stays below the folder it is relative to."""
    normal = os.path.normpath(path)
    if not path or os.path.isabs(normal) or normal == ".." or normal.startswith("../") or "\0" in path:
        raise ValueError(f"not a path below the folder: {path!r}")
    return normal


def read_json(path: str) -> Any:
    """A JSON file's value, or None when it is missing, unreadable or no JSON."""
    try:
        with open(path, "rb") as file:
            return json.loads(file.read().decode("utf-8"))
    except (OSError, ValueError):
        return None


def write_json(path: str, value: Any, sync: bool = True) -> None:
    """Write a file that appears whole or not at all; see `write_file`."""
    write_file(path, dump(value), sync)


def write_file(path: str, data: bytes, sync: bool = True) -> None:
    """Write `data` to a file that appears whole or not at all, and survives a power cut (from `sync_file` on, where it
    is not to `sync` now)."""
    temporary = _temporary(path, data, sync)
    try:
        os.rename(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def add_numbered(folder: str, data: bytes, once: bool = False) -> str:
    """Write `data` as the next `000001.json` of a folder; its name. Never replaces a file, whoever else writes.

    With `once`, a file that already holds exactly this stands for it: the same delivery may come again."""
    names = _names(folder, ".json")
    if once:
        for name in names:
            path = os.path.join(folder, name)
            if os.stat(path).st_size == len(data) and _content(path) == data:
                return name
    number = int(names[-1].split(".")[0]) + 1 if names else 1
    temporary = _temporary(os.path.join(folder, f"{number:06d}.json"), data)
    try:
        while True:
            name = f"{number:06d}.json"
            try:
                os.link(temporary, os.path.join(folder, name))
            except FileExistsError:
                number += 1
                continue
            return name
    finally:
        os.unlink(temporary)


def link_once(path: str, data: bytes) -> None:
    """Write `data` to a file that appears whole, unless there is one by that name already.

    Others may try the same at the same moment, on other machines too."""
    temporary = _temporary(f"{path}-{secrets.token_hex(4)}", data)
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(temporary)


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def sync_file(path: str) -> None:
    """Put a file on disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _temporary(path: str, data: bytes, sync: bool = True) -> str:
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if sync:
            os.fsync(fd)
    except OSError:
        os.unlink(temporary)
        raise
    finally:
        os.close(fd)
    return temporary
