"""The first program on a host: takes the files it lacks, then hands over to the agent's zip.

It comes as source over standard input and must stand alone. The dialogue is described in docs/architecture.md.
Everything it says goes to the original standard output, each line after the request's nonce; whatever else in this
process prints (a library, a traceback) lands on standard error.
"""

import errno
import hashlib
import json
import os
import socket
import sys
import time
from types import SimpleNamespace
from typing import Any, Dict, Iterator, Optional, Tuple

CHUNK = 1 << 18
UNUSED_S = 30 * 86400.0
HINTS = {
    errno.ENOSPC: "free some space there, or set another `workdir`",
    errno.EDQUOT: "your quota is used up: free some space there, or set another `workdir`",
    errno.EACCES: "make it writable for this user, or set another `workdir`",
    errno.EPERM: "make it writable for this user, or set another `workdir`",
    errno.ENOENT: "a folder above it cannot be made: set another `workdir`",
    errno.EROFS: "it is mounted read-only: set another `workdir`",
    errno.EEXIST: "something that is no folder is in the way: set another `workdir`",
    errno.ENOTDIR: "something that is no folder is in the way: set another `workdir`",
}


class Refused(Exception):
    """This host cannot take the request; says which step failed, where and why."""

    def __init__(self, step: str, path: str, error: str, hint: Optional[str] = None) -> None:
        super().__init__(error)
        self.answer = {"type": "refused", "step": step, "path": wire(path), "error": error, "hint": hint}


def wire(path: str) -> str:
    """A path as text that any JSON reader takes, whatever the locale or the bytes in it."""
    return os.fsencode(path).decode("utf-8", "replace")


def failed(step: str, path: str, error: OSError) -> Refused:
    """The refusal for an operating system error."""
    return Refused(step, error.filename or path, error.strerror or str(error), HINTS.get(error.errno or 0))


def write_all(fd: int, data: bytes) -> None:
    """Write every byte."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def read_exactly(source: Any, size: int) -> Iterator[bytes]:
    """Pieces that add up to `size` bytes; ends the process quietly if the other side went away."""
    while size:
        piece = source.read(min(size, CHUNK))
        if not piece:
            raise SystemExit(1)
        size -= len(piece)
        yield piece


def make_folders(workdir: str) -> str:
    """Create the workdir and its cache for this user only; half-received files of dead uploads go."""
    cache = os.path.join(workdir, "cache")
    try:
        for folder in (workdir, cache, os.path.join(workdir, "runs")):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        if not os.access(cache, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), cache)
        for name in os.listdir(cache):
            if name.startswith(".incoming-"):
                drop_leftover(os.path.join(cache, name))
    except OSError as error:
        raise failed("create the work folder", workdir, error) from error
    return cache


def drop_leftover(path: str) -> None:
    """Remove what an upload left that nobody continues any more."""
    try:
        if time.time() - os.stat(path).st_mtime > 3600:
            os.unlink(path)
    except FileNotFoundError:
        pass  # removed by someone else at this moment


def take(source: Any, cache: str, sha256: str, size: int) -> None:
    """Receive one file into the cache. It gets its name only when it is whole, right and on disk."""
    target = os.path.join(cache, sha256)
    incoming = os.path.join(cache, ".incoming-%s-%d" % (sha256[:16], os.getpid()))
    digest = hashlib.sha256()
    try:
        fd = os.open(incoming, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            for piece in read_exactly(source, size):
                digest.update(piece)
                write_all(fd, piece)
            if digest.hexdigest() != sha256:
                raise Refused("check the upload", target, "content is not what was announced", "try again")
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(incoming, target)
    except OSError as error:
        raise failed("store the uploaded files", target, error) from error
    finally:
        if os.path.lexists(incoming):
            os.unlink(incoming)


def whole(cache: str, sha256: str, size: int) -> bool:
    """Whether the cache has this file; one of another size was damaged and is taken again."""
    try:
        found = os.stat(os.path.join(cache, sha256))
    except OSError:
        return False
    if found.st_size != size:
        return False
    os.utime(os.path.join(cache, sha256))  # what is used is not what garbage collection looks for
    return True


def leftover(source: Any) -> bytes:
    """What the buffered reader already took from the descriptor but nobody has read."""
    os.set_blocking(0, False)
    try:
        data = source.peek()
        return bytes(source.read(len(data))) if data else b""
    finally:
        os.set_blocking(0, True)


def read_line(source: Any) -> Dict[str, Any]:
    """The next line's JSON object; ends the process quietly if the other side went away."""
    line = source.readline()
    if not line.endswith(b"\n"):
        raise SystemExit(1)
    message: Dict[str, Any] = json.loads(line.decode("utf-8"))
    return message


def place(request: Dict[str, Any]) -> Tuple[str, str]:
    """The work folder as it was asked for, and where that is."""
    # The bytes of a path are UTF-8 whatever the locale says; `fsdecode` gives the text that stands for them here.
    asked = os.fsdecode(request["workdir"].encode("utf-8", "surrogateescape"))
    return asked, os.path.expanduser(asked)


def get_ready(announced: Dict[str, Any]) -> None:
    """Load the agent that the request will name, where it has been unpacked before. Changes nothing on this host."""
    folder = agent_folder(os.path.abspath(place(announced)[1]), bytes.fromhex(announced["agent"]).hex())
    if os.path.isdir(folder):
        sys.path.insert(0, folder)
        try:
            from farbench_agent.commands import get_ready as ready  # type: ignore[import-not-found]

            ready()
        except Exception:  # noqa: BLE001 - it is imported again for the request, and then told
            sys.path.remove(folder)


def main() -> None:
    """Answer one request. Before it may come a line without a `command`: what to get ready for it."""
    os.umask(0o077)
    if not sys.executable:  # without PATH, Python does not find out what it was started as
        sys.executable = os.path.realpath("/proc/self/exe")
    output = os.dup(1)
    os.dup2(2, 1)
    source = sys.stdin.buffer
    request = read_line(source)
    if "command" not in request:
        get_ready(request)
        request = read_line(source)
    nonce = request["nonce"].encode("ascii")

    def send(message: Dict[str, Any]) -> None:
        write_all(output, nonce + b" " + json.dumps(message).encode("ascii") + b"\n")

    asked, workdir = place(request)
    try:
        if workdir.startswith("~"):
            raise Refused("find the work folder", asked, "this user has no home folder here", "set `workdir`")
        workdir = os.path.abspath(workdir)
        cache = make_folders(workdir)
        # A digest becomes a file name below, so it must be one.
        files = [(bytes.fromhex(sha256).hex(), int(size)) for sha256, size in request["files"]]
        missing = [(sha256, size) for sha256, size in files if not whole(cache, sha256, size)]
        send(
            {
                "type": "hello",
                "missing": [sha256 for sha256, _ in missing],
                "workdir": wire(workdir),
                "python": wire(sys.executable),
                "version": "%d.%d.%d" % sys.version_info[:3],
                "uid": os.getuid(),
                "hostname": socket.gethostname(),
                "boot_id": boot_id(),
                "time": time.time(),
                **room(workdir),
            }
        )
        for sha256, size in missing:
            take(source, cache, sha256, size)
        if missing:
            sync_folder(cache)
    except Refused as refusal:
        send(refusal.answer)
        raise SystemExit(1) from None
    sys.path.insert(0, unpacked(workdir, bytes.fromhex(request["agent"]).hex()))
    from farbench_agent.commands import dispatch  # type: ignore[import-not-found,unused-ignore]

    dispatch(
        request["command"],
        SimpleNamespace(
            nonce=request["nonce"],
            workdir=workdir,
            input_fd=0,
            output_fd=output,
            pending=leftover(source),
        ),
    )


def room(workdir: str) -> Dict[str, Any]:
    """What the file system says of itself, as far as it does."""
    try:
        found = os.statvfs(workdir)
    except OSError:
        return {}
    return {
        "free_bytes": found.f_bavail * found.f_frsize,
        "noexec": bool(found.f_flag & getattr(os, "ST_NOEXEC", 0)),
    }


def unpacked(workdir: str, agent: str) -> str:
    """Where to import the agent from: a folder, in which Python keeps the compiled modules, made once a boot.

    (Nothing is synced to disk, and after a crash of the host files may be empty: so it is never used after a boot.)
    Where it cannot be made, the zip itself does."""
    archive = os.path.join(workdir, "cache", agent)
    folder = agent_folder(workdir, agent)
    above = os.path.dirname(folder)
    try:
        if os.path.isdir(folder):
            os.utime(folder)
            return folder
        import shutil
        import zipfile

        own = "%s.%d" % (folder, os.getpid())
        try:
            with zipfile.ZipFile(archive) as bundle:
                bundle.extractall(own)
            os.rename(own, folder)
        finally:
            shutil.rmtree(own, ignore_errors=True)
        for name in os.listdir(above):
            path = os.path.join(above, name)
            if time.time() - os.stat(path).st_mtime > UNUSED_S:
                shutil.rmtree(path, ignore_errors=True)
    except OSError:
        pass  # another stub was faster, or the disk is full
    return folder if os.path.isdir(folder) else archive


def agent_folder(workdir: str, agent: str) -> str:
    """The folder of an agent during this boot."""
    return os.path.join(workdir, "agent", "%s-%s" % (agent[:16], boot_id()[:13]))


def boot_id() -> str:
    """The id of this boot, or an empty string where the system has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def sync_folder(path: str) -> None:
    """Make renames in a folder survive a power cut."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


if __name__ == "__main__":
    main()
