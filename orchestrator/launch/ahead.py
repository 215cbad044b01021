"""A host that is called before its part of a run is known: logged in, and our program there waiting for the request.

Logging in and starting Python there take longer than all else that has to come before a host measures, and neither needs
the plan. Nothing is uploaded or changed on a host that was only called.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from orchestrator.errors import HostError, HostUnreachable
from orchestrator.launch.bundle import agent_bundle, stub_source
from orchestrator.launch.python import stub_command
from orchestrator.transport.base import Completed, Process, Transport

WRITE_TIMEOUT_S = 120.0
JOURNAL_UNREAD_BYTES = 128 * 1024
"""Of a host's journal so much may wait in our memory, which is times the number of hosts."""


class CalledAhead:
    """The `Transport` of a host that is called at once, on a thread of its own. Whatever goes wrong with the call is told to
    whoever connects first; from then on this is the transport that was opened."""

    def __init__(
        self,
        host: str,
        open_transport: Callable[[], Transport],
        *,
        workdir: str,
        agent_python: str | None,
        python: str | None,
    ) -> None:
        self.host = host
        self._open = open_transport
        self._workdir = workdir
        self._argv = stub_command(agent_python, python)
        self._lock = threading.Lock()
        self._transport: Transport | None = None
        self._waiting: Process | None = None
        self._failure: Exception | None = None
        self._closed = False
        self._heard = False
        self._call = threading.Thread(target=self._call_host, name=f"calling {host}", daemon=True)
        self._call.start()

    def connect(self) -> None:
        """See `base.Transport.connect`."""
        self._call.join()
        if not self._heard:
            self._heard = True
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
        self._opened().connect()

    def take_waiting(self) -> Process | None:
        """Our program on the host, which has its source and takes a request (see `prelude`): once, if it is there."""
        waiting, self._waiting = self._waiting, None
        return waiting

    def spawn(self, argv: Sequence[str], *, unread_bytes: int | None = None) -> Process:
        """See `base.Transport.spawn`."""
        return self._opened().spawn(argv, unread_bytes=unread_bytes)

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float | None = None) -> Completed:
        """See `base.Transport.run`."""
        return self._opened().run(argv, stdin=stdin, timeout_s=timeout_s)

    def close(self) -> None:
        """Close the connection; a call that is under way gives up."""
        with self._lock:
            self._closed = True
            transport = self._transport
        if transport is not None:
            transport.close()

    def join(self, timeout_s: float) -> None:
        """Wait for the call to end, as it does when it came to something, and soon after the transport was closed."""
        self._call.join(timeout_s)

    def _opened(self) -> Transport:
        with self._lock:
            if self._closed:
                raise HostUnreachable(self.host, "the connection was closed", step="connect")
            if self._transport is None:
                self._transport = self._open()
            return self._transport

    def _call_host(self) -> None:
        try:
            transport = self._opened()
            transport.connect()
            # What goes wrong here will go wrong again for who launches, and is told then.
            with suppress(HostError, BrokenPipeError, TimeoutError):
                process = transport.spawn(self._argv, unread_bytes=JOURNAL_UNREAD_BYTES)
                process.write(prelude(self._workdir), WRITE_TIMEOUT_S)
                self._waiting = process
        except Exception as error:  # noqa: BLE001 - the thread's boundary: whoever connects raises it
            self._failure = error


def prelude(workdir: str) -> bytes:
    """What the stub is sent ahead of the request: its source, and which agent to get ready, if it is there already."""
    stub = stub_source()
    ready = json.dumps({"workdir": workdir, "agent": agent_bundle()[0]}).encode("ascii")
    return b"%d\n%b%b\n" % (len(stub), stub, ready)
