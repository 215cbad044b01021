"""The logs of a run, wherever they are: in the archive once they were pulled, else on its hosts."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.archive import RunFolder
from orchestrator.errors import ArchiveError, HostError, HostUnreachable
from orchestrator.inventory import HostSpec
from orchestrator.launch.dialogue import Dialogue
from orchestrator.launch.logs import stream_logs
from orchestrator.run import launchfile
from orchestrator.run.hostrun import NO_SUCH_RUN
from orchestrator.transport.base import Transport

AGENT = "agent"
AGAIN_AFTER_S = 2.0
_READ_BYTES = 256 * 1024
_LOOKED_BACK = 4 * 1024 * 1024


@dataclass(frozen=True)
class Wanted:
    """Which logs, and how much of each; see `launch.logs.stream_logs`."""

    hosts: tuple[str, ...] = ()
    worker: str | None = None
    tail: int | None = None
    follow: bool = False


@dataclass(frozen=True)
class Printed:
    """Something that a worker printed."""

    host: str
    worker: str
    data: bytes


def logs_of(
    folder: RunFolder,
    wanted: Wanted,
    *,
    open_transport: Callable[[HostSpec], Transport],
    tell: Callable[[str], None],
) -> Iterator[Printed]:
    """What the workers of a run printed, host after host, or with `follow` as it comes.

    `tell` hears of hosts that cannot be asked. The agent's own log is only given by name. Raises `ArchiveError` for a
    host that has no part in the run, and when there is nothing to read and nobody to ask."""
    specs = _specs(folder, wanted)
    if wanted.follow and not folder.is_committed:
        yield from _side_by_side(folder.run_id, specs, wanted, open_transport, tell)
        return
    for name, spec in specs.items():
        if _is_pulled(folder, name) and folder.is_committed:
            yield from _archived(folder, name, wanted)
            continue
        if spec is None:
            raise ArchiveError(
                f"the logs of {name} were never pulled, and this run does not say how to reach it"
            )
        try:
            for worker, data in stream_logs(
                Dialogue(open_transport(spec), spec), folder.run_id, worker=wanted.worker, tail=wanted.tail
            ):
                if worker != AGENT or wanted.worker == AGENT:
                    yield Printed(name, worker, data)
        except HostError as error:
            tell(str(error))
            yield from _archived(folder, name, wanted)


def _specs(folder: RunFolder, wanted: Wanted) -> Mapping[str, HostSpec | None]:
    """How to reach the hosts that are asked for; None where only the archive can tell."""
    known: dict[str, HostSpec | None] = dict.fromkeys(_pulled_hosts(folder))
    try:
        known |= launchfile.read(folder.path).hosts
    except ArchiveError:
        if not known:
            raise
    for name in wanted.hosts:
        if name not in known:
            raise ArchiveError(f"run {folder.run_id} has no host {name!r}; it has: {', '.join(known)}")
    return {name: spec for name, spec in known.items() if not wanted.hosts or name in wanted.hosts}


def _pulled_hosts(folder: RunFolder) -> list[str]:
    logs = folder.path / "logs"
    return sorted(entry.name for entry in logs.iterdir()) if logs.is_dir() else []


def _is_pulled(folder: RunFolder, host: str) -> bool:
    return folder.logs(host).is_dir()


def _archived(folder: RunFolder, host: str, wanted: Wanted) -> Iterator[Printed]:
    for path in sorted(folder.logs(host).glob("*.log")):
        if path.stem == (wanted.worker or path.stem) and (path.stem != AGENT or wanted.worker == AGENT):
            with path.open("rb") as log:
                log.seek(_start(path, wanted.tail))
                while data := log.read(_READ_BYTES):
                    yield Printed(host, path.stem, data)


def _start(path: Path, tail: int | None) -> int:
    """Where the last `tail` lines begin (of very long ones: the last 4 MiB)."""
    if tail is None:
        return 0
    size = path.stat().st_size
    first = max(0, size - _LOOKED_BACK)
    with path.open("rb") as log:
        log.seek(first)
        data = log.read()
    end = len(data) - data.endswith(b"\n")
    for _ in range(tail):
        end = data.rfind(b"\n", 0, end) if end >= 0 else -1
    return first + end + 1 if tail else size


def _side_by_side(
    run_id: str,
    specs: Mapping[str, HostSpec | None],
    wanted: Wanted,
    open_transport: Callable[[HostSpec], Transport],
    tell: Callable[[str], None],
) -> Iterator[Printed]:
    printed: queue.Queue[Printed | str | None] = queue.Queue(64)

    def follow(spec: HostSpec) -> None:
        tail = wanted.tail
        try:
            while True:
                try:
                    asked = stream_logs(
                        Dialogue(open_transport(spec), spec),
                        run_id,
                        worker=wanted.worker,
                        tail=tail,
                        follow=True,
                    )
                    for worker, data in asked:
                        if worker != AGENT or wanted.worker == AGENT:
                            printed.put(Printed(spec.name, worker, data))
                    return
                except HostUnreachable as error:
                    printed.put(f"reconnecting; what is printed meanwhile is only in the whole log: {error}")
                    tail = 0
                    time.sleep(AGAIN_AFTER_S)
        except HostError as error:
            if error.step != NO_SUCH_RUN:
                printed.put(str(error))
        finally:
            printed.put(None)

    asked = [spec for spec in specs.values() if spec is not None]
    for spec in asked:
        threading.Thread(target=follow, args=(spec,), name=f"logs-{spec.name}", daemon=True).start()
    left = len(asked)
    while left:
        item = printed.get()
        if item is None:
            left -= 1
        elif isinstance(item, str):
            tell(item)
        else:
            yield item
