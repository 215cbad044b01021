"""A folder of wheels on this machine, from which a host without an index installs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import FileError
from orchestrator.launch.files import FileSet

_WHEEL = re.compile(
    r"[A-Za-z0-9_.]+-[A-Za-z0-9_.!+]+(-[0-9][A-Za-z0-9_.]*)?-[A-Za-z0-9_.]+-[A-Za-z0-9_.]+-[A-Za-z0-9_.]+\.whl"
)


@dataclass(frozen=True)
class Wheelhouse:
    """`wheels`: file name → SHA-256; `files`: their contents, for uploading those that a host lacks."""

    wheels: dict[str, str]
    files: FileSet


def read_wheelhouse(folder: Path) -> Wheelhouse:
    """The wheels of a folder (not of folders in it). Raises `FileError` when there is none."""
    if not folder.is_dir():
        raise FileError("there is no such folder", path=folder)
    files = FileSet()
    wheels = {}
    for path in sorted(folder.glob("*.whl")):
        if not _WHEEL.fullmatch(path.name):
            raise FileError(
                "its name is not that of a wheel: name-version-python-abi-platform.whl", path=path
            )
        wheels[path.name] = files.add(path)
    if not wheels:
        hint = f"`pip download --only-binary :all: -d {folder} -r …` fills it (on the host's platform and Python)"
        raise FileError(f"no wheel in it; {hint}", path=folder)
    return Wheelhouse(wheels, files)
