"""The archive: run folders, results as JSON lines and Parquet, and SQL over all of them.

DuckDB takes a moment to load, so `query` is imported where it is used: `orchestrator.archive.query`.
"""

from orchestrator.archive.document import RunDocument, read_document, read_outline
from orchestrator.archive.journals import fold_run, read_measurements, read_results
from orchestrator.archive.openrun import OpenRun
from orchestrator.archive.paths import RunFolder, new_run_id, safe_name
from orchestrator.archive.planned import expected, expected_total, known_total
from orchestrator.archive.store import Archive

__all__ = [
    "Archive",
    "OpenRun",
    "RunDocument",
    "RunFolder",
    "expected",
    "expected_total",
    "fold_run",
    "known_total",
    "new_run_id",
    "read_document",
    "read_measurements",
    "read_outline",
    "read_results",
    "safe_name",
]
