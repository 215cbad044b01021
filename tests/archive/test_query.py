"""SQL over open and committed runs; nothing can be written, and damage is named and left out."""

from __future__ import annotations

import threading

import pytest

from orchestrator.archive import Archive, fold_run
from orchestrator.archive.columns import COLUMNS, text
from orchestrator.archive.query import query
from orchestrator.errors import UsageError

END = "2025-01-02T04:00:00Z"


@pytest.fixture
def two_runs(archive: Archive, document, line, measurement) -> Archive:
    """r1 is committed with two measurements, r2 open with one."""
    big = measurement(backend="cutlass", params={"m": 2**53 + 1, "huge": 2**70}, row={"n": 1})
    archive.create("r1", document(), {}).commit([measurement(), big], "finished", ended_at=END)
    run = archive.create("r2", document(), {})
    run.append_events(
        "gpu1", 0, line("r2", samples_us=[1.0, 2.0, 4.0], extra={"s": "copy\u2028é"}) + b'{"torn'
    )
    return archive


def test_every_run_is_seen(two_runs: Archive):
    table = query(two_runs, "SELECT run_id, backend, timing.median_us AS median_us FROM results ORDER BY ALL")
    assert table.columns == ["run_id", "backend", "median_us"]
    assert table.rows == [("r1", "cutlass", 12.5), ("r1", "torch", 12.5), ("r2", "torch", 12.5)]
    assert table.warnings == []


def test_integers_stay_exact_when_runs_are_united(two_runs: Archive):
    table = query(
        two_runs,
        "SELECT CAST(params->>'m' AS BIGINT), params->>'huge' FROM results WHERE backend = 'cutlass'",
    )
    assert table.rows == [(2**53 + 1, str(2**70))]


def test_samples(two_runs: Archive):
    table = query(two_runs, "SELECT * FROM samples WHERE run_id = 'r2' ORDER BY sample_index")
    assert table.columns == [
        "run_id",
        "case_id",
        "backend",
        "host",
        "device_uuid",
        "sample_index",
        "sample_us",
    ]
    assert [row[-2:] for row in table.rows] == [(0, 1.0), (1, 2.0), (2, 4.0)]


def test_runs_and_environments(two_runs: Archive):
    rows = query(
        two_runs, "SELECT run_id, sweep, state, counts->>'ok', year(started_at) FROM runs ORDER BY run_id"
    ).rows
    assert rows == [("r1", "fp4", "finished", "2", 2025), ("r2", "fp4", "running", "1", 2025)]
    rows = query(two_runs, "SELECT run_id, environment->>'torch' FROM environments ORDER BY run_id").rows
    assert rows == [("r1", "2.9"), ("r2", "2.9")]


def test_an_empty_archive_has_the_columns(archive: Archive):
    table = query(archive, "SELECT * FROM results")
    assert (table.columns, table.rows) == (list(COLUMNS), [])
    for view in ("samples", "runs", "environments"):
        assert query(archive, f"FROM {view}").rows == []


def test_an_empty_run_beside_another_keeps_the_types(two_runs: Archive, document):
    two_runs.create("r0", document(), {}).commit([], "cancelled", ended_at=END)
    assert query(two_runs, "SELECT count(*), max(timing.median_us) FROM results").rows == [(3, 12.5)]


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("SELEC 1", "syntax error"),
        ("SELECT nope FROM results", '"nope" not found'),
        ("SELECT * FROM resluts", "resluts does not exist"),
        ("SELECT CAST(backend AS INT) FROM results", "Could not convert"),
        ("", "one statement"),
        ("-- only a comment", "one statement"),
        ("SELECT 1; SELECT 2", "one statement"),
    ],
)
def test_a_mistake_is_told_in_duckdbs_words(two_runs: Archive, sql: str, told: str):
    with pytest.raises(UsageError, match=told):
        query(two_runs, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT 1) TO {parquet} (USE_TMP_FILE false)",
        "WITH x AS (COPY (SELECT 5 z) TO {parquet} (FORMAT parquet, USE_TMP_FILE false)) SELECT * FROM x",
        "WITH x AS (COPY (SELECT 5 z) TO {parquet} (FORMAT parquet, USE_TMP_FILE false)) SELECT * FROM x;",
        "WITH x AS (COPY (SELECT 5 z) TO {parquet} (FORMAT csv, USE_TMP_FILE false)) PIVOT runs ON state USING count(*)",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO {parquet}",
        "COPY results TO {new}",
        "ATTACH {new}",
        "EXPORT DATABASE {new}",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM glob('/*')",
        "DROP VIEW results",
        "CALL force_checkpoint()",
        "CREATE TABLE t AS SELECT 1",
    ],
)
def test_a_query_can_neither_write_nor_look_elsewhere(two_runs: Archive, sql: str):
    before = {p: p.read_bytes() for p in two_runs.path.rglob("*") if p.is_file()}
    parquet = two_runs.find("r1").results_parquet
    with pytest.raises(UsageError):
        query(two_runs, sql.format(parquet=text(str(parquet)), new=text(str(two_runs.path / "new.db"))))
    assert {p: p.read_bytes() for p in two_runs.path.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    "sql",
    [
        "FROM results SELECT label",
        "WITH x AS (SELECT label FROM results) SELECT * FROM x",
        "PIVOT (SELECT run_id, backend, timing.median_us AS us FROM results) ON backend USING median(us)",
        "DESCRIBE results",
        "SUMMARIZE runs",
        "SHOW TABLES",
        "SELECT label FROM results WHERE label != 'copy kernel' -- no copy;",
        "SELECT label AS copy FROM results;\n",
    ],
)
def test_whatever_reads_is_welcome(two_runs: Archive, sql: str):
    assert query(two_runs, sql).rows


def test_a_damaged_parquet_is_named_and_its_lines_are_read(two_runs: Archive):
    parquet = two_runs.find("r1").results_parquet
    parquet.write_bytes(parquet.read_bytes()[:-20])
    table = query(two_runs, "SELECT count(*) FROM results")
    assert table.rows == [(3,)]
    assert [str(parquet) in w and "results.jsonl was read" in w for w in table.warnings] == [True]


def test_foreign_and_hopeless_files_are_named_and_left_out(two_runs: Archive, document):
    import duckdb

    done = two_runs.find("r1")
    duckdb.sql("SELECT 1 AS x").write_parquet(str(done.results_parquet))
    done.results_jsonl.write_text('{"x": 1}\n')
    (two_runs.path / "runs" / "photos").mkdir()
    two_runs.create("r3", document(), {}).commit([], "finished", ended_at=END)
    two_runs.find("r3").run_json.write_text("{")
    table = query(two_runs, "SELECT DISTINCT run_id FROM results")
    assert table.rows == [("r2",)]
    told = "\n".join(table.warnings)
    assert "results.jsonl:1" in told
    assert "photos is no run" in told
    assert "r3/run.json" in told


def test_damage_within_the_data_is_found_when_it_is_read(two_runs: Archive):
    parquet = two_runs.find("r1").results_parquet
    content = bytearray(parquet.read_bytes())
    content[4:400] = b"\xff" * 396
    parquet.write_bytes(content)
    table = query(two_runs, "SELECT run_id, samples_us, label, backend, case_id FROM results")
    assert sorted(row[0] for row in table.rows) == ["r1", "r1", "r2"]  # the lines say the same
    assert str(parquet) in table.warnings[-1]


def test_querying_while_a_run_is_committed(archive: Archive, document, line):
    """Runs move from open/ to runs/ under the reader; each is seen, and once."""
    runs = [archive.create(f"r{i}", document(), {}) for i in range(12)]
    for run in runs:
        run.append_events("gpu1", 0, line(run.run_id))

    def commit_all() -> None:
        for run in runs:
            fold = fold_run(run.folder, run.document())
            run.commit(run.measurements(fold), "finished", ended_at=END)

    committer = threading.Thread(target=commit_all)
    committer.start()
    try:
        seen = [query(archive, "SELECT count(*), count(DISTINCT run_id) FROM results") for _ in range(6)]
    finally:
        committer.join()
    assert [table.rows for table in seen] == [[(12, 12)]] * 6
