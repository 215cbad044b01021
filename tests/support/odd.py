"""A server of our own that lets everybody in and ends each command in its own way."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import paramiko

End = Callable[[paramiko.Transport], bool]
"""What to do when a command is asked for; whether to say that it was taken."""


class OddServer:
    """Serves one connection after another on `port` until `close`."""

    def __init__(self, host_key: Path, end: End) -> None:
        self._key = paramiko.Ed25519Key.from_private_key_file(str(host_key))
        self._end = end
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sessions: list[paramiko.Transport] = []
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self) -> OddServer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening and end every connection."""
        self._listener.close()
        for session in self._sessions:
            session.close()

    def _serve(self) -> None:
        with suppress(OSError, EOFError, paramiko.SSHException):
            while True:
                connection, _ = self._listener.accept()
                session = paramiko.Transport(connection)
                self._sessions.append(session)
                session.add_server_key(self._key)
                session.start_server(event=threading.Event(), server=_Login(session, self._end))


class _Login(paramiko.ServerInterface):
    def __init__(self, session: paramiko.Transport, end: End) -> None:
        self._session = session
        self._end = end

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.common.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.common.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        return self._end(self._session)
