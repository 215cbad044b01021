"""Lock files that die with their holder, in folders that other users may write to.

The lock is flock(2) on an open file: the kernel drops it when the holder dies, however it dies. A lock file is
never removed while someone may use it, only its lock counts. What is written in it is for people, and is untrusted.

In a shared folder anyone may have put anything in our way. So files are opened relative to the folder's own
descriptor, without following links and without waiting, must be plain files with one name, and are created
exclusively (opening another user's file with O_CREAT is refused by `fs.protected_regular` even to root).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
from typing import Any, Dict, Iterator, Mapping, Optional

_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
MAX_TEXT = 1 << 16


class LeaseError(Exception):
    """Leases cannot be taken here at all; the message names the path and what is wrong with it."""


@contextlib.contextmanager
def folder(path: str, mode: int) -> Iterator[int]:
    """A descriptor of the folder, made with `mode` (0700 or 01777) if it is missing. Raises `LeaseError`."""
    try:
        with contextlib.suppress(FileExistsError):
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            os.mkdir(path, mode)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        kind = "is a link or no folder" if error.errno in (errno.ELOOP, errno.ENOTDIR) else error.strerror
        raise LeaseError(f"the lease folder {path} cannot be used: {kind}") from None
    try:
        entry = os.fstat(descriptor)
        # The umask took bits away when we made it.
        if entry.st_uid == os.geteuid() and stat.S_IMODE(entry.st_mode) != mode:
            with contextlib.suppress(OSError):
                os.fchmod(descriptor, mode)
        yield descriptor
    finally:
        os.close(descriptor)


def open_file(directory: int, name: str, mode: int) -> int:
    """A descriptor of the lock file, made with `mode` if it is missing: for reading at least, for writing where that
    is allowed. Raises `LeaseError` for anything that is not a plain file of its own."""
    for _ in range(100):
        try:
            return _checked(_open_existing(directory, name), name)
        except FileNotFoundError:
            pass
        try:
            return create_file(directory, name, mode)
        except FileExistsError:
            continue  # another one was faster, or has just removed it
    raise LeaseError(f"the lease file {name} comes and goes")


def create_file(directory: int, name: str, mode: int) -> int:
    """A descriptor of a new file. Raises `FileExistsError`, `LeaseError`."""
    try:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS, mode, dir_fd=directory)
    except FileExistsError:
        raise
    except OSError as error:
        raise LeaseError(f"cannot make the lease file {name}: {error.strerror}") from None
    with contextlib.suppress(OSError):
        os.fchmod(descriptor, mode)
    return descriptor


def open_to_read(directory: int, name: str) -> Optional[int]:
    """A descriptor of an existing plain file, or None."""
    try:
        return _checked(os.open(name, os.O_RDONLY | _FLAGS, dir_fd=directory), name)
    except (OSError, LeaseError):
        return None


def lock(descriptor: int, *, shared: bool = False) -> bool:
    """Take the lock without waiting; False when another one has it. Raises `LeaseError` where files cannot be locked."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise LeaseError(
            f"files cannot be locked here: {error.strerror}; is this a network file system?"
        ) from None
    return True


def unlock_and_close(descriptor: int) -> None:
    """Let go at once, also where a process that is just being forked still has a copy of the descriptor."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def is_at(descriptor: int, directory: int, name: str) -> bool:
    """Whether the open file still is the one with this name; a cleaner of /tmp may have removed it."""
    try:
        there = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return False
    here = os.fstat(descriptor)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def write(descriptor: int, value: Mapping[str, Any]) -> None:
    """Replace what is written in the file; a file that may only be read, or a full disk, is no reason to fail."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(value).encode("ascii"), 0)


def clear(descriptor: int) -> None:
    """Take back what was written."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)


def read(descriptor: int) -> Dict[str, Any]:
    """What is written in the file; {} for anything that is not a JSON object."""
    try:
        value = json.loads(os.pread(descriptor, MAX_TEXT, 0).decode("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _open_existing(directory: int, name: str) -> int:
    problem = ""
    for access in (os.O_RDWR, os.O_RDONLY):
        try:
            return os.open(name, access | _FLAGS, dir_fd=directory)
        except FileNotFoundError:
            raise
        except OSError as error:
            problem = "it is a symbolic link" if error.errno == errno.ELOOP else str(error.strerror)
    raise LeaseError(f"the lease file {name} cannot be opened: {problem}")


def _checked(descriptor: int, name: str) -> int:
    entry = os.fstat(descriptor)
    if stat.S_ISREG(entry.st_mode) and entry.st_nlink <= 1:
        return descriptor
    os.close(descriptor)
    raise LeaseError(f"the lease file {name} (of user {entry.st_uid}) is not a plain file of its own")
