"""A TCP link between a laptop and a host that a test can freeze: bytes stop, nothing is closed, no RST is sent."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from types import TracebackType

from tests.support.sshd import Sshd


class Proxy:
    """Listens on a port of its own and forwards to a host's sshd."""

    def __init__(self, host: Sshd) -> None:
        self._target = (host.address, host.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address, self.port = self._listener.getsockname()[:2]
        self._running = threading.Event()
        self._running.set()
        self._over = False
        self._sockets: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def freeze(self) -> None:
        """From now on no byte passes, in either direction; new connections are accepted and hear nothing."""
        self._running.clear()

    def thaw(self) -> None:
        """Bytes pass again, those that waited first."""
        self._running.set()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        self._running.set()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(self._target)
                except OSError:
                    near.close()
                    continue
                self._sockets += [near, far]
                threading.Thread(target=self._forward, args=(near, far), daemon=True).start()

    def _forward(self, near: socket.socket, far: socket.socket) -> None:
        with selectors.DefaultSelector() as selector, contextlib.suppress(OSError, ValueError, KeyError):
            selector.register(near, selectors.EVENT_READ, far)
            selector.register(far, selectors.EVENT_READ, near)
            while not self._over:
                for key, _ in selector.select(0.2):
                    self._running.wait()
                    assert isinstance(key.fileobj, socket.socket)
                    data = key.fileobj.recv(1 << 16)
                    if not data:
                        near.close()
                        far.close()
                        return
                    key.data.sendall(data)
