"""The embedded host: an SSH server inside the controller, so that a laptop without any set-up takes the very same path.

It listens on 127.0.0.1 only, on a free port, with a host key made for it and one accepted key; both live in memory only.
"""

from __future__ import annotations

import asyncio
import base64
import io
import signal
import subprocess
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

import asyncssh
import paramiko

from orchestrator.transport.known_hosts import Entry, host_pattern

ADDRESS = "127.0.0.1"
START_TIMEOUT_S = 30
_CHUNK_BYTES = 64 * 1024


class EmbeddedServer:
    """Runs in a thread with an event loop of its own, from construction until `close`."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)
        host_key = asyncssh.generate_private_key("ssh-ed25519")
        client_key = asyncssh.generate_private_key("ssh-ed25519")
        self.client_key: paramiko.PKey = paramiko.Ed25519Key.from_private_key(
            io.StringIO(client_key.export_private_key("openssh").decode("ascii"))
        )
        """The only key that it lets in."""
        self._host_key = host_key
        self._accepted = client_key.convert_to_public()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="embedded SSH server", daemon=True
        )
        self._thread.start()
        started: Future[asyncssh.SSHAcceptor] = asyncio.run_coroutine_threadsafe(self._listen(), self._loop)
        self._acceptor = started.result(START_TIMEOUT_S)
        self.port: int = self._acceptor.get_port()

    @property
    def known_host(self) -> Entry:
        """The line of a known_hosts file that would vouch for this server."""
        kind, blob = self._host_key.export_public_key("openssh").decode("ascii").split()[:2]
        return Entry(
            Path("(embedded)"), 0, "", (host_pattern(ADDRESS, self.port),), kind, base64.b64decode(blob)
        )

    def close(self) -> None:
        """Stop listening and end the connections. Processes that detached themselves live on, as on any host."""
        if not self._thread.is_alive():
            return

        async def stop() -> None:
            self._acceptor.close()
            await self._acceptor.wait_closed()
            serving = asyncio.all_tasks() - {asyncio.current_task()}
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)
            await asyncio.sleep(0)  # pipes that were closed say so in the next round

        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(stop(), self._loop).result(START_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_TIMEOUT_S)
        if not self._thread.is_alive():
            self._loop.close()

    async def _listen(self) -> asyncssh.SSHAcceptor:
        return await asyncssh.listen(
            ADDRESS, 0, server_factory=lambda: _Gate(self._accepted), server_host_keys=[self._host_key],
            process_factory=self._serve, encoding=None, allow_scp=False, agent_forwarding=False, compression_algs=None,
        )  # fmt: skip

    async def _serve(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        """Run one command through /bin/sh, as a login shell would; both streams at once, status or signal at the end."""
        if process.command is None:
            process.stderr.write(b"only commands can be run here\n")
            process.exit(1)
            return
        child = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", process.command, env=self._environ, cwd=self._environ.get("HOME") or "/",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        feeding = asyncio.ensure_future(_feed(process, child.stdin))
        try:
            await asyncio.gather(
                _forward(child.stdout, process.stdout), _forward(child.stderr, process.stderr)
            )
            code = await child.wait()
        except (OSError, asyncssh.Error):
            return  # the connection is gone
        finally:
            feeding.cancel()
            # Closes the pipes, whoever else still holds their other ends; asyncio has no public name for it.
            child._transport.close()  # type: ignore[attr-defined]
            await child.wait()
        if code < 0:
            process.channel.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))
        else:
            process.exit(code)


class _Gate(asyncssh.SSHServer):
    def __init__(self, accepted: asyncssh.SSHKey) -> None:
        self._accepted = accepted

    def begin_auth(self, username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return key.public_data == self._accepted.public_data


async def _feed(process: asyncssh.SSHServerProcess[bytes], stdin: asyncio.StreamWriter) -> None:
    with suppress(OSError, asyncssh.Error):
        while data := await process.stdin.read(_CHUNK_BYTES):
            stdin.write(data)
            await stdin.drain()
    stdin.close()


async def _forward(output: asyncio.StreamReader, channel: asyncssh.SSHWriter[bytes]) -> None:
    while data := await output.read(_CHUNK_BYTES):
        channel.write(data)
        await channel.drain()
