"""Making a virtual environment with uv or pip, kept inside one folder.

Only where packages come from is taken from the host's own settings (index, proxy, certificates); whatever would lead
an installation elsewhere (targets, prefixes, user folders, caches) is left out.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import sys
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from . import bounded
from .environments import EnvironmentPaths
from .wire import native

ASK_TIMEOUT_S = 30.0
_USUAL = (
    "python3.12",
    "python3.11",
    "python3.13",
    "python3.10",
    "python3",
    "python3.14",
    "python3.9",
    "python3.8",
)
_PIP_FOR_OTHERS = (22, 3)
"""From this version on pip installs into another interpreter's environment (`--python`)."""
_UV_FOLDERS = ("~/.local/bin", "~/.cargo/bin", "/usr/local/bin")
_ASK = """
import json, sys
def has(name):
    try:
        __import__(name)
        return True
    except Exception:
        return False
print(json.dumps([list(sys.version_info[:3]), has("venv") and has("ensurepip"), has("venv"), has("pip") and __import__("pip").__version__]))
"""
_FROM_PIP = (
    "index-url",
    "extra-index-url",
    "find-links",
    "trusted-host",
    "cert",
    "client-cert",
    "proxy",
    "timeout",
    "retries",
)
_FROM_UV = re.compile(
    r"UV_(INDEX|DEFAULT_INDEX|INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS|INDEX_STRATEGY|INSECURE_HOST|NATIVE_TLS|SYSTEM_CERTS"
    r"|HTTP_TIMEOUT|INDEX_.*_(USERNAME|PASSWORD))"
)
_OURS = re.compile(r"(PIP|UV|PYTHON|CONDA|VIRTUAL_ENV|XDG|FARBENCH|_?_PYVENV).*")
_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+@")


class CannotInstall(Exception):
    """This host has nothing to build the environment with; `hint` says what would help."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class Base(NamedTuple):
    """An interpreter that environments can be made from."""

    path: str
    version: Tuple[int, ...]
    ensurepip: bool
    venv: bool
    pip: Optional[str]


class Plan(NamedTuple):
    """The commands that make a build, and how it is made in words."""

    commands: List[List[str]]
    installer: str
    base: Base


def plan(
    paths: EnvironmentPaths,
    build: str,
    request: Mapping[str, Any],
    wheels: Optional[str],
    environ: Mapping[str, str],
) -> Plan:
    """How to make `build`. `wheels` is a folder to install from alone, without any index. Raises `CannotInstall`."""
    uv = None if request.get("installer") == "pip" else find_uv(environ)
    if uv is None and request.get("installer") == "uv":
        raise CannotInstall(
            "uv was asked for and is not on this host", "install it, or leave `--installer` out"
        )
    base = _base(request, environ, needs_venv=uv is None)
    requirements = os.path.join(paths.tmp, "requirements.txt")
    python = os.path.join(build, "bin", "python")
    offline = ["--no-index", "--find-links", wheels] if wheels is not None else []
    if uv is not None:
        off = ["--offline"] if wheels is not None else []
        make = [uv, "venv", *off, "--python", base.path, build]
        install = [uv, "pip", "install", *off, "--python", python, *offline, "-r", requirements]
        return Plan([make, install], "uv", base)
    options = ["install", "--no-input", *offline, "-r", requirements]
    # The environment needs no pip of its own: it is never changed after it was made.
    make = [base.path, "-I", "-m", "venv", "--without-pip", build]
    own = _pip_wheel(wheels)
    if own is not None:
        return Plan([make, [python, os.path.join(own, "pip"), *options]], "pip", base)
    if base.pip is not None and _numbers(base.pip) >= _PIP_FOR_OTHERS:
        return Plan([make, [base.path, "-I", "-m", "pip", "--python", python, *options]], "pip", base)
    if base.ensurepip:
        commands = [[base.path, "-I", "-m", "venv", build], [python, "-I", "-m", "pip", *options]]
        return Plan(commands, "pip", base)
    raise CannotInstall(
        f"{base.path} has neither ensurepip nor a pip of 22.3 or later, and there is no uv",
        "install uv or the package python3-venv on the host, name another interpreter with --base-python, or put a "
        "wheel of pip into the wheelhouse",
    )


def find_uv(environ: Mapping[str, str]) -> Optional[str]:
    """The path of uv, also where a login shell's PATH would have it."""
    folders = [os.path.expanduser(folder) for folder in _UV_FOLDERS]
    return shutil.which("uv", path=os.pathsep.join([environ.get("PATH", os.defpath), *folders]))


def environment(
    paths: EnvironmentPaths, environ: Mapping[str, str], extra_indexes: Sequence[str], offline: bool
) -> Dict[str, str]:
    """What the installer sees: its folders inside ours, and of the host's settings only where packages come from."""
    kept = {name: value for name, value in environ.items() if not _OURS.fullmatch(name)}
    kept.update(
        HOME=paths.home, TMPDIR=paths.tmp, XDG_CACHE_HOME=paths.cache, LC_ALL="C.UTF-8", PYTHONUTF8="1",
        PYTHONNOUSERSITE="1", PIP_CONFIG_FILE=os.devnull, PIP_CACHE_DIR=os.path.join(paths.cache, "pip"),
        PIP_DISABLE_PIP_VERSION_CHECK="1", UV_NO_CONFIG="1", UV_CACHE_DIR=os.path.join(paths.cache, "uv"),
        UV_PYTHON_DOWNLOADS="never", UV_PYTHON_INSTALL_DIR=os.path.join(paths.home, "python"), UV_NO_PROGRESS="1",
    )  # fmt: skip
    if offline:
        return kept
    netrc = environ.get("NETRC") or os.path.expanduser("~/.netrc")
    if os.path.exists(netrc):
        kept["NETRC"] = netrc
    sources = pip_sources(environ)
    extra = [*sources.pop("extra-index-url", "").split(), *extra_indexes]
    if extra:
        sources["extra-index-url"] = " ".join(extra)
    kept.update({f"PIP_{key.upper().replace('-', '_')}": value for key, value in sources.items()})
    own = {name: value for name, value in environ.items() if _FROM_UV.fullmatch(name)}
    # uv does not read pip's settings; and like pip it is to take the best version of all indexes.
    kept["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    if "index-url" in sources:
        kept["UV_INDEX_URL"] = sources["index-url"]
    if extra:
        kept["UV_EXTRA_INDEX_URL"] = " ".join([*own.pop("UV_EXTRA_INDEX_URL", "").split(), *extra])
    if "find-links" in sources:
        kept["UV_FIND_LINKS"] = ",".join(sources["find-links"].split())
    if "cert" in sources:
        kept.setdefault("SSL_CERT_FILE", sources["cert"])
    kept.update(own)
    return kept


def pip_sources(environ: Mapping[str, str]) -> Dict[str, str]:
    """What pip's configuration files and variables say of where packages come from, later ones winning."""
    home = os.path.expanduser("~")
    files = [
        "/etc/xdg/pip/pip.conf",
        "/etc/pip.conf",
        os.path.join(home, ".pip", "pip.conf"),
        os.path.join(environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config"), "pip", "pip.conf"),
        environ.get("PIP_CONFIG_FILE", ""),
    ]
    found: Dict[str, str] = {}
    for path in filter(None, files):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue
        for section in ("global", "install"):
            for key in _FROM_PIP:
                if parser.has_option(section, key) and parser.get(section, key).strip():
                    found[key] = " ".join(parser.get(section, key).split())
    for key in _FROM_PIP:
        value = environ.get(f"PIP_{key.upper().replace('-', '_')}")
        if value:
            found[key] = value
    if environ.get("PIP_DEFAULT_TIMEOUT"):
        found["timeout"] = environ["PIP_DEFAULT_TIMEOUT"]
    return found


def without_credentials(text: str) -> str:
    """`text` without the user and password of any address in it."""
    return _CREDENTIALS.sub("***@", text)


def _base(request: Mapping[str, Any], environ: Mapping[str, str], needs_venv: bool) -> Base:
    lowest, highest = (tuple(version) for version in request.get("python_range") or ([3, 8], [3, 99]))
    asked = request.get("base_python")
    names = [os.path.expanduser(native(str(asked)))] if asked else [*_USUAL, sys.executable]
    seen: List[str] = []
    best: Optional[Base] = None
    for name in names:
        path = shutil.which(name, path=environ.get("PATH", os.defpath))
        base = _ask(path, environ) if path is not None else None
        if base is None:
            seen.append(f"{name}: {'does not work' if path else 'not found'}")
        elif not lowest <= base.version[:2] <= highest:
            seen.append(f"{name} is {'.'.join(map(str, base.version))}")
        elif needs_venv and not base.venv:
            seen.append(f"{name} has no venv module")
        elif not needs_venv or base.ensurepip or (base.pip and _numbers(base.pip) >= _PIP_FOR_OTHERS):
            return base
        else:
            best = best or base
    if best is not None:
        return best
    wanted = f"Python {lowest[0]}.{lowest[1]} to {highest[0]}.{highest[1]}" if highest[1] < 99 else "a Python"
    told = "; ".join(entry for entry in seen if asked or not entry.endswith("not found"))
    raise CannotInstall(
        f"no interpreter to make the environment from ({wanted} is needed{'; ' if told else ''}{told})",
        "install one on the host, or name it with --base-python",
    )


def _ask(path: str, environ: Mapping[str, str]) -> Optional[Base]:
    try:
        done = bounded.run([path, "-I", "-c", _ASK], environ, ASK_TIMEOUT_S)
        version, ensurepip, venv, pip = json.loads(done.stdout)
    except (OSError, ValueError):
        return None
    return Base(path, tuple(version), ensurepip, venv, pip or None)


def _numbers(version: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _pip_wheel(wheels: Optional[str]) -> Optional[str]:
    if wheels is None:
        return None
    names = sorted(
        name for name in os.listdir(wheels) if re.fullmatch(r"pip-[0-9.]+-py3-none-any\.whl", name)
    )
    return os.path.join(wheels, names[-1]) if names else None
