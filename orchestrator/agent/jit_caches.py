"""Where libraries keep what they compile just in time: shared by default, private where that cannot be written or is not
wanted; and the locks in there that a killed compilation leaves behind.

Two kinds of locks are in use. A lock *file's existence* (`lock`: torch's C++ extensions) outlives its maker: whoever
comes later waits for good. A *held* lock (`*.lock`: flashinfer, inductor) ends with its holder; the file that stays is
harmless, but while a holder lives, others wait for it.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import time
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from . import procs

MOST_ENTRIES = 20000
DEEPEST = 6


class Cache(NamedTuple):
    """A library's cache: the variable that names its folder, and where it is otherwise (below home, or at the root)."""

    variable: str
    usual: str
    inside: str = ""
    """The part of the named folder that is used."""


CACHES = (
    Cache("FLASHINFER_WORKSPACE_BASE", "", ".cache/flashinfer"),
    Cache("TRITON_CACHE_DIR", ".triton/cache"),
    Cache("TORCHINDUCTOR_CACHE_DIR", "/tmp/torchinductor_{user}"),  # noqa: S108 - torch's own choice
    Cache("TORCH_EXTENSIONS_DIR", ".cache/torch_extensions"),
    Cache("CUDA_CACHE_PATH", ".nv/ComputeCache"),
    Cache("DG_JIT_CACHE_DIR", ".deep_gemm"),
    Cache("TVM_FFI_CACHE_DIR", ".cache/tvm-ffi"),
)


class Folder(NamedTuple):
    """A cache here. `path` is None where no folder can be named: no home, and no name of the user."""

    variable: str
    path: Optional[str]
    problem: Optional[str]


def folders(environ: Mapping[str, str]) -> List[Folder]:
    """Every cache as a process with `environ` would use it, and why that cannot be written."""
    found = []
    for cache in CACHES:
        base = environ.get(cache.variable) or _usual(cache, environ)
        path = os.path.join(base, cache.inside) if base and cache.inside else base
        found.append(Folder(cache.variable, path, _objection(path)))
    return found


def private(environ: Mapping[str, str], folder: str, everything: bool) -> Tuple[Dict[str, str], List[str]]:
    """(variables that move caches below `folder`, problems): those that cannot be written, or all of them.

    `folder` belongs to one worker at a time: locks that the one before left there are removed. A user without a home
    gets one there as well, since libraries look for it before they look at the variables. Raises OSError."""
    chosen: Dict[str, str] = {} if environ.get("HOME") or _passwd("pw_dir") else {"HOME": folder}
    problems: List[str] = []
    for cache in folders(environ):
        if cache.problem:
            problems.append(f"{cache.problem} ({cache.variable})")
        if everything or cache.problem:
            chosen[cache.variable] = os.path.join(folder, cache.variable.lower())
    for path in chosen.values():
        os.makedirs(path, mode=0o700, exist_ok=True)
    for path in _lock_files(list(chosen.values())):
        try:
            os.unlink(path)
        except OSError:
            pass  # it stays, and a time limit will tell of it
    return chosen, problems


class Lock(NamedTuple):
    """A lock in a cache that somebody may wait for. `holder` is a living process, None where no one is known to hold it."""

    path: str
    age_s: float
    holder: Optional[int]

    def __str__(self) -> str:
        age = f"{self.age_s / 3600:.1f} h" if self.age_s >= 3600 else f"{self.age_s:.0f} s"
        who = f"held by process {self.holder}" if self.holder else "stale: no process has it open, remove it"
        return f"{self.path} ({age} old, {who})"


def locks(environ: Mapping[str, str]) -> List[Lock]:
    """What stands in the way in the caches of `environ`, oldest first: stale locks, and held ones with their holders."""
    found = []
    paths = [cache.path for cache in folders(environ) if cache.path]
    for path in _lock_files(paths):
        try:
            entry = os.stat(path)
        except OSError:
            continue
        baton = os.path.basename(path) == "lock"
        if not baton and not _is_locked(path):
            continue  # a held lock that nobody holds: its file means nothing
        holder = _opener(entry) if baton else _flock_holder(entry)
        found.append(Lock(path, max(0.0, time.time() - entry.st_mtime), holder))
    return sorted(found, key=lambda lock: -lock.age_s)


def left_behind(environ: Mapping[str, str], since: float) -> List[Lock]:
    """Stale locks that were made after `since` (UTC seconds): what a killed compilation leaves to those who come later."""
    made = time.time() - since
    return [lock for lock in locks(environ) if lock.holder is None and lock.age_s <= made]


def explain(environ: Mapping[str, str], own: Optional[List[int]] = None) -> str:
    """For a compilation that took too long: the locks it may have waited for, else the caches that it used.

    `own` are the processes that were compiling: what they hold, they do not wait for."""
    waited = [lock for lock in locks(environ) if lock.holder not in (own or ())]
    if waited:
        return "waited for a lock? " + "; ".join(str(lock) for lock in waited[:3])
    paths = [cache.path for cache in folders(environ) if cache.path and os.path.isdir(cache.path)]
    return "no foreign lock in the caches of compilers" + (f" ({', '.join(paths)})" if paths else "")


def _usual(cache: Cache, environ: Mapping[str, str]) -> Optional[str]:
    home = environ.get("HOME") or _passwd("pw_dir")
    if "{user}" in cache.usual:
        user = environ.get("LOGNAME") or environ.get("USER") or _passwd("pw_name")
        return cache.usual.format(user=user) if user else None
    return os.path.join(home, cache.usual) if home else None


def _passwd(field: str) -> Optional[str]:
    try:
        return str(getattr(pwd.getpwuid(os.getuid()), field))
    except KeyError:  # a user without an entry, as in many containers
        return None


def _objection(path: Optional[str]) -> Optional[str]:
    if path is None:
        return "this user has neither a home folder nor a name to keep a compiler's cache under"
    existing = path
    while not os.path.lexists(existing) and os.path.dirname(existing) != existing:
        existing = os.path.dirname(existing)
    if not os.path.isdir(existing):
        return f"{existing} is no folder"
    return None if os.access(existing, os.W_OK | os.X_OK) else f"{existing} cannot be written by this user"


def _lock_files(roots: List[str]) -> Iterator[str]:
    seen = 0
    for root in roots:
        top = root.rstrip(os.sep).count(os.sep)
        for folder, below, names in os.walk(root):
            seen += len(names) + len(below)
            if seen > MOST_ENTRIES:
                return
            if folder.count(os.sep) - top >= DEEPEST:
                below.clear()
            for name in names:
                if name == "lock" or name.endswith(".lock"):
                    yield os.path.join(folder, name)


def _is_locked(path: str) -> bool:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _flock_holder(entry: os.stat_result) -> Optional[int]:
    try:
        with open("/proc/locks", encoding="ascii") as file:
            for line in file:
                fields = line.split()
                if len(fields) > 5 and fields[5].split(":")[-1] == str(entry.st_ino) and fields[4].isdigit():
                    return int(fields[4])
    except OSError:
        pass
    return None


def _opener(entry: os.stat_result) -> Optional[int]:
    """A process of ours that has the file open."""
    for pid in procs.all_pids():
        try:
            for name in os.listdir(f"/proc/{pid}/fd"):
                opened = os.stat(f"/proc/{pid}/fd/{name}")
                if (opened.st_dev, opened.st_ino) == (entry.st_dev, entry.st_ino):
                    return pid
        except OSError:
            continue  # another user's, or gone meanwhile
    return None
