"""Several processes that measure one thing together: the ranks of a collective.

Every rank runs the same program and must make the same calls in the same order, or the others wait for good. So

- what follows from a rank's own clock or memory (how many calls, whether it is enough) is decided by rank 0 and told to
  the others (`decide`);
- a step that may fail is taken by all (`together`): if it fails on one rank, it fails on each, at the same place;
- only what rank 0 measures counts.

Ranks find each other as under torchrun (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), and speak through
torch's TCPStore, beside the collective that is measured. A process on its own is a gang of one, for which all of this
costs nothing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from typing import Any, Callable, Dict, List, Mapping, Optional, TypeVar

T = TypeVar("T")

# The agent's time limits are the ones that count; these only end processes that nobody watches.
PATIENCE = timedelta(hours=2)
ALONE = timedelta(seconds=30)
LOOK = timedelta(seconds=1)
EXIT_ALONE = 70  # EX_SOFTWARE

_GONE = "gone"


class PeerFailed(Exception):
    """A step failed on another rank; the message says which and why."""


class Gang:
    """This process as rank `rank` of `size`."""

    def __init__(
        self, rank: int = 0, size: int = 1, local_rank: int = 0, address: str = "", port: int = 0
    ) -> None:
        self.rank = rank
        self.size = size
        self.local_rank = local_rank
        self._address = address
        self._port = port
        self._hosts_store = rank == 0
        self._connection: Any = None
        self._group_backend: Optional[str] = None
        self._exchanges = 0
        self._decisions: List[str] = []
        self._decided = 0

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "Gang":
        """What the environment says; a gang of one without WORLD_SIZE. Raises ValueError for half of a description."""
        size = int(environ.get("WORLD_SIZE") or 1)
        if size == 1:
            return cls()
        missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not environ.get(name)]
        if missing:
            raise ValueError("WORLD_SIZE is {}, but {} is not set".format(size, " and ".join(missing)))
        rank = int(environ["RANK"])
        local = int(environ.get("LOCAL_RANK") or rank)
        gang = cls(rank, size, local, environ["MASTER_ADDR"], int(environ["MASTER_PORT"]))
        # torchrun serves the store itself, from the process that starts the ranks.
        gang._hosts_store = rank == 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        return gang

    @property
    def is_lead(self) -> bool:
        """Whether this is rank 0, whose measurement counts."""
        return self.rank == 0

    def decide(self, value: T) -> T:
        """Rank 0's value, on every rank. JSON values only (a tuple comes back as a list elsewhere)."""
        if self.size == 1:
            return value
        key = "d/{}/{}".format(self._exchanges, self._decided)
        self._decided += 1
        if self.is_lead:
            self._store.set(key, json.dumps(value))
            self._decisions.append(key)
            return value
        while True:
            try:
                self._store.wait([key], LOOK)
                break
            except RuntimeError:  # not yet; but will it come?
                if self._store.check([self._key(0)]):
                    self._exchange(None, PATIENCE)
                    raise PeerFailed("rank 0 went on without this rank") from None
        found: T = json.loads(self._store.get(key).decode("utf-8"))
        return found

    def together(self, work: Callable[[], T]) -> T:
        """Do `work` on every rank. Raises what it raised here, or `PeerFailed` when it only failed elsewhere.

        A library or a payload that calls `sys.exit` ends its own work, and not this process: RuntimeError."""
        if self.size == 1:
            return _kept_alive(work)
        try:
            result = _kept_alive(work)
        except PeerFailed:
            raise  # all ranks know already
        except Exception as error:
            self._fail(error)
            raise
        self._exchange(None, PATIENCE)
        return result

    def every(self, value: Any) -> List[Any]:
        """Each rank's value, by rank. JSON values only."""
        return [value] if self.size == 1 else self._exchange(value, PATIENCE)

    def first_objection(self, objection: Optional[str]) -> Optional[str]:
        """An objection of any rank, its own first on rank 0; None when no rank has one."""
        for rank, text in enumerate(self.every(objection)):
            if text is not None:
                return str(text) if rank == 0 else "rank {}: {}".format(rank, text)
        return None

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self.every(None)

    def process_group(self, backend: str) -> Any:
        """torch.distributed, initialised once a process with `backend` ("gloo", or "cpu:gloo,cuda:nccl")."""
        import torch.distributed as dist

        if self._group_backend is None:
            # Ranks of a gang share a host: a name that does not resolve to it must not be needed.
            if self._address in ("127.0.0.1", "localhost") and os.path.isdir("/sys/class/net/lo"):
                os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
            store = dist.PrefixStore("group", self._store)
            dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size)
            self._group_backend = backend
        elif self._group_backend != backend:
            raise RuntimeError(
                "the process group is {}, and cannot be {}".format(self._group_backend, backend)
            )
        return dist

    def close(self) -> None:
        """Leave the process group, if there is one."""
        if self._group_backend is not None:
            import torch.distributed as dist

            self._group_backend = None
            dist.destroy_process_group()

    @property
    def _store(self) -> Any:
        if self._connection is None:
            import torch.distributed as dist

            store = dist.TCPStore(
                self._address,
                self._port,
                self.size,
                self._hosts_store,
                timeout=PATIENCE,
                wait_for_workers=False,
            )
            self._connection = dist.PrefixStore("farbench", store)
        return self._connection

    def _key(self, rank: int, exchange: Optional[int] = None) -> str:
        return "x/{}/{}".format(self._exchanges if exchange is None else exchange, rank)

    def _exchange(self, value: Any, patience: timedelta) -> List[Any]:
        """Every rank's value. Raises `PeerFailed` where a rank says that it failed."""
        said = self._say({"value": value}, patience)
        for rank, message in enumerate(said):
            if "failed" in message:
                raise PeerFailed("rank {}: {}".format(rank, message["failed"]))
        return [message["value"] for message in said]

    def _fail(self, error: Exception) -> None:
        text = "{}: {}".format(type(error).__name__, str(error).strip().split("\n")[0])
        try:
            said = self._say({"failed": text}, ALONE)
        except RuntimeError:
            # The others are in a collective that this rank did not join: nothing but our end gets them out.
            self._store.set(_GONE, str(self.rank))
            self._leave("rank {} failed alone: {}".format(self.rank, text))
        for rank, message in enumerate(said):
            if rank != self.rank and "failed" in message:
                print("farbench: rank {} failed too: {}".format(rank, message["failed"]), file=sys.stderr)

    def _leave(self, why: str) -> None:
        print("farbench: " + why, file=sys.stderr, flush=True)
        os._exit(EXIT_ALONE)

    def _wait(self, keys: List[str], patience: timedelta) -> None:
        """Until all of `keys` are there. Ends the process if a rank has left; raises RuntimeError after `patience`."""
        deadline = time.monotonic() + patience.total_seconds()
        while True:
            try:
                self._store.wait(keys, min(LOOK, patience))
                return
            except RuntimeError:  # not yet
                if self._store.check([_GONE]):
                    left = self._store.get(_GONE).decode("ascii")
                    self._leave("rank {} has left, and nothing can go on without it".format(left))
                if time.monotonic() >= deadline:
                    raise

    def _say(self, message: Dict[str, Any], patience: timedelta) -> List[Dict[str, Any]]:
        store, number = self._store, self._exchanges
        store.set(self._key(self.rank), json.dumps(message))
        keys = [self._key(rank) for rank in range(self.size)]
        self._wait(keys, patience)
        said = [json.loads(store.get(key).decode("utf-8")) for key in keys]
        self._exchanges, self._decided = number + 1, 0
        # Whoever has spoken now has read all that was said before.
        for key in self._decisions + ([self._key(self.rank, number - 1)] if number else []):
            store.delete_key(key)
        self._decisions = []
        return said


def _kept_alive(work: Callable[[], T]) -> T:
    try:
        return work()
    except SystemExit as error:
        raise RuntimeError("it called sys.exit({!r})".format(error.code)) from error


SOLO = Gang()
"""A process on its own."""
