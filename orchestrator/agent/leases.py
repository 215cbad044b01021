"""Who may use which device: leases between all runs, controllers and users of a host.

GPUs are leased host-wide, in a folder that all users share; CPU slots within a workdir, per host. A lease is a lock
file (`lockfiles`), so it ends with its holder's death at the latest.

The protocol:

1. A claim takes all of its devices or none, without waiting, in the order of their lock names. A holder never waits
   for more while it holds, so no cycle of waiting can arise among claims.
2. Several devices are seldom free at the same moment by chance. Whoever wants a gang and does not get it leaves a
   *ticket*: a file that lists the devices, named by the host's monotonic clock, and locked as long as it counts.
3. Every claim first looks at the tickets. Where an older live ticket lists one of its devices, it gives up. A claim
   without a ticket is younger than every ticket. So from the moment `reserve` returns, no claim that begins later
   can overtake; claims that had begun may still succeed, once.
4. Tickets are totally ordered by name, and holding one never holds a device. The oldest waits only for leases that
   exist, the next for it, and so on: two gangs cannot wait for each other.
5. A ticket whose owner has not asked for `TICKET_STALE_S` counts no longer (until it asks again): a stopped process
   must not keep idle devices from others.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import re
import secrets
import socket
import time
from typing import (
    Any,
    Container,
    Dict,
    Hashable,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

from . import lockfiles, procs
from .lockfiles import LeaseError

__all__ = ["GPU_DIR", "TICKET_STALE_S", "Lease", "LeaseError", "Leases"]

GPU_DIR = "/tmp/farbench-leases"  # noqa: S108 - shared by all users on purpose; see lockfiles for the defences
TICKET_STALE_S = 120.0

_TICKET = re.compile(r"ticket-\d{20}-\d+-[0-9a-f]{8}")
_NEW_TICKET = ".new-"


class Lease:
    """Devices that are ours until `release`, or the end of the `with` block, or our death."""

    def __init__(self, uuids: Sequence[str], descriptors: List[int]) -> None:
        self.uuids = tuple(uuids)
        self._descriptors = descriptors

    def release(self) -> None:
        """Let go; safe to call twice."""
        while self._descriptors:
            descriptor = self._descriptors.pop()
            lockfiles.clear(descriptor)
            lockfiles.unlock_and_close(descriptor)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class _Place(NamedTuple):
    """Where leases of one kind live."""

    path: str
    folder_mode: int
    file_mode: int


class _Ticket(NamedTuple):
    place: _Place
    name: str
    descriptor: int
    locks: Tuple[str, ...]


class Leases:
    """One process's way to leases. `holder` (a run id, or more facts) is written down for those who wait.

    Not for several threads at once. Every method can raise `LeaseError`."""

    def __init__(
        self, workdir: str, gpu_dir: Optional[str] = None, holder: Union[str, Mapping[str, Any]] = ""
    ) -> None:
        self._gpu = _Place(os.path.abspath(gpu_dir or GPU_DIR), 0o1777, 0o666)
        self._cpu = _Place(os.path.join(os.path.abspath(workdir), "leases"), 0o700, 0o600)
        self._holder = {"run_id": holder} if isinstance(holder, str) else dict(holder)
        self._tickets: Dict[Hashable, _Ticket] = {}  # by gang

    def try_claim(self, uuids: Iterable[str], kinds: Optional[Sequence[str]] = None) -> Optional[Lease]:
        """All of these devices, or None; never waits (beyond a few milliseconds for somebody's look at a lock).

        `kinds` ("gpu" or "cpu") goes with `uuids`; left out, it is known by the name. A claim of exactly what was
        reserved is the gang's own, and takes its ticket back when it succeeds."""
        wanted = self._locks(uuids, kinds)
        locks = {lock for _, lock, _ in wanted}
        own = min(
            ((t.name, gang) for gang, t in self._tickets.items() if locks == set(t.locks)), default=None
        )
        descriptors: List[int] = []
        with contextlib.ExitStack() as stack:
            folders = {
                place: stack.enter_context(lockfiles.folder(place.path, place.folder_mode))
                for place, _, _ in wanted
            }
            # Tickets of our other gangs count as anybody's do.
            before = own[0] if own is not None else None
            if any(self._ticket_before(folders[place], before, locks) for place in folders):
                return None
            try:
                for place, lock, _ in wanted:
                    descriptor = _take(folders[place], lock, place.file_mode)
                    if descriptor is None:
                        return None
                    descriptors.append(descriptor)
                if own is not None:
                    self.unreserve(own[1])
                lease, descriptors = Lease([uuid for _, _, uuid in wanted], descriptors), []
            finally:
                for descriptor in descriptors:
                    lockfiles.unlock_and_close(descriptor)
        facts = self._facts()
        for descriptor in lease._descriptors:
            lockfiles.write(descriptor, facts)
        return lease

    def reserve(
        self, uuids: Iterable[str], kinds: Optional[Sequence[str]] = None, gang: Hashable = None
    ) -> None:
        """Leave a ticket for a gang: from now on nobody younger gets one of these devices before us.

        Again for the same devices keeps the place in the line; for others it begins anew. Each of a process's gangs,
        which `gang` tells apart, has one ticket."""
        wanted = self._locks(uuids, kinds)
        locks = tuple(lock for _, lock, _ in wanted)
        ticket = self._tickets.get(gang)
        if ticket is not None and ticket.locks == locks:
            with contextlib.suppress(OSError):
                os.utime(ticket.descriptor)
            return
        self.unreserve(gang)
        place = wanted[0][0]
        if any(other != place for other, _, _ in wanted):
            raise ValueError("a gang is of GPUs or of CPU slots, not of both")
        name = f"ticket-{time.monotonic_ns():020d}-{os.getpid()}-{secrets.token_hex(4)}"
        with lockfiles.folder(place.path, place.folder_mode) as directory:
            # It appears by rename once it is locked: a ticket that is not locked is a dead one.
            descriptor = lockfiles.create_file(directory, _NEW_TICKET + name, place.file_mode)
            lockfiles.lock(descriptor)
            lockfiles.write(descriptor, {**self._facts(), "locks": locks})
            os.rename(_NEW_TICKET + name, name, src_dir_fd=directory, dst_dir_fd=directory)
        self._tickets[gang] = _Ticket(place, name, descriptor, locks)

    def unreserve(self, gang: Hashable = None) -> None:
        """Take a gang's ticket back, if there is one."""
        ticket = self._tickets.pop(gang, None)
        if ticket is None:
            return
        with contextlib.suppress(LeaseError), lockfiles.folder(
            ticket.place.path, ticket.place.folder_mode
        ) as directory, contextlib.suppress(OSError):
            os.unlink(ticket.name, dir_fd=directory)
        lockfiles.unlock_and_close(ticket.descriptor)

    def holder_of(self, uuid: str, kind: Optional[str] = None) -> Optional[Dict[str, Any]]:
        """Who has the device: {"run_id", "user", "pid", "start_time", "boot_id", "since", "reserved"}; None if it is free.

        `reserved` is True for one who only waits for it with a ticket. Each fact may be None: it is what the holder
        wrote, bounded and made printable, but not to be trusted."""
        ((place, lock, _),) = self._locks([uuid], None if kind is None else [kind])
        with lockfiles.folder(place.path, place.folder_mode) as directory:
            descriptor = lockfiles.open_to_read(directory, lock)
            if descriptor is not None:
                try:
                    if not lockfiles.lock(descriptor, shared=True):
                        return {**_printable(lockfiles.read(descriptor)), "reserved": False}
                finally:
                    lockfiles.unlock_and_close(descriptor)
            ours = {ticket.name for ticket in self._tickets.values()}
            facts = self._ticket_before(directory, None, {lock}, ours)
            return None if facts is None else {**_printable(facts), "reserved": True}

    def _locks(self, uuids: Iterable[str], kinds: Optional[Sequence[str]]) -> List[Tuple[_Place, str, str]]:
        """(place, lock's file name, UUID) in the order in which every claimant takes them."""
        names = list(uuids)
        if not names or len(set(names)) != len(names):
            raise ValueError(f"a claim names each device once: {names}")
        kinds = kinds or ["cpu" if name.startswith("cpu-") else "gpu" for name in names]
        found = []
        for uuid, kind in zip(names, kinds):
            # Several hosts may share one workdir over the network: each has slots of its own.
            stem = f"{socket.gethostname()}-{uuid}" if kind == "cpu" else uuid
            found.append((self._cpu if kind == "cpu" else self._gpu, f"{_file_stem(stem)}.lock", uuid))
        return sorted(found)

    def _facts(self) -> Dict[str, Any]:
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return {**self._holder, **procs.identity(), "user": user(), "since": since}

    def _ticket_before(
        self, directory: int, own: Optional[str], locks: Iterable[str], but: Container[str] = ()
    ) -> Optional[Dict[str, Any]]:
        """What the oldest live ticket says that lists one of `locks` and is older than `own` (None: any), `but` for these."""
        for name in sorted(os.listdir(directory)):
            is_ticket = _TICKET.fullmatch(name) is not None
            if not is_ticket and not name.startswith(_NEW_TICKET):
                continue
            if name == own or name in but:
                continue
            descriptor = lockfiles.open_to_read(directory, name)
            if descriptor is None:
                continue
            try:
                age_s = time.time() - os.fstat(descriptor).st_mtime
                if not is_ticket and age_s <= TICKET_STALE_S:
                    continue  # its owner is just about to lock it: keep off
                # Shared, so that those who look at the same time do not take each other for its owner.
                if lockfiles.lock(descriptor, shared=True):
                    with contextlib.suppress(OSError):
                        os.unlink(name, dir_fd=directory)  # its owner died
                    continue
                if not is_ticket or age_s > TICKET_STALE_S or (own is not None and name > own):
                    continue
                facts = lockfiles.read(descriptor)
                listed = facts.get("locks")
                if isinstance(listed, list) and any(lock in listed for lock in locks):
                    return facts
            finally:
                lockfiles.unlock_and_close(descriptor)
        return None


def _take(directory: int, name: str, mode: int) -> Optional[int]:
    """A descriptor of the lock file, locked; None when another one has it."""
    for attempt in range(4):
        if attempt:
            time.sleep(0.003)  # somebody only looks (`holder_of`), or is giving up a claim
        descriptor = lockfiles.open_file(directory, name, mode)
        try:
            if lockfiles.lock(descriptor) and lockfiles.is_at(descriptor, directory, name):
                taken, descriptor = descriptor, -1
                return taken
        finally:
            if descriptor >= 0:
                lockfiles.unlock_and_close(descriptor)
    return None


def _file_stem(name: str) -> str:
    """A file name for any UUID, different for different ones."""
    plain = re.sub(r"[^A-Za-z0-9.-]", "_", name).lstrip(".")[:100]
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def user() -> str:
    """The login name of this process's user; the number where it has none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _printable(facts: Mapping[str, Any]) -> Dict[str, Any]:
    known: Dict[str, Any] = {}
    for key in ("run_id", "user", "boot_id", "since"):
        value = facts.get(key)
        known[key] = "".join(c for c in value if " " <= c <= "~")[:100] if isinstance(value, str) else None
    for key in ("pid", "start_time"):
        value = facts.get(key)
        known[key] = (
            value
            if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value
            else None
        )
    return known
