"""The commands `environment` and `setup`: what a payload environment is, and making it what it should be."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from typing import Any, List, Mapping

from . import environments, installers
from .channel import Channel, Context
from .checks import exec_error
from .environments import EnvironmentPaths
from .paths import write_file
from .spawning import die_with_parent
from .wire import finite, portable

ALIVE_S = 5.0
_CHUNK = 1 << 16
_TAIL_LINES = 20
_WHEEL_LIMIT = 10000


class Failed(Exception):
    """The environment was not made; the one before is still in use."""

    def __init__(self, step: str, path: str, error: str, hint: str = "") -> None:
        super().__init__(error)
        self.step, self.path, self.hint = step, path, hint


def describe(channel: Channel, command: Mapping[str, Any], context: Context) -> None:
    """Answer `environment {"python", "freeze", "changed"}`."""
    found = environments.look(_paths(command, context))
    channel.send({"type": "environment", **finite({**found, "python": portable(found["python"])})[0]})


def install(channel: Channel, command: Mapping[str, Any], context: Context) -> None:
    """Make the environment anew; `progress {"text"}` as it goes, `installed {"python", "freeze"}` at its end.

    `command`: `environment profile digest requirements wheels base_python python_range installer extra_indexes`;
    `wheels` is {file name: sha256} of uploaded files, or null to take packages from the host's index. Raises `Failed`."""
    paths = _paths(command, context)
    paths.make()
    held = environments.lock(paths)
    if held is None:
        raise Failed(
            "lock the environment", portable(paths.root), "another setup is at work on it", "try again later"
        )
    try:
        environments.tidy(paths, everything=False)
        paths.make()
        freeze = _build(channel, paths, command, context, held)
        environments.tidy(paths, everything=True)
    finally:
        os.close(held)
    channel.send({"type": "installed", "python": portable(paths.python), "freeze": finite(freeze)[0]})


def _paths(command: Mapping[str, Any], context: Context) -> EnvironmentPaths:
    return EnvironmentPaths(context.workdir, str(command["environment"]))


def _build(
    channel: Channel, paths: EnvironmentPaths, command: Mapping[str, Any], context: Context, held: int
) -> Any:
    cache = os.path.join(context.workdir, "cache")
    wheels = _lay_out_wheels(paths, cache, command["wheels"]) if command.get("wheels") is not None else None
    with open(os.path.join(paths.tmp, "requirements.txt"), "w", encoding="utf-8") as file:
        file.write(str(command["requirements"]))
    environ = installers.environment(
        paths,
        os.environ,
        [str(url) for url in command.get("extra_indexes") or ()],
        offline=wheels is not None,
    )
    _try_out(paths)
    build = os.path.join(paths.builds, f"{str(command['digest'])[:12]}-{time.time_ns():x}")
    try:
        chosen = installers.plan(paths, build, command, wheels, os.environ)
    except installers.CannotInstall as error:
        raise Failed("find an installer", portable(paths.root), str(error), error.hint) from None
    version = ".".join(map(str, chosen.base.version))
    _say(channel, f"making it with {chosen.installer} from {portable(chosen.base.path)} ({version})")
    fd = os.open(paths.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with open(fd, "wb") as log:
        for argv in chosen.commands:
            _run(channel, argv, environ, log, paths, held)
    facts = {
        "profile": command.get("profile"),
        "digest": command["digest"],
        "requirements": [line for line in str(command["requirements"]).splitlines() if line.strip()],
        "installer": chosen.installer,
        "python_version": version,
        "offline": wheels is not None,
    }
    return environments.finish(paths, build, facts)


def _try_out(paths: EnvironmentPaths) -> None:
    """An environment is no good where no program may be run. Raises `Failed`, OSError."""
    program = os.path.join(paths.tmp, "program")
    write_file(program, b"#!/bin/sh\nexit 0\n")
    os.chmod(program, 0o700)
    why = exec_error(program)
    if why is not None:
        raise Failed(
            "try the folder", portable(paths.root), f"programs cannot be run there ({why}): mounted noexec?",
            "set `workdir:` to a folder on a file system without noexec",
        )  # fmt: skip


def _lay_out_wheels(paths: EnvironmentPaths, cache: str, wheels: Mapping[str, str]) -> str:
    """A folder with the uploaded wheels under their own names, which installers read."""
    folder = os.path.join(paths.tmp, "wheels")
    os.mkdir(folder, 0o700)
    for name, sha256 in list(wheels.items())[:_WHEEL_LIMIT]:
        if os.path.basename(name) != name or not name.endswith(".whl"):
            raise ValueError(f"not the name of a wheel: {name!r}")
        os.symlink(os.path.join(cache, bytes.fromhex(sha256).hex()), os.path.join(folder, name))
    return folder


def _run(
    channel: Channel,
    argv: List[str],
    environ: Mapping[str, str],
    log: Any,
    paths: EnvironmentPaths,
    held: int,
) -> None:
    """Run one step of the installer. It ends with us, and when the controller goes away."""
    # The child holds the lock too: should we be killed, nobody else begins before it is gone.
    process = subprocess.Popen(
        argv, env=dict(environ), cwd=paths.tmp, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True, pass_fds=(held,), preexec_fn=die_with_parent(),
    )  # fmt: skip
    assert process.stdout is not None
    tail: List[str] = []
    try:
        for line in _lines(channel, process.stdout.fileno()):
            if line is None:
                channel.send({"type": "progress", "text": ""})
                continue
            text = installers.without_credentials(line)
            log.write(text.encode("utf-8", "replace") + b"\n")
            tail = [*tail, text][-_TAIL_LINES:]
            _say(channel, text)
        code = process.wait()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    finally:
        process.stdout.close()
    if code != 0:
        said = "\n".join(tail) or "it said nothing"
        raise Failed(
            "install",
            portable(paths.log),
            f"{os.path.basename(argv[0])} ended with exit code {code}:\n{said}",
        )


def _lines(channel: Channel, fd: int) -> Any:
    """The lines that come from `fd`, and None whenever nothing came for a while. Raises BrokenPipeError when the
    controller is gone."""
    pending = b""
    while True:
        ready, _, _ = select.select([fd, channel.input_fd], [], [], ALIVE_S)
        if channel.input_fd in ready:
            channel.read_available()
            if channel.closed:
                raise BrokenPipeError(32, "the controller is gone")
        if fd not in ready:
            if not ready:
                yield None
            continue
        data = os.read(fd, _CHUNK)
        *lines, pending = (pending + data).split(b"\n")
        for line in [*lines, pending] if not data else lines:
            text = line.decode("utf-8", "replace").rsplit("\r", 1)[-1].rstrip()
            if text:
                yield text
        if not data:
            return


def _say(channel: Channel, text: str) -> None:
    channel.send({"type": "progress", "text": portable_text(text)})


def portable_text(text: str) -> str:
    """Text that any JSON reader takes, of a bounded length."""
    return json.loads(json.dumps(text.encode("utf-8", "replace").decode("utf-8")))[:500]  # type: ignore[no-any-return]
