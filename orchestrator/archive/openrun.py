"""A run that may still change: the copies of its journals grow, its document is updated, and then it is committed."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any

from orchestrator.archive import columns, files, lock
from orchestrator.archive.document import RunDocument, read_document, write_document
from orchestrator.archive.faults import reading, writing
from orchestrator.archive.journals import read_measurements
from orchestrator.archive.paths import COMMITTED, RunFolder
from orchestrator.errors import ArchiveError, ArchiveUnreadable
from orchestrator.events import Fold
from orchestrator.events.journal import measurement_line
from orchestrator.model import Measurement

_COMPARED_BYTES = 1 << 20


class OpenRun:
    """An open run of the archive. Anyone may read it; only the holder of its lock may change it.

    Safe for use by several threads (one a host)."""

    def __init__(self, folder: RunFolder, descriptor: int | None = None) -> None:
        self.folder = folder
        self._descriptor = descriptor
        self._writing = threading.RLock()

    def __enter__(self) -> OpenRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.folder.run_id

    @property
    def holds_lock(self) -> bool:
        """Whether this object is the run's coordinator."""
        return self._descriptor is not None

    def lock(self) -> bool:
        """Become the run's coordinator; False when another one is at work. Raises `ArchiveError` if the run moved."""
        with self._writing:
            if self._descriptor is None:
                try:
                    self._descriptor = lock.take(self.folder.lock)
                except FileNotFoundError:
                    raise ArchiveError(f"run {self.run_id} is complete: nothing more can be added") from None
                except OSError as error:
                    raise ArchiveError(
                        f"run {self.run_id} cannot be locked: {self.folder.lock}: {error.strerror}"
                    ) from None
            return self.holds_lock

    def close(self) -> None:
        """Give the lock back; what is on disk stays for whoever attaches next."""
        with self._writing:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def document(self) -> RunDocument:
        """The run's document as it is on disk."""
        return read_document(self.folder.run_json)

    def update_run_document(self, changes: Mapping[str, Any]) -> RunDocument:
        """Replace top-level keys of `run.json`; within `hosts`, `environments` and `plan` only the entries named."""
        with self._writing:
            self._require_lock()
            before = self.document().as_json()
            for key, value in changes.items():
                if key in ("hosts", "environments", "plan") and isinstance(value, Mapping):
                    before[key] = {**before.get(key, {}), **value}
                else:
                    before[key] = value
            document = RunDocument.model_validate(before)
            with writing(self.folder.run_json):
                write_document(self.folder.run_json, document)
            return document

    def journal_size(self, host: str) -> int:
        """Bytes of a host's journal that are here: the offset to follow from."""
        path = self.folder.events(host)
        with reading(path):
            return _size(path)

    def journal_end(self, host: str, most: int) -> bytes:
        """The last bytes of a host's journal that are here, at most so many."""
        path = self.folder.events(host)
        try:
            with reading(path, absent=False), files.open_plain(path) as journal:
                journal.seek(max(0, os.fstat(journal.fileno()).st_size - most))
                return journal.read()
        except FileNotFoundError:
            return b""

    def append_events(self, host: str, offset: int, data: bytes) -> bytes:
        """Add `data`, which begins at byte `offset` of the host's journal, and return the part that was new.

        Bytes that are here already are skipped. Raises `ArchiveError` at a gap, and when the bytes here differ;
        `ArchiveFault` when they cannot be read or written."""
        with self._writing:
            self._require_lock()
            path = self.folder.events(host)
            with writing(path):
                size = _size(path)
            if not size and not self.folder.run_json.exists():
                raise ArchiveUnreadable(
                    f"{self.folder.path} is gone: it was removed or moved, or its disk is not mounted any more; "
                    "put it back, or name its new place by --archive"
                )
            if offset > size:
                raise ArchiveUnreadable(
                    f"{path}: bytes {size} to {offset} of the journal are missing here; follow from {size}"
                )
            known = size - offset
            if known:
                self._require_same(path, offset, data[:known])
                data = data[known:]
            if data:
                with writing(path):
                    files.make_folder(path.parent)
                    files.append(path, data)
                    files.append(self.folder.arrivals, f"{path.parent.name} {len(data)}\n".encode())
            return data

    def save_file(self, host: str, path: str, chunks: Iterable[bytes]) -> Path:
        """Keep a file of the host's run folder, named as the host lists it: `logs/…` or `collected/…`.

        Raises `ArchiveError` for any other name: a host must not choose where we write."""
        with self._writing:
            self._require_lock()
            parts = PurePosixPath(path).parts
            roots = {"logs": self.folder.logs(host), "collected": self.folder.collected(host)}
            if len(parts) < 2 or parts[0] not in roots or ".." in parts or "\0" in path:
                raise ArchiveError(f"{host} offers a file by a name that cannot be kept: {path!r:.200}")
            target = roots[parts[0]].joinpath(*parts[1:])
            with writing(target):
                files.make_folder(target.parent)
                files.write_foreign(target, chunks)
            return target

    def commit(
        self,
        measurements: Iterable[Measurement],
        state: str,
        *,
        ended_at: str,
        changes: Mapping[str, Any] | None = None,
    ) -> RunFolder:
        """Write the results, close the document (with `changes`, as for `update_run_document`) and move the run to
        `runs/`, where it never changes again.

        A kill at any moment leaves the run open (with everything needed to commit it again) or committed whole.
        `state` is `finished`, `cancelled` or `lost`; `ended_at` UTC, ISO 8601."""
        with self._writing:
            self._require_lock()
            goal = RunFolder(self.folder.path.parent.parent / COMMITTED / self.run_id)
            if goal.path.exists():
                raise ArchiveError(f"{goal.path} is there already; it is never overwritten")
            tally = _Tally()
            with writing(self.folder.path):
                files.write_whole(self.folder.results_jsonl, tally.lines(measurements))
                self._write_parquet(tally.longest_line)
                counts = {"counts": dict(tally.statuses), "verdicts": dict(tally.verdicts)}
                self.update_run_document({**(changes or {}), "state": state, "ended_at": ended_at, **counts})
                files.make_folder(goal.path.parent)
                files.sync_folder(self.folder.path)
                self.folder.path.rename(goal.path)
                files.sync_folder(goal.path.parent)
                files.sync_folder(self.folder.path.parent)
            self.folder = goal
            self.close()
            return goal

    def measurements(self, fold: Fold) -> Iterator[Measurement]:
        """What `fold` holds, read again from the journals, in the order of the plan."""
        return read_measurements(self.folder, fold, self.document())

    def _write_parquet(self, longest_line: int) -> None:
        parquet = self.folder.results_parquet
        temporary = files.temporary_name(parquet)
        columns.write_parquet(self.folder.results_jsonl, temporary, longest_line)
        files.keep(temporary, parquet)

    def _require_lock(self) -> None:
        if self._descriptor is None:
            raise ArchiveError(
                f"run {self.run_id} is only being read here; another coordinator may be at work"
            )

    def _require_same(self, path: Path, offset: int, data: bytes) -> None:
        with reading(path), files.open_plain(path) as journal:
            journal.seek(offset)
            for start in range(0, len(data), _COMPARED_BYTES):
                piece = data[start : start + _COMPARED_BYTES]
                if journal.read(len(piece)) != piece:
                    raise ArchiveError(
                        f"{path}: the host's journal is another one than the copy here (from byte {offset + start})"
                    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


class _Tally:
    """Counts results while they are written."""

    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.verdicts: Counter[str] = Counter()
        self.longest_line = 0

    def lines(self, measurements: Iterable[Measurement]) -> Iterator[bytes]:
        for measurement in measurements:
            self.statuses[measurement.status.value] += 1
            if measurement.verdict is not None:
                self.verdicts[measurement.verdict.value] += 1
            line = measurement_line(measurement)
            self.longest_line = max(self.longest_line, len(line))
            yield line
