"""The program that stands in for a connection, and what it says when it ends."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import threading
from contextlib import suppress

SAID_BYTES = 2000
"""How much of what a ProxyCommand printed is told."""
_CANNOT_RUN = (126, 127)
"""Exit statuses of a shell that found no program, or none that may be executed."""


class Command:
    """A running ProxyCommand. `end` it once the link is closed; what it said can be asked for afterwards too."""

    def __init__(self, line: str, stream: socket.socket) -> None:
        """Raises `OSError`."""
        self._lock = threading.Lock()
        self._last_words: str | None = None
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `end`
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {line}"], stdin=stream.fileno(), stdout=stream.fileno(), stderr=self._said,
                start_new_session=True,
            )  # fmt: skip
        except OSError:
            self._said.close()
            raise

    @property
    def cannot_run(self) -> bool:
        """Whether there was nothing to run: trying again would change nothing."""
        return self._process.poll() in _CANNOT_RUN

    def last_words(self) -> str | None:
        """What it printed, and how it ended; None as long as it runs."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)  # its end of the stream is closed a moment before it ends
        with self._lock:
            if self._last_words is None and self._process.poll() is not None:
                self._last_words = self._read()
            return self._last_words

    def end(self) -> None:
        """Stop it, if it still runs."""
        if self._process.poll() is None:
            self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        with self._lock:
            self._said.close()

    def _read(self) -> str | None:
        if self._said.closed:
            return None
        size = self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, size - SAID_BYTES))
        said = self._said.read().decode("utf-8", "replace")
        lines = ["".join(c if c.isprintable() else "?" for c in line.strip()) for line in said.splitlines()]
        status = self._process.returncode
        ended = f"exit status {status}" if status >= 0 else f"signal {-status}"
        return f"the ProxyCommand ended ({ended}): " + ("; ".join(filter(None, lines)) or "it said nothing")
