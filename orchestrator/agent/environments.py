"""Payload environments on this host: `<workdir>/envs/<name>/`, and nothing outside of it.

    python            what hosts.yaml names: a small program that starts the current build's interpreter
    current           link to the build in use; the one thing that changes when an environment is updated
    builds/<id>/      virtual environments; one with a `freeze.json` is whole, any other was interrupted
    log               what the last installation printed
    lock              held while somebody works here
    cache/ tmp/ home/ for the installer, during an installation

A build is made beside the one in use and never changed afterwards. `current` is followed once, when an interpreter
starts: a worker that runs during an update goes on in the build that it began with.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import time
from typing import Any, Dict, List, Mapping, Optional

from . import bounded, procs
from .paths import read_json, write_file, write_json

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
FREEZE = "freeze.json"
LIST_TIMEOUT_S = 60.0

# What is installed in the environment itself, whatever variables or user folders there are.
_LIST = """
import json, sys
from importlib import metadata
found = {}
for item in metadata.distributions():
    name = item.metadata["Name"]
    if name and str(item.locate_file("")).startswith(sys.prefix):
        found[name] = item.version
print(json.dumps(found))
"""


class EnvironmentPaths:
    """Every path of one environment. Raises ValueError for a name that is no file name."""

    def __init__(self, workdir: str, name: str) -> None:
        if not NAME.fullmatch(name):
            raise ValueError(f"not a name for an environment: {name!r}")
        self.name = name
        self.root = os.path.join(workdir, "envs", name)
        self.python = os.path.join(self.root, "python")
        self.current = os.path.join(self.root, "current")
        self.builds = os.path.join(self.root, "builds")
        self.lock = os.path.join(self.root, "lock")
        self.log = os.path.join(self.root, "log")
        self.cache = os.path.join(self.root, "cache")
        self.tmp = os.path.join(self.root, "tmp")
        self.home = os.path.join(self.root, "home")

    def make(self) -> None:
        """Create the folders (0700). Raises OSError, also when one of them is a link to somewhere else."""
        os.makedirs(os.path.dirname(self.root), mode=0o700, exist_ok=True)
        for folder in (self.root, self.builds, self.cache, self.tmp, self.home):
            if os.path.islink(folder):
                raise NotADirectoryError(20, "is a link to somewhere else", folder)
            os.makedirs(folder, mode=0o700, exist_ok=True)

    def build_in_use(self) -> Optional[str]:
        """The folder of the current build, or None."""
        try:
            target = os.readlink(self.current)
        except OSError:
            return None
        folder = os.path.join(self.builds, os.path.basename(target))
        return folder if os.path.isdir(folder) else None


def lock(paths: EnvironmentPaths) -> Optional[int]:
    """A descriptor that holds the environment's lock, or None when somebody else works on it."""
    fd = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def look(paths: EnvironmentPaths) -> Dict[str, Any]:
    """{"python", "freeze" (of the current build, or null), "changed": [what is not as it was installed]}. Changes nothing."""
    build = paths.build_in_use()
    freeze = read_json(os.path.join(build, FREEZE)) if build is not None else None
    if build is None or not isinstance(freeze, dict):
        return {"python": paths.python, "freeze": None, "changed": []}
    changed: List[str] = []
    try:
        changed = _differences(freeze.get("packages") or {}, packages(build))
    except OSError as error:
        changed = [str(error)]
    if read_text(paths.python) != launcher(paths):
        changed.append(f"{paths.python} is missing or was changed")
    return {"python": paths.python, "freeze": freeze, "changed": changed}


def packages(build: str) -> Dict[str, str]:
    """Distributions of a build by name. Raises OSError when its interpreter does not work."""
    argv = [os.path.join(build, "bin", "python"), "-I", "-c", _LIST]
    done = bounded.run(argv, {"LC_ALL": "C", "PATH": os.defpath}, LIST_TIMEOUT_S)
    try:
        found: Dict[str, str] = json.loads(done.stdout)
    except ValueError:
        said = " ".join(done.stderr.split())[-300:]
        raise OSError(f"{argv[0]} does not work: {said or f'exit code {done.code}'}") from None
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def finish(paths: EnvironmentPaths, build: str, facts: Mapping[str, Any]) -> Dict[str, Any]:
    """Declare a build whole and make it the current one; the freeze. Whatever happens before the last step, the build
    that was in use stays so."""
    freeze = {
        "schema_version": 1,
        "name": paths.name,
        **facts,
        "packages": packages(build),
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    write_json(os.path.join(build, FREEZE), freeze)
    if read_text(paths.python) != launcher(paths):
        write_file(paths.python, launcher(paths).encode("utf-8", "surrogateescape"))
        os.chmod(paths.python, 0o700)
    fresh = f"{paths.current}.{os.getpid()}"
    os.symlink(os.path.join("builds", os.path.basename(build)), fresh)
    os.rename(fresh, paths.current)
    return freeze


def tidy(paths: EnvironmentPaths, everything: bool) -> None:
    """Take away interrupted builds, and old ones that no process runs in; with `everything` the installer's folders too."""
    in_use = paths.build_in_use()
    running = _programs()
    for name in os.listdir(paths.builds):
        build = os.path.join(paths.builds, name)
        if build != in_use and not any(program.startswith(build + os.sep) for program in running):
            shutil.rmtree(build, ignore_errors=True)
    for folder in (paths.tmp, paths.home, paths.cache) if everything else (paths.tmp,):
        shutil.rmtree(folder, ignore_errors=True)


def launcher(paths: EnvironmentPaths) -> str:
    """The program that hosts.yaml names as `python`."""
    return (
        "#!/bin/sh\n"
        "# Starts the interpreter of this environment's current build, by the build's own path.\n"
        f"build=$(CDPATH= cd -P -- {shlex.quote(paths.current)} && pwd -P) || exit 127\n"
        'exec "$build/bin/python" "$@"\n'
    )


def read_text(path: str) -> Optional[str]:
    """A small file's text, or None."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return None


def _differences(before: Mapping[str, str], now: Mapping[str, str]) -> List[str]:
    found = [f"{name} {version} is gone" for name, version in before.items() if name not in now]
    for name, version in now.items():
        if name not in before:
            found.append(f"{name} {version} was added")
        elif before[name] != version:
            found.append(f"{name} is {version} instead of {before[name]}")
    return found


def _programs() -> List[str]:
    """The first argument of every process that may be looked into."""
    found = []
    for pid in procs.all_pids():
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                found.append(os.fsdecode(file.read().split(b"\0")[0]))
        except OSError:
            continue
    return found
