"""Damaged, foreign and unwritable archives: named, never fatal; and reading one writes nothing."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from orchestrator.archive import Archive
from orchestrator.archive.bundle import export_run
from orchestrator.archive.columns import COLUMNS, text
from orchestrator.archive.footers import NoParquet, schema_bytes
from orchestrator.archive.notes import annotate
from orchestrator.archive.query import query
from orchestrator.errors import ArchiveError
from orchestrator.report import build


def without_the_rights_of_root() -> None:
    """For root nothing is closed, unless it gives up the capabilities DAC_OVERRIDE and DAC_READ_SEARCH for good."""
    drop_from_bounding_set = 24
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(drop_from_bounding_set, capability, 0, 0, 0)


@pytest.fixture
def three(archive: Archive, commit) -> Archive:
    for run_id in ("r1", "r2", "r3"):
        commit(archive, run_id, {}, {"backend": "b"})
    return archive


def test_runs_of_a_long_plan_are_read_without_it(archive: Archive, commit):
    cases = [
        {"id": f"{i:016x}", "label": f'"hosts": {i}}},', "payload": "p", "params": {"m": i}}
        for i in range(2000)
    ]
    plan = {"cases": cases, "expected": 7}
    commit(archive, "r1", plan=plan)
    assert archive.find("r1").run_json.stat().st_size > 100_000
    rows = query(archive, "select sweep, state, expected, hosts, counts->>'ok' from runs").rows
    assert rows == [("fp4", "finished", 7, ["gpu1"], "1")]


@pytest.mark.parametrize("keep", [0, 3, 200, -3])
def test_a_run_json_that_was_cut_off(three: Archive, farbench, keep: int):
    file = three.find("r2").run_json
    file.write_bytes(file.read_bytes()[:keep])
    table = query(three, "select distinct run_id from results order by 1")
    assert table.rows == [("r1",), ("r3",)]
    assert [str(file) in warning for warning in table.warnings] == [True]


def test_every_cut_of_a_parquet_file_is_noticed(three: Archive):
    file = three.find("r2").results_parquet
    whole = file.read_bytes()
    for length in (0, 4, 11, len(whole) // 2, len(whole) - 8, len(whole) - 1):
        file.write_bytes(whole[:length])
        table = query(three, "select count(*) from results")
        assert table.rows == [(6,)], length  # the lines say the same
        assert "results.jsonl was read in its place" in table.warnings[0]
    file.unlink()
    assert "is missing" in query(three, "select count(*) from results").warnings[0]


def test_columns_more_fewer_or_of_other_types(three: Archive):
    """Files of another version beside ours: united by name, with our types."""
    file = three.find("r2").results_parquet
    where = text(str(file))
    ours = f"SELECT * FROM read_parquet({where})"
    with duckdb.connect() as connection:
        connection.execute(f"CREATE TABLE ours AS {ours}")
        for change in (
            "* EXCLUDE (telemetry)",
            "*, 1 AS added",
            "* REPLACE (CAST(attempt AS VARCHAR) AS attempt)",
        ):
            connection.execute(f"COPY (SELECT {change} FROM ours) TO {where} (FORMAT parquet)")
            table = query(three, "select run_id, attempt, telemetry from results where run_id = 'r2'")
            assert table.rows == [("r2", 1, None)] * 2
            assert "than results have" in table.warnings[0]
    described = query(three, "describe results").rows
    assert [row[0] for row in described] == list(COLUMNS)


def test_results_that_cannot_be_read_at_all_leave_their_run_out(three: Archive):
    three.find("r2").results_parquet.write_bytes(b"PAR1 not really PAR1")
    three.find("r2").results_jsonl.write_text('{"torn')
    table = query(three, "select run_id, count(*) from results group by 1 order by 1")
    assert table.rows == [("r1", 2), ("r3", 2)]
    assert any("results.jsonl:1" in warning for warning in table.warnings)


def test_damage_within_a_parquet_file_is_read_around(three: Archive):
    """The footer is sound, so that only reading the column finds it."""
    file = three.find("r2").results_parquet
    whole = bytearray(file.read_bytes())
    length = int.from_bytes(whole[-8:-4], "little")
    whole[4 : -8 - length] = b"\x5a" * (len(whole) - 12 - length)
    file.write_bytes(whole)
    table = query(three, "select run_id, sum(timing.median_us) from results group by 1 order by 1")
    assert table.rows == [("r1", 25.0), ("r2", 25.0), ("r3", 25.0)]
    assert "results.jsonl was read in its place" in table.warnings[0]
    three.find("r2").results_jsonl.unlink()
    table = query(
        three, "select run_id, count(*), (select count(*) from runs) from results group by 1 order by 1"
    )
    assert table.rows == [("r1", 2, 2), ("r3", 2, 2)]
    assert "left out" in table.warnings[0]


@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "loop"])
@pytest.mark.parametrize("name", ["results.parquet", "results.jsonl", "run.json"])
def test_what_is_no_plain_file_neither_holds_a_reader_up_nor_ends_it(
    three: Archive, tmp_path: Path, name: str, kind: str
):
    file = three.find("r2").path / name
    file.unlink()
    make = {
        "folder": Path.mkdir,
        "pipe": os.mkfifo,
        "device": lambda path: path.symlink_to("/dev/zero"),
        "loop": lambda path: path.symlink_to(path),
    }
    make[kind](file)
    table = query(three, "select run_id, count(*) from results group by 1 order by 1")
    known = [("r1", 2), ("r2", 2), ("r3", 2)]
    assert table.rows == (known if name != "run.json" else [known[0], known[2]])
    for use in (lambda run: build(three, run), lambda run: export_run(three, run, tmp_path / "x")):
        if name == "results.parquet":
            use(three.find("r2"))
        else:
            with pytest.raises(ArchiveError, match=r"cannot be read|there is no run"):
                use(three.find("r2"))


@pytest.mark.parametrize(
    "command", [["report"], ["report", "--format", "html"], ["compare", "r1"], ["export"]]
)
def test_a_run_without_its_results_is_said_so(three: Archive, farbench, command: list[str], tmp_path: Path):
    three.find("r2").results_jsonl.unlink()
    done = farbench(*command, "r2", *(["-o", tmp_path / "x"] if command == ["export"] else []))
    assert done.code == 2
    assert done.stderr.startswith("error: ")
    assert "results.jsonl: cannot be read: No such file" in done.stderr
    assert not (tmp_path / "x").exists()


def test_a_copy_of_a_run_under_another_name_counts_for_nothing(three: Archive, farbench):
    shutil.copytree(three.find("r2").path, three.path / "runs" / "r2.bak")
    table = query(three, "select run_id, count(*) from results group by 1 order by 1")
    assert table.rows == [("r1", 2), ("r2", 2), ("r3", 2)]
    assert "is of another run, 'r2'" in table.warnings[0]
    done = farbench("runs", "--json")
    assert [run["run_id"] for run in done.json()["runs"]] == ["r3", "r2", "r1"]
    assert "is of another run, 'r2'" in done.stderr


def test_footers_that_lie_are_no_parquet(tmp_path: Path, three: Archive):
    whole = three.find("r1").results_parquet.read_bytes()
    known = {schema_bytes(three.find("r1").results_parquet, set())}
    assert schema_bytes(three.find("r3").results_parquet, known) in known
    length = int.from_bytes(whole[-8:-4], "little")
    footer = whole[-8 - length : -8]
    file = tmp_path / "x"
    for lie in (
        b"",
        b"\x00",
        b"\x15",
        footer[:40],
        b"\x19\xfc\xff\xff\xff\x7f",
        b"\x1c" * 300,
        b"\x19" * 300,
        b"\xff" * 300,
        b"\x1b" * 9,
    ):
        file.write_bytes(b"PAR1" + lie + len(lie).to_bytes(4, "little") + b"PAR1")
        with pytest.raises(NoParquet):
            schema_bytes(file, set())
    file.write_bytes(b"PAR1" + bytes(8) + (2**32 - 1).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(NoParquet, match="longer than the file"):
        schema_bytes(file, known)


def test_reading_writes_nothing(three: Archive, farbench, tmp_path: Path):
    annotate(three, "r1", add=["golden"])
    state = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in three.path.rglob("*")}
    for command in (["runs"], ["report", "r1"], ["query", "from samples"], ["export", "r2", "-o", tmp_path / "x"],
                    ["runs", "--prune", "--keep", "1"]):  # fmt: skip
        assert farbench(*command).code == 0
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in three.path.rglob("*")} == state


def test_a_run_that_may_not_be_read_ends_no_command_over_the_others(three: Archive):
    closed = three.find("r2").path
    closed.chmod(0)
    script = (
        "import sys; from orchestrator.archive import Archive; from orchestrator.archive.query import query;"
        "from orchestrator.report import list_runs; a = Archive(sys.argv[1]);"
        "print(query(a, 'select distinct run_id from results order by 1').rows);"
        "print([r.run_id for r in list_runs(a).runs], list_runs(a).warnings); print(a.find('latest').run_id)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(three.path)],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=without_the_rights_of_root,
    )
    closed.chmod(0o755)
    assert done.stderr == ""
    rows, listed, latest = done.stdout.strip().split("\n")
    assert rows == "[('r1',), ('r3',)]"
    assert listed.startswith("['r3', 'r1'] (")
    assert "r2/run.json: cannot be read: Permission denied" in listed
    assert latest == "r3"


@pytest.mark.parametrize("command", [["import", "x.csv"], ["runs", "r1", "--note", "x"]])
def test_an_archive_that_cannot_be_written_is_said_so(farbench, tmp_path: Path, command: list[str]):
    (tmp_path / "x.csv").write_text("n,A (ms)\n1,2.0\n")
    done = farbench(*command, archive=Archive("/proc/farbench"))
    assert done.code == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
