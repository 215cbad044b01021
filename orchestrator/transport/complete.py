"""Running a command to its end, over any transport: input fed, both streams drained, a bound on the whole."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Sequence
from typing import Protocol

from orchestrator.errors import HostError, HostUnreachable
from orchestrator.transport.base import Completed, Process

FEED_TIMEOUT_S = 5.0
_SMALL_INPUT_BYTES = 16 * 1024


class ReadableProcess(Process, Protocol):
    """A process whose output can be taken as it comes."""

    def read_some(self) -> bytes:
        """At least a byte of standard output; b"" at its end."""

    @property
    def was_closed(self) -> bool:
        """Whether `close` was called."""


def run_to_end(
    process: ReadableProcess, host: str, argv: Sequence[str], *, stdin: bytes, timeout_s: float | None
) -> Completed:
    """See `base.Transport.run`; `argv` is for messages."""
    expiry = threading.Timer(timeout_s, process.close) if timeout_s is not None else None
    if expiry is not None:
        expiry.daemon = True
        expiry.start()
    try:
        feeding = _feed(process, stdin)
        output = bytearray()
        while chunk := process.read_some():
            output += chunk
        status, signal = process.wait()
        feeding.join(FEED_TIMEOUT_S)
    finally:
        if expiry is not None:
            expiry.cancel()
        timed_out = process.was_closed
        process.close()
    if timed_out:
        raise TimeoutError(f"{host}: {shlex.join(argv[:3])} did not end within {timeout_s} s")
    if status is None and signal is None:
        # Part of the output may be missing, so that none of it may pass for the whole.
        raise HostUnreachable(host, f"the host did not say how {shlex.join(argv[:3])} ended", step="exec")
    return Completed(status, signal, bytes(output), process.stderr_tail())


def _feed(process: Process, data: bytes) -> threading.Thread:
    """Write `data` and end-of-file; much of it in a thread, since a command may print before it has read everything."""

    def feed() -> None:
        try:
            process.write(data)
        except (BrokenPipeError, HostError):
            return  # the reader learns the same, and how the command ended
        process.close_stdin()

    thread = threading.Thread(target=feed, name="feed", daemon=True)
    thread.start()
    if len(data) <= _SMALL_INPUT_BYTES:
        thread.join(FEED_TIMEOUT_S)
    return thread
