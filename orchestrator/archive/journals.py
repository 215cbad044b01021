"""Reading the results of a run back: from the journals of an open one, from `results.jsonl` of a committed one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from orchestrator.archive import files
from orchestrator.archive.document import RunDocument
from orchestrator.archive.faults import reading
from orchestrator.archive.paths import RunFolder
from orchestrator.errors import ArchiveError
from orchestrator.events import BadLine, Fold, parse_measurement
from orchestrator.events.journal import Event, JournalLines
from orchestrator.events.state import Key
from orchestrator.model import Measurement

CHUNK_BYTES = 1 << 20


def fold_run(
    folder: RunFolder, document: RunDocument, listener: Callable[[str, Event], None] | None = None
) -> Fold:
    """Fold every journal that a run's folder holds, in the order in which their bytes came in: where two hosts
    measured the same, the one that was first stays the result. `listener` hears every event."""
    labels = {case.id: case.label for case in document.plan.cases}
    fold = Fold(placement=document.placement, labels=labels, run_id=document.run_id, listener=listener)
    with ExitStack() as stack:
        journals: dict[str, tuple[str, BinaryIO]] = {}
        for host in folder.host_names(tuple(document.hosts)):
            path = folder.events(host)
            journals[path.parent.name] = (host, stack.enter_context(_journal(path)))
        for name, size in _arrivals(folder):
            if name in journals:
                with reading(folder.events(journals[name][0])):
                    _feed(fold, *journals[name], size)
        for host, journal in journals.values():
            with reading(folder.events(host)):
                _feed(fold, host, journal, None)
    return fold


def _journal(path: Path) -> BinaryIO:
    with reading(path, absent=False):
        return files.open_plain(path)


def _arrivals(folder: RunFolder) -> Iterator[tuple[str, int]]:
    try:
        lines = folder.arrivals.read_text(encoding="ascii", errors="replace").split("\n")
    except OSError:
        return  # without it, the journals are taken in the order of their hosts' names
    for line in lines:
        name, _, size = line.partition(" ")
        if size.isdecimal():
            yield name, int(size)


def _feed(fold: Fold, host: str, journal: BinaryIO, size: int | None) -> None:
    """Feed `size` bytes, or all that is left."""
    while size is None or size > 0:
        chunk = journal.read(CHUNK_BYTES if size is None else min(size, CHUNK_BYTES))
        if not chunk:
            return
        fold.feed(host, chunk)
        size = None if size is None else size - len(chunk)


def read_measurements(folder: RunFolder, fold: Fold, document: RunDocument) -> Iterator[Measurement]:
    """The measurements of a fold, read again from the journals in `folder`, in the order of the plan."""
    with ExitStack() as stack:
        journals: dict[str, BinaryIO] = {}

        def source(host: str, offset: int, length: int) -> bytes:
            if host not in journals:
                journals[host] = stack.enter_context(_journal(folder.events(host)))
            with reading(folder.events(host)):
                journals[host].seek(offset)
                return journals[host].read(length)

        try:
            yield from fold.read(source, sorted(fold.entries, key=_plan_order(fold, document)))
        except BadLine as error:
            raise ArchiveError(f"{folder.path}: {error}") from None


def read_results(folder: RunFolder) -> Iterator[Measurement]:
    """The lines of `results.jsonl`. Raises `ArchiveError` at a damaged one, naming it, and where there is none."""
    path = folder.results_jsonl
    try:
        results = files.open_plain(path)
    except OSError as error:
        raise ArchiveError(f"{path}: cannot be read: {error.strerror}") from None
    number = 0
    lines = JournalLines()
    with results:
        while chunk := results.read(CHUNK_BYTES):
            for _, line in lines.feed(chunk):
                number += 1
                if line is not None and not line.strip():
                    continue
                try:
                    yield parse_measurement(json.loads(line or b"null"))
                except (BadLine, ValueError, TypeError, RecursionError) as error:
                    raise ArchiveError(f"{path}:{number}: is damaged: {error}") from None
    if lines.torn:
        raise ArchiveError(f"{path}:{number + 1}: is damaged: the last line is torn")


def _plan_order(fold: Fold, document: RunDocument) -> Callable[[Key], tuple[int, int, str]]:
    plan = document.plan
    cases = {case.id: number for number, case in enumerate(plan.cases)}
    backends = {backend: number for number, backend in enumerate(plan.backends)}

    def order(key: Key) -> tuple[int, int, str]:
        return (
            cases.get(key.case_id, len(cases)),
            backends.get(key.backend, len(backends)),
            fold.entries[key].host,
        )

    return order
