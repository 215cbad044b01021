"""Can this backend run here? Every cause at once, the device's first, and nothing heavy imported to find out."""

from __future__ import annotations

import importlib.util
import re
import sys
from importlib import metadata
from typing import Any, List, Optional, Tuple

from .declare import Library, Needs, Unsupported
from .device import Device

FIRST_FP4_CAPABILITY = (10, 0)


def version_of(library: Library) -> Optional[Tuple[str, str]]:
    """(distribution, version) that the library is installed as, or None when no distribution is known."""
    for name in library.installed_as:
        try:
            version: Any = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if version:  # what is left of a half-removed package has none
            return name, str(version)
    return None


def is_installed(library: Library) -> bool:
    """Whether the module can be found (it is not imported)."""
    if library.module in sys.modules:
        return True
    try:
        return importlib.util.find_spec(library.module) is not None
    except (ImportError, ValueError):
        return False


def version_key(version: str) -> Tuple[Tuple[int, ...], int]:
    """An order of versions: release numbers, then pre-releases before it and post-releases after it (PEP 440 in short)."""
    version = re.sub(r"^v?(\d+!)?", "", version.strip().lower())
    release = re.match(r"\d+(\.\d+)*", version)
    rest = version[release.end() :] if release else version
    numbers = tuple(int(n) for n in release.group().split(".")) if release else ()
    while numbers and numbers[-1] == 0:
        numbers = numbers[:-1]
    rank = 1 if re.match(r"[-_.]?post", rest) else -1 if re.match(r"[-_.]?(a|b|c|rc|pre|dev)", rest) else 0
    return numbers, rank


def refusals(needs: Needs, device: Device) -> List[str]:
    """Every reason why a backend with these needs cannot run on this device; empty when it can."""
    causes = _device_refusals(needs, device)
    for library in needs.libraries:
        cause = library_refusal(library)
        if cause:
            causes.append(cause)
    return causes


def _device_refusals(needs: Needs, device: Device) -> List[str]:
    if device.capability is None:
        return [device.absent] if needs.device == "cuda" else []
    causes = []
    if needs.fp4 and device.capability < FIRST_FP4_CAPABILITY:
        causes.append("{} has no FP4 tensor cores: needs sm_100 or newer".format(device.sm))
    elif needs.since is not None and device.capability < needs.since:
        causes.append("{} is too old: needs sm_{}{} or newer".format(device.sm, *needs.since))
    elif needs.capabilities and device.capability not in needs.capabilities:
        known = ", ".join("sm_{}{}".format(*c) for c in needs.capabilities)
        causes.append("{} is not among the devices that it runs on: {}".format(device.sm, known))
    return causes


def library_refusal(library: Library) -> Optional[str]:
    """Why this library cannot serve as installed here, or None."""
    if not is_installed(library):
        return "{} is not installed".format(library.module)
    found = version_of(library)
    if found is None:
        return None
    distribution, version = found
    last = library.gone_after.get(distribution)
    if last is not None and version_key(version) > version_key(last):
        return missing_symbol(library, "{} {}".format(distribution, version))
    if library.minimum is not None and version_key(version) < version_key(library.minimum):
        return "{} {} is too old: needs {} or newer".format(distribution, version, library.minimum)
    return None


def require(library: Library, module: Any, *names: str) -> None:
    """Raise `Unsupported` when the imported module lacks one of the functions."""
    for name in names:
        if not hasattr(module, name):
            raise Unsupported(missing_symbol(library, installed_name(library), name))


def missing_symbol(library: Library, installed: str, symbol: Optional[str] = None) -> str:
    """The reason for a library that lacks what is called; the library's hint is about its own `symbol`."""
    missing = symbol or library.symbol
    hint = " ({})".format(library.hint) if library.hint and missing == library.symbol else ""
    return "{}: {} has no {}{}".format(library.module, installed, missing, hint)


def installed_name(library: Library) -> str:
    """`sgl-kernel 0.3.21`, or the module's name when no version is known."""
    found = version_of(library)
    return "{} {}".format(*found) if found else library.module
