"""How every DuckDB of the archive is opened: in memory, and downloading nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

_IN_MEMORY = ":memory:"
_APART = """
import duckdb, json, sys
try:
    duckdb.connect(sys.argv[1], config=json.loads(sys.argv[2])).execute(sys.stdin.read())
except duckdb.Error as error:
    sys.exit(str(error))
"""


def connect(threads: int | None = None) -> duckdb.DuckDBPyConnection:
    """A database of its own, with as many threads as DuckDB likes where `threads` is None."""
    import duckdb  # only now: it takes longer to load than most commands take

    return duckdb.connect(_IN_MEMORY, config=_config(threads))


def execute_apart(statement: str) -> str | None:
    """Carry a statement out in a process of its own; what went wrong, if anything.

    DuckDB takes a hundred megabytes for large files, and gives few of them back."""
    command = [sys.executable, "-c", _APART, _IN_MEMORY, json.dumps(_config(threads=1))]
    done = subprocess.run(command, input=statement, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    return done.stderr.strip() or f"DuckDB's process ended with {done.returncode}"


def _config(threads: int | None) -> dict[str, str | bool | int | float | list[str]]:
    """No extension is fetched or loaded unasked, and no variable of ours is a table. JSON can carry it."""
    config: dict[str, str | bool | int | float | list[str]] = {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "python_enable_replacements": "false",
    }
    return config if threads is None else {**config, "threads": threads}
