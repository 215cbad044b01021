"""A TCP proxy in front of a host, for links that are slow, that stall, and that break; it counts what goes over it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

ADDRESS = "127.0.0.1"


@dataclass
class Counts:
    """What went over a link. A flight is what a side sends after it heard something: the round trips of a dialogue in
    which nobody sends ahead."""

    connections: int = 0
    flights: int = 0
    sent: int = 0
    received: int = 0
    moments: list[tuple[float, str, int]] = field(default_factory=list)
    """(monotonic seconds, "→" or "←" as the client sees it, bytes)."""


class SlowLink:
    """Listens on `port` and hands on to `target`, `one_way_s` later. Runs in a thread until `close`."""

    def __init__(self, target: tuple[str, int], *, one_way_s: float = 0.0) -> None:
        self.counts = Counts()
        self.one_way_s = one_way_s
        self._target = target
        self._heard = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._stalled = threading.Event()
        self.mutate: Callable[[int, bytes], bytes] = lambda offset, data: data
        """What becomes of bytes of the host, given how many came before them on the connection."""
        self._stall_after: Callable[[Counts], bool] = lambda counts: False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="slow link", daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(30)
        self.port: int = self._server.sockets[0].getsockname()[1]

    def __enter__(self) -> SlowLink:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening and break every connection."""

        async def stop() -> None:
            self._server.close()
            self._break()
            serving = asyncio.all_tasks() - {asyncio.current_task()}
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    def reset(self) -> None:
        """Count from zero."""
        self.counts = Counts()
        self._heard = False

    def break_connections(self) -> None:
        """End them, as a router that restarts does."""
        self._loop.call_soon_threadsafe(self._break)

    def stall(self, yes: bool = True) -> None:
        """Hold everything back, in both directions, until told otherwise; nobody is told."""
        (self._stalled.set if yes else self._stalled.clear)()

    def stall_after(self, condition: Callable[[Counts], bool]) -> None:
        """Stall once `condition` holds for what went over the link so far."""
        self._stall_after = condition

    def _break(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, ADDRESS, 0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counts.connections += 1
        # Connecting takes a round trip too: a SYN, and its answer.
        await asyncio.sleep(2 * self.one_way_s)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        try:
            await asyncio.gather(
                self._carry(reader, far_writer, outward=True), self._carry(far_reader, writer, outward=False)
            )
        except OSError:
            pass
        finally:
            self._writers -= {writer, far_writer}
            for end in (writer, far_writer):
                end.transport.abort()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, outward: bool
    ) -> None:
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        delivering = asyncio.ensure_future(self._deliver(on_the_way, writer, outward=outward))
        try:
            while data := await reader.read(1 << 16):
                if outward:
                    self._count_out(data)
                await on_the_way.put((time.monotonic() + self.one_way_s, data))
            await on_the_way.put((time.monotonic() + self.one_way_s, b""))
            await delivering
        finally:
            delivering.cancel()

    async def _deliver(
        self, on_the_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter, *, outward: bool
    ) -> None:
        offset = 0
        while True:
            due, data = await on_the_way.get()
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if self._stall_after(self.counts):
                self._stalled.set()
            while self._stalled.is_set():
                await asyncio.sleep(0.02)
            if not data:
                with suppress(OSError):
                    writer.write_eof()
                return
            if not outward:
                self._heard = True
                self.counts.received += len(data)
                self.counts.moments.append((time.monotonic(), "←", len(data)))
                offset, data = offset + len(data), self.mutate(offset, data)
            writer.write(data)
            await writer.drain()

    def _count_out(self, data: bytes) -> None:
        if self._heard or not self.counts.flights:
            self.counts.flights += 1
            self._heard = False
        self.counts.sent += len(data)
        self.counts.moments.append((time.monotonic(), "→", len(data)))
