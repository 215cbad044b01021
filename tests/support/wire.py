"""A host at the other end of a slow or lossy wire: a network namespace, and between it and us `tc netem` or our own packets.

Everything above the wire is real: routes, TCP of two kernels' stacks, retransmissions, an sshd in the namespace.
"""

from __future__ import annotations

import fcntl
import heapq
import itertools
import os
import random
import select
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from tests.support.link import SlowLink
from tests.support.sshd import Sshd

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_PACKET_BYTES = 1 << 16
_NUMBERS = itertools.count(os.getpid() * 8 % 50_000)


@contextmanager
def host_behind_a_wire(
    make_sshd: Callable[..., Sshd], *, one_way_s: float, loss: float, **settings: Any
) -> Iterator[tuple[Sshd, int]]:
    """An sshd and the port where it is reached. `loss` is the share of packets that vanish, in either direction.

    Where we may not make namespaces, a proxy delays, and nothing is lost."""
    if os.geteuid() != 0:
        host = make_sshd(**settings)
        with SlowLink((host.address, host.port), one_way_s=one_way_s) as link:
            host.known_hosts.write_text(f"[{host.address}]:{link.port} {host.host_public_key}\n")
            yield host, link.port
        return
    pumps: list[_Pump] = []

    def connect(name: str, near: str, far: str) -> None:
        if netem_works():
            plug_in(name, near, far)
            return
        pumps.append(_Pump(near, far, one_way_s, loss))
        run("ip", "link", "set", far, "netns", name)

    with far_away(connect) as there:
        try:
            if not pumps:
                netem = ("root", "netem", "delay", f"{one_way_s * 1000:g}ms", "loss", f"{loss:.1%}")
                run("tc", "qdisc", "add", "dev", there.near, *netem)
                run(*there.within, "tc", "qdisc", "add", "dev", there.far, *netem)
            host = make_sshd(address=there.address, within=there.within, port=2222, **settings)
            yield host, host.port
            host.stop()
        finally:
            for pump in pumps:
                pump.close()


@dataclass(frozen=True)
class Far:
    """A network namespace that is reached at `address`. `within` runs a command there; `near` and `far` are the ends
    of the wire."""

    name: str
    near: str
    far: str
    address: str

    @property
    def within(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.name)


def plug_in(name: str, near: str, far: str) -> None:
    """A wire from here into a namespace."""
    run("ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", name)


@contextmanager
def far_away(connect: Callable[[str, str, str], None] = plug_in) -> Iterator[Far]:
    """A namespace with addresses at both ends of what `connect` makes. Only for root."""
    number = next(_NUMBERS)
    net = f"10.{100 + number // 250 % 100}.{number % 250}"
    there = Far(f"fw{number}", f"fwa{number}", f"fwb{number}", f"{net}.2")
    run("ip", "netns", "add", there.name)
    try:
        connect(there.name, there.near, there.far)
        run("ip", "addr", "add", f"{net}.1/30", "dev", there.near)
        run("ip", "link", "set", there.near, "up")
        for words in (
            ["addr", "add", f"{net}.2/30", "dev", there.far],
            ["link", "set", there.far, "up"],
            ["link", "set", "lo", "up"],
        ):
            run("ip", "-n", there.name, *words)
        yield there
    finally:
        run("ip", "netns", "del", there.name)


def run(*command: str) -> None:
    """Run a command that must succeed."""
    subprocess.run(command, check=True)


@cache
def netem_works() -> bool:
    """Whether this kernel has it (a module that small kernels leave out)."""
    script = "ip link set lo up && tc qdisc add dev lo root netem delay 1ms"
    return subprocess.run(["unshare", "--net", "sh", "-c", script], capture_output=True).returncode == 0


class _Pump:
    """Carries packets between two TUN devices, late, and not all of them. One of them may be moved to a namespace."""

    def __init__(self, near: str, far: str, one_way_s: float, loss: float) -> None:
        self._ends = (_tun(near), _tun(far))
        self._one_way_s, self._loss = one_way_s, loss
        self._random = random.Random(0)
        self._wake, self._woken = os.pipe()
        self._thread = threading.Thread(target=self._carry, name="wire", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Cut the wire; the devices go with it."""
        os.close(self._woken)
        self._thread.join(30)
        for end in (*self._ends, self._wake):
            os.close(end)

    def _carry(self) -> None:
        on_the_way: list[tuple[float, int, int, bytes]] = []
        numbers = itertools.count()
        while True:
            left = max(0.0, on_the_way[0][0] - time.monotonic()) if on_the_way else None
            readable, _, _ = select.select([*self._ends, self._wake], [], [], left)
            if self._wake in readable:
                return
            for end in readable:
                packet = os.read(end, _PACKET_BYTES)
                if self._random.random() >= self._loss:
                    other = self._ends[1 - self._ends.index(end)]
                    due = time.monotonic() + self._one_way_s
                    heapq.heappush(on_the_way, (due, next(numbers), other, packet))
            while on_the_way and on_the_way[0][0] <= time.monotonic():
                _, _, end, packet = heapq.heappop(on_the_way)
                try:
                    os.write(end, packet)
                except OSError:  # that end is down: a packet more that is lost
                    continue


def _tun(name: str) -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return descriptor
