"""What a query reads: the Parquet files of committed runs, and everything else brought into one file of result lines."""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import duckdb

from orchestrator.archive import columns, duck, footers
from orchestrator.archive.document import RunDocument, read_document, read_outline
from orchestrator.archive.journals import fold_run, read_measurements, read_results
from orchestrator.archive.notes import read_notes
from orchestrator.archive.objects import AT_ONCE, gist
from orchestrator.archive.paths import COMMITTED, RunFolder
from orchestrator.archive.planned import known_total
from orchestrator.archive.store import Archive
from orchestrator.errors import ArchiveError
from orchestrator.events.journal import measurement_line
from orchestrator.model import Measurement


@dataclass
class Sources:
    """Where the rows come from. `jsonl` holds open runs, and committed ones whose Parquet file is damaged; it lies at
    `scratch` once there is one."""

    archive: Archive
    scratch: Path

    parquet: list[Path] = field(default_factory=list)
    jsonl: Path | None = None
    longest_line: int = 0
    runs: list[tuple[Any, ...]] = field(default_factory=list)
    environments: list[tuple[str, str, str]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def leave_out_damaged(self) -> bool:
        """Read every Parquet file to its end, and the lines in place of those that cannot be; whether there were any."""
        sound = []
        with duck.connect() as connection, self.scratch.open("ab") as lines:
            self.archive.prepare(connection)
            for path in self.parquet:
                try:
                    address = self.archive.address(path)
                    connection.execute("SELECT sum(hash(COLUMNS(*))) FROM read_parquet(?)", [address])
                    sound.append(path)
                except duckdb.Error as error:
                    self._read_lines(path, _first_line(error), lines)
        found = len(sound) < len(self.parquet)
        self.parquet = sound
        return found

    def _read_lines(self, parquet: Path, fault: str, lines: BinaryIO) -> None:
        folder = RunFolder(parquet.parent)
        try:
            self.archive.bring(folder)
            _write(read_results(folder), self, lines)
        except (ArchiveError, OSError) as error:
            self.runs = [row for row in self.runs if row[0] != folder.run_id]
            self.environments = [row for row in self.environments if row[0] != folder.run_id]
            self.warnings.append(f"{parquet} is damaged ({fault}); left out: {error}")
        else:
            self.jsonl = self.scratch
            self.warnings.append(f"{parquet} is damaged ({fault}); results.jsonl was read in its place")


def collect(archive: Archive, scratch: Path) -> Sources:
    """Look through the archive; what has to be read line by line is written to `scratch`."""
    sources = Sources(archive, scratch)
    folders, strays = archive.scan()
    sources.warnings += [f"{path} is no run and left out" for path in strays]
    with scratch.open("wb") as lines, Schemas(archive) as schemas:
        schemas.look_ahead(folder.results_parquet for folder in folders if folder.is_committed)
        for folder in reversed(folders):
            try:
                _add(archive, folder, sources, lines, schemas)
            except FileNotFoundError:
                _add_moved(archive, folder, sources, lines, schemas)
            except ArchiveError as error:
                sources.warnings.append(f"left out: {error}")
            except OSError as error:
                sources.warnings.append(f"left out: {folder.path}: {error.strerror}")
    sources.jsonl = scratch if sources.longest_line else None
    sources.warnings = [archive.told(warning) for warning in sources.warnings]
    return sources


def _add_moved(
    archive: Archive,
    folder: RunFolder,
    sources: Sources,
    lines: BinaryIO,
    schemas: Schemas,
) -> None:
    """A file was not there: the run was committed while we looked, or something took the file away."""
    moved = RunFolder(archive.path / COMMITTED / folder.run_id)
    try:
        if folder.is_committed:
            raise ArchiveError(f"{folder.path} is incomplete")
        _add(archive, moved, sources, lines, schemas)
    except (ArchiveError, OSError) as error:
        sources.warnings.append(f"left out: {error}")


def _add(
    archive: Archive,
    folder: RunFolder,
    sources: Sources,
    lines: BinaryIO,
    schemas: Schemas,
) -> None:
    if folder.is_committed:
        document = read_outline(folder.run_json)
        counts, environments, expected = document.counts, document.environments, document.plan.expected
        fault = schemas.fault(folder.results_parquet)
        if fault is None:
            sources.parquet.append(folder.results_parquet)
        else:
            archive.bring(folder)
            _write(read_results(folder), sources, lines)
            sources.warnings.append(f"{folder.results_parquet} {fault}; results.jsonl was read in its place")
    else:
        archive.bring(folder)
        document = read_document(folder.run_json)
        fold = fold_run(folder, document)
        counts, expected = dict(fold.counts().statuses), known_total(document, fold)
        environments = {**document.environments, **fold.environments}
        _write(read_measurements(folder, fold, document), sources, lines)
    sources.runs.append(
        (
            *_run_row(document, folder.run_id, archive.state(folder, document), counts, expected),
            *_said(archive, folder, sources),
        )
    )
    sources.environments += [
        (folder.run_id, identifier, json.dumps(environment))
        for identifier, environment in environments.items()
    ]


class Schemas:
    """Tells whether Parquet files have the columns of results; files of one schema are described once."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._connection = duck.connect()
        self._archive.prepare(self._connection)
        self._sound: set[bytes] = set()
        self._elsewhere: dict[Path, str | None] = {}

    def __enter__(self) -> Schemas:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def look_ahead(self, paths: Iterable[Path]) -> None:
        """Where the archive is elsewhere: describe many files at once, since each takes a way there and back."""
        if self._archive.mirror is None:
            return
        wanted = list(paths)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = pool.map(lambda path: self._describe(path, self._connection.cursor()), wanted)
            self._elsewhere = dict(zip(wanted, found, strict=True))

    def fault(self, path: Path) -> str | None:
        """What is wrong with a Parquet file, as far as its footer tells; None if it is one of ours."""
        if path in self._elsewhere:
            return self._elsewhere[path]
        try:
            schema = footers.schema_bytes(path, self._sound)
        except FileNotFoundError:
            return "is missing"
        except footers.NoParquet as error:
            return f"is damaged ({error})"
        except OSError as error:
            return f"cannot be read ({error.strerror})"
        if schema in self._sound:
            return None
        fault = self._describe(path, self._connection)
        if fault is None:
            self._sound.add(schema)
        return fault

    def _describe(self, path: Path, connection: duckdb.DuckDBPyConnection) -> str | None:
        mirror = self._archive.mirror
        if mirror is not None and not mirror.has(path):
            return "is missing"
        try:
            address = self._archive.address(path)
            described = connection.execute("DESCRIBE SELECT * FROM read_parquet(?)", [address]).fetchall()
        except duckdb.Error as error:
            return f"is damaged ({_first_line(error)})"
        found = {row[0]: row[1] for row in described}
        if found.keys() != columns.COLUMNS.keys():
            return "has other columns than results have"
        return None if found == _our_types() else "has columns of other types than results have"


@cache
def _our_types() -> dict[str, str]:
    """The columns' types as DuckDB spells them."""
    kinds = ", ".join(f"NULL::{kind} AS {columns.name(column)}" for column, kind in columns.COLUMNS.items())
    with duck.connect() as connection:
        return {row[0]: row[1] for row in connection.execute(f"DESCRIBE SELECT {kinds}").fetchall()}


def _write(measurements: Iterable[Measurement], sources: Sources, lines: BinaryIO) -> None:
    """Add a run's lines, all or (when one of them is damaged) none."""
    start = lines.tell()
    longest = sources.longest_line
    try:
        for measurement in measurements:
            line = measurement_line(measurement)
            longest = max(longest, len(line))
            lines.write(line)
    except (ArchiveError, OSError):
        lines.seek(start)
        lines.truncate()
        raise
    sources.longest_line = longest


def _run_row(
    document: RunDocument, run_id: str, state: str, counts: dict[str, int], expected: int | None
) -> tuple[Any, ...]:
    return (
        run_id,
        document.sweep.name,
        state,
        document.started_at,
        document.ended_at,
        document.placement,
        list(document.hosts),
        document.resumes,
        expected,
        json.dumps(counts),
        json.dumps(document.versions),
    )


def _said(archive: Archive, folder: RunFolder, sources: Sources) -> tuple[list[str], str]:
    """Tags and note; damaged ones are named and left out, the run is not."""
    try:
        said = read_notes(archive, folder.run_id)
    except ArchiveError as error:
        sources.warnings.append(f"left out: {error}")
        return [], ""
    return list(said.tags), said.note


def _first_line(error: Exception) -> str:
    return gist(error).split("; ", 1)[0]
