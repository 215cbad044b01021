"""The typed columns of a result, and the way from `results.jsonl` to Parquet."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.archive import duck
from orchestrator.errors import ArchiveUnwritable

if TYPE_CHECKING:
    import duckdb

JSON_TEXT = ("params", "row", "metrics", "extra")
"""Columns whose keys differ from payload to payload: JSON text, so that integers stay exact and runs unite."""

COLUMNS = {
    "schema_version": "BIGINT",
    "run_id": "VARCHAR",
    "host": "VARCHAR",
    "device": 'STRUCT(uuid VARCHAR, "index" BIGINT, "name" VARCHAR, compute_capability VARCHAR, kind VARCHAR)',
    "case_id": "VARCHAR",
    "label": "VARCHAR",
    "payload": "VARCHAR",
    "params": "VARCHAR",
    "row": "VARCHAR",
    "backend": "VARCHAR",
    "resolved_backend": "VARCHAR",
    "status": "VARCHAR",
    "reason": "VARCHAR",
    "verdict": "VARCHAR",
    "reasons": "VARCHAR[]",
    "attempt": "BIGINT",
    "started_at": "TIMESTAMP",
    "duration_s": "DOUBLE",
    "timing": "STRUCT(timer VARCHAR, cache VARCHAR, median_us DOUBLE, p20_us DOUBLE, p80_us DOUBLE, rel_error DOUBLE,"
    " samples BIGINT, calls_per_sample BIGINT, compile_s DOUBLE, hot_median_us DOUBLE, host_us DOUBLE)",
    "samples_us": "DOUBLE[]",
    "metrics": "VARCHAR",
    "extra": "VARCHAR",
    "accuracy": "STRUCT(cosine DOUBLE, rel_error DOUBLE, max_abs_error DOUBLE, reference VARCHAR, float_cosine DOUBLE)",
    "telemetry": "STRUCT(sm_clock_mhz DOUBLE, mem_clock_mhz DOUBLE, power_w DOUBLE, temperature_c DOUBLE,"
    " throttle_reasons VARCHAR[], foreign_pids BIGINT[])",
    "environment_id": "VARCHAR",
    "log_tail": "VARCHAR",
}
"""Name and DuckDB type of each column of `results.parquet`, in order. Times are UTC."""

LARGE_BYTES = 4 * 1024 * 1024
_SMALLEST_OBJECT_LIMIT = 16 * 1024 * 1024


def text(value: str) -> str:
    """A string as an SQL literal."""
    return "'" + value.replace("'", "''") + "'"


def name(value: str) -> str:
    """A column's name as an SQL identifier."""
    return '"' + value.replace('"', '""') + '"'


def select_jsonl(path: Path, longest_line: int = 0, least_limit: int = _SMALLEST_OBJECT_LIMIT) -> str:
    """A SELECT of the typed columns from a file of result lines. Twice their limit is the size of DuckDB's buffers."""
    raw = {c: "JSON" if c in JSON_TEXT else "VARCHAR" if c == "started_at" else t for c, t in COLUMNS.items()}
    read_as = ", ".join(f"{name(column)}: {text(kind)}" for column, kind in raw.items())
    casts = {c: f"CAST({name(c)} AS VARCHAR)" for c in JSON_TEXT}
    casts["started_at"] = "TRY_CAST(started_at AS TIMESTAMP)"  # hosts write it; what is no time becomes null
    selected = ", ".join(f"{casts.get(column, name(column))} AS {name(column)}" for column in COLUMNS)
    limit = max(least_limit, 2 * longest_line)
    return (
        f"SELECT {selected} FROM read_json({text(str(path))}, format = 'newline_delimited', "  # noqa: S608 - names are ours, the path is a literal
        f"columns = {{{read_as}}}, maximum_object_size = {limit})"
    )


def write_parquet(jsonl: Path, parquet: Path, longest_line: int = 0) -> None:
    """Write the typed form of a file of result lines. Raises `ArchiveUnwritable`."""
    copy = (
        f"COPY ({select_jsonl(jsonl, longest_line, 1 << 20)}) TO {text(str(parquet))} "
        "(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 4096, USE_TMP_FILE false)"
    )
    problem = (
        _copied(copy)
        if jsonl.stat().st_size < LARGE_BYTES or not sys.executable
        else duck.execute_apart(copy)
    )
    if problem is not None:
        raise ArchiveUnwritable(f"{parquet} could not be written from {jsonl}: {problem}")


_warming = threading.Lock()
_warm: list[duckdb.DuckDBPyConnection] = []


def warm_up() -> None:
    """Load and start DuckDB ahead of the next `write_parquet`, which it would take longer than the writing."""
    with _warming:
        if not _warm:
            _warm.append(duck.connect(threads=1))


def _copied(copy: str) -> str | None:
    """Carry the statement out; what went wrong, if anything."""
    with _warming:
        connection = _warm.pop() if _warm else duck.connect(threads=1)
    import duckdb

    try:
        with connection:
            connection.execute(copy)
    except duckdb.Error as error:
        return str(error)
    return None
