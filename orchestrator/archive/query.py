"""SQL over the archive: an in-memory DuckDB that reads the runs' files and can write nothing.

Views: `results` (one row a measurement of every run, open ones too), `samples` (one row a sample), `runs`,
`environments`. Files that are damaged or not ours are left out, and named in `Table.warnings`.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import duckdb

from orchestrator.archive import columns, duck
from orchestrator.archive.objects import gist
from orchestrator.archive.sources import Sources, collect
from orchestrator.archive.store import Archive
from orchestrator.errors import UsageError

_TYPES = duckdb.StatementType
_MISTAKES = (duckdb.ParserException, duckdb.CatalogException, duckdb.BinderException)
_RUNS = (
    "run_id VARCHAR, sweep VARCHAR, state VARCHAR, started_at TIMESTAMP, ended_at TIMESTAMP, placement VARCHAR, "
    "hosts VARCHAR[], resumes VARCHAR, expected BIGINT, counts JSON, versions JSON, tags VARCHAR[], note VARCHAR"
)
_ENVIRONMENTS = "run_id VARCHAR, environment_id VARCHAR, environment JSON"

T = TypeVar("T")


@dataclass(frozen=True)
class Table:
    """What a query gave: column names, rows of Python values, and what had to be left out."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    warnings: list[str] = field(default_factory=list)


def query(archive: Archive, sql: str) -> Table:
    """Run one reading SQL statement over the archive. Raises `UsageError` with DuckDB's message on a mistake."""
    return ask(archive, sql, _rows)


def ask(archive: Archive, sql: str, take: Callable[[duckdb.DuckDBPyConnection, list[str]], T]) -> T:
    """As `query`, with the answer taken from the connection by `take`, which also gets the warnings."""
    with tempfile.TemporaryDirectory(prefix="farbench-query-") as scratch:
        sources = collect(archive, Path(scratch) / "open.jsonl")
        try:
            return _answer(sources, sql, take)
        except duckdb.Error as error:
            if isinstance(error, _MISTAKES) or not sources.leave_out_damaged():
                raise _refusal(error, sources) from None
        try:
            return _answer(sources, sql, take)
        except duckdb.Error as error:
            raise _refusal(error, sources) from None


def _refusal(error: duckdb.Error, sources: Sources) -> UsageError:
    said = str(error).rstrip()
    if sources.archive.mirror is not None and not isinstance(error, _MISTAKES):
        said = gist(error)
    return UsageError(f"the query failed: {said}")


def _interruptible(connection: duckdb.DuckDBPyConnection, sql: str, take: Callable[[], T]) -> T:
    """Execute on another thread: DuckDB would hold Ctrl-C back until the query has ended by itself."""

    def work() -> T:
        connection.execute(sql)
        return take()

    with ThreadPoolExecutor(1, thread_name_prefix="query") as pool:
        answer = pool.submit(work)
        try:
            return answer.result()
        except KeyboardInterrupt:
            while not answer.done():  # an interrupt before the execution has begun is forgotten
                connection.interrupt()
                wait([answer], timeout=0.1)
            raise


def _distinct(names: Sequence[str]) -> list[str]:
    """Column names, each once: `a`, `a_1`, `a_2` where a query gives one name to several."""
    out, counts = [], dict.fromkeys(names, 0)
    for name in names:
        new = name if not counts[name] else f"{name}_{counts[name]}"
        while counts[name] and new in names:
            counts[name] += 1
            new = f"{name}_{counts[name]}"
        counts[name] += 1
        out.append(new)
    return out


def _rows(connection: duckdb.DuckDBPyConnection, warnings: list[str]) -> Table:
    names = _distinct([column[0] for column in connection.description or ()])
    return Table(names, connection.fetchall(), warnings)


def _answer(sources: Sources, sql: str, take: Callable[[duckdb.DuckDBPyConnection, list[str]], T]) -> T:
    with duck.connect() as connection:
        sources.archive.prepare(connection)
        _define_views(connection, sources)
        _forbid_writing(connection, sources)
        _require_reading(connection, sql)
        return _interruptible(connection, sql, lambda: take(connection, list(sources.warnings)))


def _define_views(connection: duckdb.DuckDBPyConnection, sources: Sources) -> None:
    typed = ", ".join(f"{columns.name(column)} {kind}" for column, kind in columns.COLUMNS.items())
    connection.execute(f"CREATE TABLE unfinished ({typed})")
    if sources.jsonl is not None:
        selected = columns.select_jsonl(sources.jsonl, sources.longest_line)
        connection.execute(f"INSERT INTO unfinished {selected}")
    # The JSON columns stay text: DuckDB's JSON functions and arrows take it, and no cast stands between a filter
    # and the files, so that only the columns and row groups that a query needs are read.
    parts = []
    if sources.jsonl is not None or not sources.parquet:
        parts.append("SELECT * FROM unfinished")
    if sources.parquet:
        files = ", ".join(columns.text(sources.archive.address(path)) for path in sources.parquet)
        parts.append(f"SELECT * FROM read_parquet([{files}])")  # noqa: S608 - the paths are literals
    connection.execute(f"CREATE VIEW results AS {' UNION ALL BY NAME '.join(parts)}")
    connection.execute(
        "CREATE VIEW samples AS SELECT run_id, case_id, backend, host, device.uuid AS device_uuid, "
        "unnest(range(len(samples_us))) AS sample_index, unnest(samples_us) AS sample_us FROM results"
    )
    connection.execute(f"CREATE TABLE runs ({_RUNS})")
    connection.execute(f"CREATE TABLE environments ({_ENVIRONMENTS})")
    _fill(connection, "runs", sources.runs)
    _fill(connection, "environments", sources.environments)


def _fill(connection: duckdb.DuckDBPyConnection, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows by columns: one statement, where `executemany` takes a millisecond a row."""
    if not rows:
        return
    kinds = [row[1] for row in connection.execute(f"DESCRIBE {table}").fetchall()]
    values = [list(column) for column in zip(*rows, strict=True)]
    shown = ", ".join(f"TRY_CAST(unnest(${n}) AS {kind})" for n, kind in enumerate(kinds, 1))
    connection.execute(f"INSERT INTO {table} SELECT {shown}", values)


def _forbid_writing(connection: duckdb.DuckDBPyConnection, sources: Sources) -> None:
    allowed = ", ".join(columns.text(sources.archive.address(path)) for path in sources.parquet)
    connection.execute(f"SET allowed_paths = [{allowed}]")
    connection.execute("SET temp_directory = ''")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _require_reading(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Refuse whatever could write. Raises `UsageError`, or DuckDB's own error for what is no SQL."""
    kind = _kind(connection, sql)
    if kind is None:
        raise UsageError(
            "a query is one statement that reads: SELECT, FROM, WITH, DESCRIBE, SUMMARIZE, PIVOT …"
        )
    # The files that may be read could also be written, by a COPY inside a WITH clause (DuckDB 2). DuckDB takes
    # that at the top level of a statement only, so whatever says "copy" anywhere must also do as a subquery.
    if re.search("copy", sql, re.IGNORECASE):
        if kind == "pivot":
            raise UsageError("a query only reads: PIVOT together with the word COPY is refused")
        statement = sql.rstrip().removesuffix(";")
        connection.execute(f"EXPLAIN SELECT * FROM (\n{statement}\n)")  # noqa: S608 - explained, not run


def _kind(connection: duckdb.DuckDBPyConnection, sql: str) -> str | None:
    """`select` or `pivot` for a text that is one statement of that kind, else None."""
    statements = connection.extract_statements(sql)
    if [s.type for s in statements] == [_TYPES.SELECT]:
        return "select"
    if [s.type for s in statements] == [_TYPES.MULTI]:
        return "pivot"
    # DuckDB 1 turns a PIVOT into statements that have no text: types of its columns, then a SELECT
    expanded = [s.type for s in statements if not s.query]
    if len(expanded) == len(statements) > 1 and expanded[-1] == _TYPES.SELECT:
        return "pivot" if all(t == _TYPES.CREATE for t in expanded[:-1]) else None
    return None
