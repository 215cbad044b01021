"""What the payloads would run with: their interpreter, its libraries, the CUDA compiler. Nothing heavy is imported."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import sys
from typing import Any, Dict, List, Mapping, Optional, Sequence

from . import bounded
from .exits import ended
from .wire import native, portable

# Runs under the payloads' interpreter. A library's version comes from its metadata, and the CUDA that torch was built
# for from the text of torch/version.py: importing it takes seconds, and is what may fail.
_ASK = r"""
import json, os, re, sys
marker, names = sys.argv[1], sys.argv[2:]
from importlib import metadata, util
found = {}
for name in names:
    try:
        found[name] = metadata.version(name)
    except Exception:
        pass
def folder(module):
    try:
        spec = util.find_spec(module)
        return os.path.dirname(spec.origin) if spec and spec.origin else None
    except Exception:
        return None
cuda = None
torch = folder("torch")
if torch:
    try:
        with open(os.path.join(torch, "version.py")) as file:
            match = re.search(r"^cuda\b[^=\n]*=\s*['\"]([\d.]+)", file.read(), re.M)
        cuda = match.group(1) if match else None
    except OSError:
        pass
setup = None
try:
    with open(os.path.join(sys.prefix, "freeze.json")) as file:
        freeze = json.load(file)
    setup = dict((key, freeze.get(key)) for key in ("name", "profile", "digest", "created_at"))
except Exception:
    pass
modules = dict((name, folder(name)) for name in ("torch", "flashinfer", "sgl_kernel"))
print(marker + json.dumps({"path": sys.executable, "version": "%d.%d.%d" % sys.version_info[:3],
    "prefix": sys.prefix, "distributions": found, "torch_cuda": cuda, "modules": modules, "setup": setup}))
"""
_DUMP = "import json, os, sys; print(sys.argv[1] + json.dumps(dict(os.environ)))"
_ACTIVATE = 'farbench_activate() { eval "$1"; }; farbench_activate "$1"; shift; exec "$@"'
_NVCC_FOLDERS = ("/usr/local/cuda/bin", "/opt/cuda/bin")


def look(
    python: Optional[str],
    activate: Optional[str],
    distributions: Sequence[str],
    environ: Mapping[str, str],
    timeout_s: float,
) -> Dict[str, Any]:
    """{"asked", "interpreter": {path, version, prefix, distributions, torch_cuda, modules, setup} or null, "problem",
    "nvcc": {path, version} or null, "cxx": path or null, "cuda_compat": bool}"""
    program = os.path.expanduser(native(python)) if python else sys.executable
    facts: Dict[str, Any] = {"asked": portable(program), "interpreter": None, "problem": None}
    try:
        environ = _activated(activate, environ, timeout_s / 3) if activate else environ
        facts["interpreter"] = _answer([program, "-c", _ASK], list(distributions), environ, timeout_s / 2)
    except _NoAnswer as error:
        facts["problem"] = str(error)
    facts["nvcc"] = _nvcc(environ, timeout_s / 6)
    facts["cxx"] = next(
        filter(None, (shutil.which(name, path=environ.get("PATH")) for name in ("c++", "g++"))), None
    )
    facts["cuda_compat"] = any(
        os.path.exists(os.path.join(folder, "libcuda.so.1"))
        for folder in ("/usr/local/cuda/compat", *environ.get("LD_LIBRARY_PATH", "").split(":"))
        if "compat" in folder
    )
    return facts


class _NoAnswer(Exception):
    pass


def _activated(activate: str, environ: Mapping[str, str], timeout_s: float) -> Dict[str, str]:
    """The environment that `activate` leaves behind."""
    argv = ["/bin/sh", "-c", _ACTIVATE, "farbench", native(activate), sys.executable, "-I", "-c", _DUMP]
    try:
        answer: Dict[str, str] = _answer(argv, [], environ, timeout_s)
    except _NoAnswer as error:
        raise _NoAnswer(f"`activate`: {error}") from None
    return answer


def _answer(argv: List[str], arguments: List[str], environ: Mapping[str, str], timeout_s: float) -> Any:
    marker = secrets.token_hex(8)
    try:
        done = bounded.run([*argv, marker, *arguments], environ, timeout_s)
    except (OSError, ValueError) as error:
        raise _NoAnswer(f"{argv[0]} cannot be started: {getattr(error, 'strerror', None) or error}") from None
    found = re.search(f"^.*?{marker}(.*)$", done.stdout, re.MULTILINE)
    if found is not None:
        try:
            return json.loads(found.group(1))
        except (ValueError, RecursionError):
            raise _NoAnswer(f"{argv[0]} answered something that makes no sense") from None
    how = f"did not answer within {timeout_s:.1f} s" if done.code is None else ended(done.code)
    said = " ".join(done.stderr.split())[-300:]
    raise _NoAnswer(f"{argv[0]} {how}{': ' if said else ''}{said}")


def _nvcc(environ: Mapping[str, str], timeout_s: float) -> Optional[Dict[str, Optional[str]]]:
    """The CUDA compiler that a payload's just-in-time compilation finds: CUDA_HOME, then PATH, then the usual place."""
    homes = [environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)]
    folders = [os.path.join(home, "bin") for home in homes]
    path = os.pathsep.join([*folders, environ.get("PATH", os.defpath), *_NVCC_FOLDERS])
    program = shutil.which("nvcc", path=path)
    if program is None:
        return None
    try:
        done = bounded.run([program, "--version"], {**environ, "LC_ALL": "C"}, timeout_s)
    except OSError:
        return {"path": portable(program), "version": None}
    release = re.search(r"release (\d+\.\d+)", done.stdout)
    return {"path": portable(program), "version": release.group(1) if release else None}
