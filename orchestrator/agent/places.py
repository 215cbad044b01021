"""Which folder a run has on this host, where two entries of hosts.yaml may name this one machine and share a workdir.

The first to launch gets `runs/<run id>`, another entry of the same run `runs/<run id>.2`, and so on. A file `host` in
the folder names the entry it belongs to; it appears by one link, so that two that launch at once never share a folder.
"""

from __future__ import annotations

import os
from typing import Iterator, Optional

from .paths import RunPaths, link_once

MOST = 64


def claim(workdir: str, run_id: str, host: str) -> RunPaths:
    """The folder of this entry's part of the run, ours from now on. Raises OSError, ValueError."""
    for paths in _candidates(workdir, run_id):
        os.makedirs(paths.root, mode=0o700, exist_ok=True)
        link_once(paths.host, host.encode("utf-8", "surrogateescape"))
        if _owner(paths) == host:
            return paths
    raise ValueError(f"more than {MOST} hosts of run {run_id} share {workdir}")


def find(workdir: str, run_id: str, host: Optional[str]) -> Optional[RunPaths]:
    """The folder of this entry's part of the run, if it has one here. Without a name, the first."""
    for paths in _candidates(workdir, run_id):
        if not os.path.isdir(paths.root):
            return None
        if host is None or _owner(paths) == host:
            return paths
    return None


def run_of(folder: str) -> str:
    """The run that a folder's name belongs to."""
    stem, _, number = folder.rpartition(".")
    return stem if stem and number.isdigit() and int(number) <= MOST else folder


def _candidates(workdir: str, run_id: str) -> Iterator[RunPaths]:
    yield RunPaths(workdir, run_id)
    for number in range(2, MOST + 1):
        yield RunPaths(workdir, f"{run_id}.{number}")


def _owner(paths: RunPaths) -> Optional[str]:
    try:
        with open(paths.host, "rb") as file:
            return file.read().decode("utf-8", "surrogateescape")
    except OSError:
        return None
