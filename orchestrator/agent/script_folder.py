"""The working folder of one execution of a script payload: fresh, its own, filled with copies, gone afterwards."""

from __future__ import annotations

import glob
import os
import shutil
import stat
from typing import BinaryIO, Dict, List, Mapping, Sequence, Tuple

from .paths import RunPaths, checked_relative
from .wire import native, portable


class Folder:
    """`work/<case>-<attempt>/<backend>/`; what is to be kept goes to `collected/<case>/<backend>/`.

    `device` tells executions apart that measure the same case on several devices at once."""

    def __init__(self, paths: RunPaths, case_id: str, backend: str, attempt: int, device: str = "") -> None:
        case = checked_relative(native(case_id))
        parts = [name for name in (_file_name(backend), device) if name]
        self.path = os.path.join(paths.work, f"{case}-{attempt}", *parts)
        self._collected = os.path.join(paths.collected, case, *parts)
        self._root = paths.root
        self._work = paths.work
        self._given: Dict[str, Tuple[int, int]] = {}

    def fill(self, files: Mapping[str, str], executable: bool) -> None:
        """Make the folder with copies of the payload's files (name: path in the run's folder). Raises OSError."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.makedirs(self.path, mode=0o700)
        for name, source in files.items():
            target = os.path.join(self.path, checked_relative(native(name)))
            os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
            shutil.copyfile(os.path.join(self._root, checked_relative(native(source))), target)
            os.chmod(target, 0o700 if executable else 0o600)
            self._given[target] = _state(target)

    def open(self, name: str) -> BinaryIO:
        """A file that the program wrote. Raises FileNotFoundError for what is none; ValueError if it lies elsewhere."""
        path = self._own(os.path.join(self.path, checked_relative(native(name))))
        # A named pipe would hold us up for ever.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise ValueError(f"{name} is no regular file")
        return os.fdopen(fd, "rb")

    def collect(self, patterns: Sequence[str]) -> List[str]:
        """Keep the files that match: plain files of this folder that were not put there by us. Returns which could not be
        kept, and why: a container may have left what is not ours to move, and results count without it.

        They are moved, so a link to a folder elsewhere is never followed: what lies there is not ours."""
        problems: List[str] = []
        home = os.path.realpath(self.path)
        shutil.rmtree(self._collected, ignore_errors=True)
        for pattern in patterns:
            wanted = os.path.join(glob.escape(self.path), checked_relative(native(pattern)))
            for path in sorted(glob.glob(wanted, recursive=True)):
                if not os.path.isfile(path) or os.path.islink(path) or self._given.get(path) == _state(path):
                    continue
                if os.path.realpath(path) != os.path.join(home, os.path.relpath(path, self.path)):
                    continue
                try:
                    self._keep(path)
                except OSError as error:
                    name = portable(os.path.relpath(path, self.path))
                    problems.append(f"{name} is not kept: {error.strerror or error}")
        return problems

    def _keep(self, path: str) -> None:
        target = os.path.join(self._collected, os.path.relpath(path, self.path))
        os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
        os.rename(path, target)
        try:
            os.chmod(target, 0o600)
        except PermissionError:
            pass  # another user's; it may be readable all the same

    def remove(self) -> None:
        """Remove the folder, and the case's once it is empty."""
        shutil.rmtree(self.path, ignore_errors=True)
        above = os.path.dirname(self.path)
        try:
            while above != self._work:
                os.rmdir(above)
                above = os.path.dirname(above)
        except OSError:
            pass  # another execution still has its folder there

    def _own(self, path: str) -> str:
        real, home = os.path.realpath(path), os.path.realpath(self.path)
        if not real.startswith(home + os.sep):
            raise ValueError(f"{os.path.basename(path)} leads out of the working folder")
        return real


def _state(path: str) -> Tuple[int, int]:
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


def _file_name(text: str) -> str:
    """A backend as one path component."""
    name = native(text.replace("%", "%25").replace("/", "%2F").replace("\0", "%00"))
    return "%2E" + name[1:] if name.startswith(".") else name
