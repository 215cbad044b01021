"""Commands that must not hold us up: run for a bounded time, with what they print."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from typing import IO, List, Mapping, NamedTuple, Optional

from . import children


class Output(NamedTuple):
    """What a bounded command left; `code` is None when it ran past its bound, negative after a signal."""

    code: Optional[int]
    stdout: str
    stderr: str


def run(argv: List[str], environ: Mapping[str, str], timeout_s: float) -> Output:
    """Run a command for at most `timeout_s`, then kill its whole group; at most 1 MiB of each stream is kept.

    Returns even when the command cannot be killed (stuck in a driver). Raises OSError when it cannot be started."""
    # Files instead of pipes: a background process that keeps the streams open would hold up a pipe's reader.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with children.start() as note:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=dict(environ),
                start_new_session=True,
            )
            note(process.pid)
        code: Optional[int] = None
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if process.returncode is None:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait(1.0)
                except (OSError, subprocess.TimeoutExpired):
                    pass
            if process.returncode is not None:
                children.own.discard(process.pid)
        return Output(code, _head(out), _head(err))


def _head(file: IO[bytes], limit: int = 1 << 20) -> str:
    file.seek(0)
    return file.read(limit).decode("utf-8", "replace")
