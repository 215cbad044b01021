"""What earlier runs left on this host, and taking it away: old runs, uploads nobody needs, processes that outlived their run.

Nothing of a run is touched whose agent lives, that somebody follows, or that is just being set up. Nothing outside
the workdir is touched: links are never followed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import stat
import time
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Set

from . import lockfiles, procs, slurm
from .liveness import is_alive
from .paths import RUN_ID, RunPaths, read_json
from .places import run_of

STARTING_S = 3600.0
"""A run without an agent, and an upload that nobody refers to, may be in the making for so long."""
ELSEWHERE_S = 3600.0
"""So long after its last event a run that another host (or boot) journalled is taken to live there: over a network
file system its lock may be invisible here."""
DEAD_KEEP_S = 7 * 86400.0
"""A run whose agent vanished may be resumed for so long."""
ZIP_KEEP_S = 7 * 86400.0
"""A small zip may be the agent's own, from which somebody who follows a run still imports."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_DOOMED = ".gc-"
_TAIL_BYTES = 1 << 16


class Run(NamedTuple):
    """A run's folder. States: `running starting elsewhere finished cancelled dead`."""

    run_id: str
    state: str
    agent: Mapping[str, Any]
    followed: bool
    bytes: int
    modified: float

    @property
    def alive(self) -> bool:
        """Whether someone works in it, or may do so."""
        return self.followed or self.state in ("running", "starting", "elsewhere")


def list_runs(workdir: str) -> List[Dict[str, Any]]:
    """The runs on this host, newest id first: {"run_id", "state", "agent" (alive or not), "pid", "bytes", "age_s"}.

    `age_s` is the time since the run last wrote something."""
    now = time.time()
    return [
        {
            "run_id": run.run_id,
            "state": run.state,
            "agent": run.state == "running",
            "pid": run.agent.get("pid"),
            "bytes": run.bytes,
            "age_s": round(max(0.0, now - run.modified), 1),
        }
        for run in sorted(_runs(workdir, []), reverse=True)
    ]


def collect_garbage(
    workdir: str, keep: Iterable[str] = (), dry_run: bool = True, home: Optional[Iterable[str]] = None
) -> Dict[str, Any]:
    """Take away ended runs that are not in `keep`, then uploads that no run left refers to, and stray processes.

    `home` are the runs whose results the caller has; of others, which may be the only copy, it takes only old ones.
    None: the caller wants every ended run gone.

    {"removed": [{"kind": "process" | "run" | "upload", "name", "bytes", "reason"}], "bytes", "kept": [{"run_id",
    "reason"}], "problems": [text], "dry_run"}. A dry run gives the same and changes nothing. What turned out to be in
    use, or could not be removed, is in `problems` and not in `removed`."""
    report: Dict[str, Any] = {"removed": [], "kept": [], "problems": [], "dry_run": dry_run}
    keep = set(keep)
    home = None if home is None else set(home)
    left: List[Run] = []
    for run in _runs(workdir, report["problems"]):
        if not run.alive:
            _end_strays(run, dry_run, report)
        reason = _why_kept(run, keep, home)
        if reason is not None:
            report["kept"].append({"run_id": run.run_id, "reason": reason})
        elif dry_run or _remove_run(workdir, run, report["problems"]):
            report["removed"].append(
                _removed("run", run.run_id, run.bytes, f"{run.state}, and nobody keeps it")
            )
            continue
        left.append(run)
    _sweep_cache(workdir, left, dry_run, report)
    if not dry_run:
        _remove_doomed(workdir, report["problems"])
    report["problems"] = [_text(problem) for problem in report["problems"]]
    report["bytes"] = sum(entry["bytes"] for entry in report["removed"])
    return report


def _runs(workdir: str, problems: List[str]) -> Iterator[Run]:
    for entry in _entries(workdir, "runs", problems):
        if not RUN_ID.fullmatch(entry.name):
            continue
        if not entry.is_dir(follow_symlinks=False):
            problems.append(f"{entry.path} is no folder: left alone")
            continue
        paths = RunPaths(workdir, entry.name)
        written = [paths.root, paths.journal, paths.identity, paths.queue, paths.control]
        modified = max(_mtime(path) for path in written)
        agent = read_json(paths.identity)
        agent = agent if isinstance(agent, dict) else {}
        state = _state(paths, agent, time.time() - modified)
        yield Run(entry.name, state, agent, _locked(paths.followers), _size(paths.root), modified)


def _state(paths: RunPaths, agent: Mapping[str, Any], quiet_s: float) -> str:
    if procs.is_alive(agent) or _locked(paths.lock, shared=True):
        return "running"
    ended = _last_word(paths.journal)
    if ended is not None:
        return ended
    if slurm.asked_for(paths) and is_alive(paths):
        return "running"
    if not agent:
        return "starting" if quiet_s < STARTING_S else "dead"
    return "elsewhere" if agent.get("boot_id") != procs.boot_id() and quiet_s < ELSEWHERE_S else "dead"


def _last_word(journal: str) -> Optional[str]:
    """`finished` or `cancelled` where the journal says so after the last agent's start, else None."""
    try:
        with open(journal, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return None
    for line in reversed(lines):
        try:
            event = json.loads(line.decode("utf-8"))
        except ValueError:
            continue  # torn, or cut off by where we began to read
        if isinstance(event, dict) and event.get("type") in ("agent_finished", "agent_started"):
            return event.get("state") if event.get("state") in ("finished", "cancelled") else None
    return None


def _why_kept(run: Run, keep: Set[str], home: Optional[Set[str]]) -> Optional[str]:
    if run.run_id in keep or run_of(run.run_id) in keep:
        return "asked to keep it"
    if run.followed:
        return "somebody follows it"
    if run.alive:
        return run.state
    if run.state == "dead" and time.time() - run.modified < DEAD_KEEP_S:
        return f"its agent vanished, it may be resumed: kept for {DEAD_KEEP_S / 86400:.0f} days"
    if (
        home is not None
        and not {run.run_id, run_of(run.run_id)} & home
        and time.time() - run.modified < DEAD_KEEP_S
    ):
        return f"its results are not in this archive; kept for {DEAD_KEEP_S / 86400:.0f} days"
    return None


def _end_strays(run: Run, dry_run: bool, report: Dict[str, Any]) -> None:
    nonce = run.agent.get("nonce")
    strays = procs.find_marked(nonce) if isinstance(nonce, str) else []
    stubborn = procs.end_marked(nonce) if strays and not dry_run and isinstance(nonce, str) else []
    for pid in stubborn:
        report["problems"].append(f"process {pid} of run {run.run_id} cannot be ended")
    for pid in set(strays) - set(stubborn):
        report["removed"].append(_removed("process", str(pid), 0, f"outlived run {run.run_id} ({run.state})"))


def _remove_run(workdir: str, run: Run, problems: List[str]) -> bool:
    paths = RunPaths(workdir, run.run_id)
    try:
        # Held while the folder is renamed: an agent that would start now finds the lock taken, or no folder.
        descriptor = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        problems.append(f"{paths.lock}: {error.strerror}: run left alone")
        return False
    doomed = os.path.join(workdir, "runs", f"{_DOOMED}{run.run_id}-{secrets.token_hex(4)}")
    try:
        if not _lock_soon(descriptor):
            problems.append(f"run {run.run_id} came to life: left alone")
            return False
        os.rename(paths.root, doomed)
    except (OSError, lockfiles.LeaseError) as error:
        problems.append(f"{paths.root}: {error}")
        return False
    finally:
        os.close(descriptor)
    return _remove_tree(doomed, problems)


def _lock_soon(descriptor: int) -> bool:
    """Take a lock that others may hold for the moment it takes to look."""
    for _ in range(20):
        if lockfiles.lock(descriptor):
            return True
        time.sleep(0.02)
    return False


def _remove_doomed(workdir: str, problems: List[str]) -> None:
    """What an earlier collection began to remove and did not finish."""
    for entry in _entries(workdir, "runs", problems):
        if entry.name.startswith(_DOOMED) and entry.is_dir(follow_symlinks=False):
            _remove_tree(entry.path, problems)


def _remove_tree(path: str, problems: List[str]) -> bool:
    for folder, _, _ in os.walk(path):  # never into links
        # A payload may have left folders that cannot be listed or written.
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                inner = os.path.join(folder, name)
                if stat.S_ISDIR(os.lstat(inner).st_mode):
                    os.chmod(inner, 0o700)
    try:
        shutil.rmtree(path)
    except OSError as error:
        problems.append(f"{path} cannot be removed: {error}")
        return False
    return True


def _sweep_cache(workdir: str, runs: List[Run], dry_run: bool, report: Dict[str, Any]) -> None:
    used: Set[str] = set()
    for run in runs:
        tree = read_json(os.path.join(RunPaths(workdir, run.run_id).root, "tree.json"))
        if not isinstance(tree, dict):
            report["problems"].append(
                f"run {run.run_id} does not say which uploads it needs: the cache is left alone"
            )
            return
        used.update(str(sha256) for sha256 in tree.values())
    now = time.time()
    for entry in _entries(workdir, "cache", report["problems"]):
        if (
            not _SHA256.fullmatch(entry.name)
            or entry.name in used
            or not entry.is_file(follow_symlinks=False)
        ):
            continue
        try:
            facts = entry.stat(follow_symlinks=False)
            age_s = now - facts.st_mtime
            if age_s < STARTING_S or (age_s < ZIP_KEEP_S and _small_zip(entry.path, facts.st_size)):
                continue
            if not dry_run:
                os.unlink(entry.path)
        except OSError as error:
            report["problems"].append(f"{entry.path}: {error.strerror}")
            continue
        report["removed"].append(_removed("upload", entry.name, facts.st_size, "no run refers to it"))


def _small_zip(path: str, size: int) -> bool:
    if size > 1 << 20:
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _removed(kind: str, name: str, size: int, reason: str) -> Dict[str, Any]:
    return {"kind": kind, "name": name, "bytes": size, "reason": reason}


def _text(problem: str) -> str:
    """As any JSON reader takes it: bytes of file names that are no text become question marks."""
    return problem.encode("utf-8", "replace").decode("utf-8")


def _entries(workdir: str, name: str, problems: List[str]) -> List["os.DirEntry[str]"]:
    """What is in a folder of the workdir, by name; nothing when the folder is a link."""
    path = os.path.join(workdir, name)
    if os.path.islink(path):
        text = f"{path} is a link: left alone"
        if text not in problems:
            problems.append(text)
        return []
    try:
        with os.scandir(path) as found:
            return sorted(found, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []
    except OSError as error:
        problems.append(f"{path}: {error.strerror}")
        return []


def _locked(path: str, shared: bool = False) -> bool:
    """Whether someone holds the lock on this file; a lock of a moment tells. `shared` sees only exclusive holders."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not lockfiles.lock(descriptor, shared=shared)
    except lockfiles.LeaseError:
        return False
    finally:
        lockfiles.unlock_and_close(descriptor)


def _size(root: str) -> int:
    total = 0
    for folder, _, files in os.walk(root):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def _mtime(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0
