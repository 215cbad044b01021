"""Doubtful measurements are made again later in the run, and the better one stands.

A record whose verdict is `suspect` or `invalid` is put aside instead of journalled, and its backend is measured once
more when the cases that wait have had their turn, up to `measure.retries` times. So every measurement still comes to
the journal once. What is put aside waits in a file without a name: there may be tens of thousands, each with its samples.

An `error` of a worker that had served other cases may be the fault of one of those: it may have lowered a limit, closed
descriptors, moved to a folder that is gone. Such a backend is measured once more, at once and in a new worker, and what
comes of that stands. If it is an error again, errors of that kind are the backend's own, and later ones stand at once: a
backend that fails in every case must not cost a worker each time.
"""

from __future__ import annotations

import json
import os
import tempfile
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Set, Tuple

from .queueing import Entry
from .wire import dump

Record = Dict[str, Any]

_DOUBTFUL = ("suspect", "invalid")


class _Place(NamedTuple):
    offset: int
    length: int


class SecondOpinions:
    """Puts records aside in `folder`; what is known of a case is with its `Entry`."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._fd: Optional[int] = None
        self._end = 0
        self._own: Set[Tuple[str, str, str]] = (
            set()
        )  # payload, backend and kind of errors that new workers repeat

    def weigh(self, entry: Entry, asked: str, record: Record, used: bool = False) -> Optional[Record]:
        """What goes to the journal now: this record, a better one of before, or None while another look is due.

        `used`: the worker had served other cases."""
        kind = _kind(entry, asked, record)
        aside = entry.aside.get(asked)
        if asked in entry.tries:
            place = aside.pop(_row(record), None) if aside else None
            if place is None:
                return None  # of several rows, those that were beyond doubt stand already
            if not aside:
                del entry.aside[asked]
            if kind is not None and asked in entry.excused:
                self._own.add(kind)
            entry.excused.discard(asked)
            record = _better(self._read(place), record)
        excused = used and kind is not None and kind not in self._own and asked not in entry.tries
        if not excused and (not _is_doubtful(record) or entry.tries.get(asked, 0) >= _retries(entry)):
            return record
        saved = self._write(record)
        if saved is None:
            return record
        if excused:
            entry.excused.add(asked)
        entry.aside.setdefault(asked, {})[_row(record)] = saved
        return None

    def again(self, entry: Entry) -> bool:
        """Take up what is doubtful of a case that is over: whether it must be measured again, for those backends only.
        Where that needs new workers, `entry.excused` names backends."""
        due = [
            name
            for name in entry.aside
            if entry.tries.get(name, 0) < max(_retries(entry), name in entry.excused)
        ]
        for name in due:
            entry.tries[name] = entry.tries.get(name, 0) + 1
            entry.done.discard(name)
        return bool(due)

    def settle(self, entry: Entry, asked: Optional[str] = None) -> Iterator[Tuple[str, Record]]:
        """(backend, record) of all that is put aside, or of one backend: there will be no better."""
        for name in [asked] if asked is not None else list(entry.aside):
            for place in entry.aside.pop(name, {}).values():
                yield name, self._read(place)

    def _write(self, record: Record) -> Optional[_Place]:
        """None when the disk takes no more: the record then stands as it is."""
        data = dump(record)
        try:
            if self._fd is None:
                self._fd = _nameless(self._folder)
            written = os.pwrite(self._fd, data, self._end)
        except OSError:
            return None
        if written != len(data):
            return None
        self._end += written
        return _Place(self._end - written, written)

    def _read(self, place: _Place) -> Record:
        assert self._fd is not None
        record = json.loads(os.pread(self._fd, place.length, place.offset).decode("ascii"))
        assert isinstance(record, dict)
        return record


def _better(before: Record, after: Record) -> Record:
    """The one that stands; the other is told of in its `extra.other_attempts`."""
    newer = before["status"] == "error" or _rank(after) < _rank(before)
    stands, other = (after, before) if newer else (before, after)
    extra = dict(stands.get("extra") or {})
    told: List[Any] = [*(before.get("extra") or {}).get("other_attempts", ()), _summary(other)]
    return {**stands, "extra": {**extra, "other_attempts": told}}


def _rank(record: Mapping[str, Any]) -> Tuple[int, int, float]:
    """Lower is better. A wrong output is never outvoted by a look at which it happened to be right."""
    if record["status"] == "incorrect":
        return (-1, 0, 0.0)
    if record["status"] != "ok":
        return (3, 0, 0.0)
    verdicts = {"valid": 0, "suspect": 1, "invalid": 2}
    spread = (record.get("timing") or {}).get("rel_error")
    return (
        verdicts.get(str(record.get("verdict")), 2),
        len(record.get("reasons") or ()),
        spread if isinstance(spread, (int, float)) else float("inf"),
    )


def _summary(record: Mapping[str, Any]) -> Dict[str, Any]:
    found = {name: record.get(name) for name in ("attempt", "status", "reason", "verdict", "reasons")}
    return {**found, "median_us": (record.get("timing") or {}).get("median_us")}


def _kind(entry: Entry, asked: str, record: Record) -> Optional[Tuple[str, str, str]]:
    """What tells errors apart, the exception's name in the first place; None for what is no error."""
    if record["status"] != "error":
        return None
    return entry.group.payload, asked, str(record.get("reason")).partition(":")[0]


def _is_doubtful(record: Mapping[str, Any]) -> bool:
    return record["status"] == "ok" and record.get("verdict") in _DOUBTFUL


def _retries(entry: Entry) -> int:
    asked = (entry.item().get("measure") or {}).get("retries")
    return asked if isinstance(asked, int) and not isinstance(asked, bool) and asked > 0 else 0


def _row(record: Mapping[str, Any]) -> str:
    return dump(record.get("row")).decode("ascii")


def _nameless(folder: str) -> int:
    fd, path = tempfile.mkstemp(dir=folder)
    os.unlink(path)
    return fd
