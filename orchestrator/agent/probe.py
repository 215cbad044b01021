"""What a host is and has, without running anything on its devices: for `hosts` and `doctor`."""

from __future__ import annotations

import json
import os
import pwd
import re
import secrets
import socket
import sys
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence

from . import bounded, jit_caches, procs
from . import devices as devices_module
from .logind import kills_at_logout
from .wire import portable

TIMEOUT_S = 30.0
DEFAULT_WORKDIR = "~/.cache/farbench"

# Runs under the payloads' interpreter, whatever its age. Nothing is imported that could be heavy: a distribution's
# version comes from its metadata, and a module without one counts as there if it can be found.
_ASK = r"""
import json, sys
marker, names = sys.argv[1], sys.argv[2:]
try:
    import importlib.metadata as metadata
    import importlib.util as util
except ImportError:
    metadata = None
owners = {}
if hasattr(metadata, "packages_distributions"):
    try:
        owners = metadata.packages_distributions()
    except Exception:
        pass  # one damaged distribution must not hide the others
def version(name):
    for distribution in [name] + list(owners.get(name, ())) + [name.replace("_", "-")]:
        try:
            found = metadata.version(distribution)
            if found:
                return found
        except Exception:
            continue
    try:
        return "unknown" if util.find_spec(name) is not None else None
    except Exception:
        return None
print(marker + json.dumps({
    "path": sys.executable,
    "version": "%d.%d.%d" % sys.version_info[:3],
    "modules": dict((name, version(name) if metadata else None) for name in names),
}))
"""
_ACTIVATE = 'eval "$1"; shift; exec "$@"'


def probe(command: Mapping[str, Any]) -> Dict[str, Any]:
    """Facts about this host. `command` may have `python`, `activate`, `devices`, `modules`, `env` and `workdir`.

    {"hostname", "boot_id", "uid", "user", "time" (UTC seconds), "load_average" (1, 5, 15 min), "cpus", "workdir",
    "disk_free_bytes", "python", "python_version" (of the agent), "payload_python", "payload_python_version",
    "modules": {name: version, "unknown" for one without, or null}, "devices", "problems": [text]}.
    `payload_python` is null when that interpreter cannot be used. Takes at most about 40 s."""
    problems: List[str] = []
    environ = {**os.environ, **{str(name): str(value) for name, value in (command.get("env") or {}).items()}}
    workdir = os.path.abspath(os.path.expanduser(str(command.get("workdir") or DEFAULT_WORKDIR)))
    user = _user()
    facts: Dict[str, Any] = {
        "hostname": socket.gethostname(),
        "boot_id": procs.boot_id(),
        "uid": os.getuid(),
        "user": user,
        "time": time.time(),
        "load_average": _load_average(),
        "cpus": os.cpu_count(),
        "workdir": portable(workdir),
        "disk_free_bytes": _disk_free(workdir, problems),
        "python": portable(sys.executable),
        "python_version": "%d.%d.%d" % sys.version_info[:3],
    }
    python = str(command.get("python") or sys.executable)
    facts.update(
        _payload_python(python, command.get("activate"), command.get("modules") or (), environ, problems)
    )
    facts["devices"] = _devices(command.get("devices", "all"), environ, problems)
    problems += [
        f"{cache.problem} ({cache.variable}): workers will compile into private caches, anew in each run"
        for cache in jit_caches.folders(environ)
        if cache.problem
    ]
    logout = kills_at_logout(user)
    if logout is not None:
        problems.append(logout)
    facts["problems"] = [problem.encode("utf-8", "replace").decode("utf-8") for problem in problems]
    return facts


def _payload_python(
    python: str,
    activate: Optional[str],
    modules: Sequence[str],
    environ: Mapping[str, str],
    problems: List[str],
) -> Dict[str, Any]:
    nothing = {
        "payload_python": None,
        "payload_python_version": None,
        "modules": dict.fromkeys(modules),
    }
    marker = secrets.token_hex(8)
    argv = [os.path.expanduser(python), "-c", _ASK, marker, *modules]
    if activate:
        argv = ["/bin/sh", "-c", _ACTIVATE, "farbench", activate, *argv]
    try:
        done = bounded.run(argv, environ, TIMEOUT_S)
    except (OSError, ValueError) as error:
        problems.append(f"{python} cannot be started: {getattr(error, 'strerror', None) or error}")
        return nothing
    # `activate` may print what it likes before it.
    found = re.search(f"^{marker}(.*)$", done.stdout, re.MULTILINE)
    if found is None:
        how = (
            f"did not answer within {TIMEOUT_S:.0f} s"
            if done.code is None
            else f"ended with exit code {done.code}"
        )
        said = " ".join(done.stderr.split())[-300:]
        problems.append(f"{python} {how}{': ' if said else ''}{said}")
        return nothing
    answer = json.loads(found.group(1))
    return {
        "payload_python": answer["path"],
        "payload_python_version": answer["version"],
        "modules": answer["modules"],
    }


def _devices(spec: Any, environ: Mapping[str, str], problems: List[str]) -> List[Dict[str, Any]]:
    try:
        found, told = devices_module.discover(spec, environ)
    except devices_module.DeviceError as error:
        problems.append(str(error))
        return []
    problems += told
    return found


def _disk_free(workdir: str, problems: List[str]) -> Optional[int]:
    """Bytes this user may still write below `workdir`, which need not exist yet."""
    existing = workdir
    while not os.path.isdir(existing) and os.path.dirname(existing) != existing:
        existing = os.path.dirname(existing)
    try:
        facts = os.statvfs(existing)
    except OSError as error:
        problems.append(f"{existing}: {error.strerror}")
        return None
    if not os.access(existing, os.W_OK | os.X_OK):
        problems.append(f"{existing} is not writable for this user: set another `workdir`")
    if facts.f_flag & os.ST_NOEXEC:
        problems.append(f"{existing} is mounted noexec: what a payload compiles there cannot be loaded")
    if not facts.f_favail and facts.f_files:
        problems.append(f"{existing} has no inodes left: no file can be made there")
    return facts.f_bavail * facts.f_frsize


def _load_average() -> Optional[List[float]]:
    try:
        return list(os.getloadavg())
    except OSError:
        return None


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
