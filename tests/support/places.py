"""Hosts whose folders are odd: other file systems in a mount namespace of their own, where this machine allows one."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

_AS_ROOT = os.geteuid() == 0
_UNSHARE = ["unshare", "--mount"] if _AS_ROOT else ["unshare", "--map-root-user", "--mount"]


@cache
def namespaces_work() -> bool:
    """Whether we may mount things that nobody else sees: as root, or with user namespaces."""
    script = "mount --make-rprivate / && mount -t tmpfs tmpfs /mnt"
    try:
        return subprocess.run([*_UNSHARE, "sh", "-c", script], capture_output=True).returncode == 0
    except OSError:
        return False


class Place:
    """A mount namespace, held open by a process. `shell` is a login shell within it, for `Sshd`."""

    def __init__(self, folder: Path, mounts: Sequence[str], *, shell: str = "/bin/bash") -> None:
        """`mounts` are commands for /bin/sh, run one after another in the namespace."""
        script = " && ".join(["mount --make-rprivate /", *mounts, "echo ready", "exec sleep 100000"])
        self._holder = subprocess.Popen(
            [*_UNSHARE, "sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != b"ready\n":
            raise RuntimeError(f"{script}: {self._holder.communicate()[1].decode()}")
        user = [] if _AS_ROOT else ["--user", "--preserve-credentials"]
        self._enter = ["nsenter", "--target", str(self._holder.pid), *user, "--mount"]
        self._script = folder / "shell_in_place"
        self._script.write_text(f'#!/bin/sh\nexec {shlex.join(self._enter)} {shell} "$@"\n')
        self._script.chmod(0o755)

    @property
    def shell(self) -> str:
        """A program that runs `-c COMMAND` there."""
        return str(self._script)

    def run(self, command: str) -> str:
        """Standard output of a shell command there."""
        done = subprocess.run([*self._enter, "sh", "-c", command], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def close(self) -> None:
        """Let the namespace go; it lives on as long as processes in it."""
        self._holder.kill()
        self._holder.communicate()
