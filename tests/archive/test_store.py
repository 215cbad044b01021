"""Creating, finding, locking, appending and committing runs."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from orchestrator.archive import Archive, RunFolder, fold_run, read_document, read_results
from orchestrator.archive.columns import COLUMNS
from orchestrator.archive.query import query
from orchestrator.errors import ArchiveError, ArchiveUnreadable
from orchestrator.model import Measurement
from orchestrator.report import build

END = "2025-01-02T04:00:00Z"


def test_a_new_run_is_open_whole_and_locked(archive: Archive, document):
    scripts = {"gemm.py": b"print(1)\r\n", "harness/timing.py": b"x"}
    run = archive.create("r1", document(), scripts, {"launch.json": b"{}"})
    assert (run.folder.path / "launch.json").read_bytes() == b"{}"
    assert run.holds_lock
    assert run.folder.path == archive.path / "open" / "r1"
    assert (run.folder.scripts / "gemm.py").read_bytes() == b"print(1)\r\n"
    assert read_document(run.folder.run_json).sweep.name == "fp4"
    assert archive.state(run.folder) == "running"
    assert [p.name for p in (archive.path / "open").iterdir()] == ["r1"]


def test_a_run_id_is_taken_once(archive: Archive, document):
    archive.create("r1", document(), {})
    with pytest.raises(ArchiveError, match="already"):
        archive.create("r1", document(), {})


@pytest.mark.parametrize("name", ["../evil.py", "/etc/evil", "a/../../b"])
def test_scripts_stay_inside_the_run(archive: Archive, document, name: str):
    with pytest.raises(ArchiveError):
        archive.create("r1", document(), {name: b""})


@pytest.mark.parametrize("run_id", ["", ".", "..", "a/b", ".hidden"])
def test_a_run_id_is_a_plain_name(archive: Archive, document, run_id: str):
    with pytest.raises(ArchiveError):
        archive.create(run_id, document(), {})


def test_only_one_coordinator(archive: Archive, document):
    run = archive.create("r1", document(), {})
    second = archive.open_run("r1")
    assert second.lock() is False
    with pytest.raises(ArchiveError, match="only being read"):
        second.append_events("gpu1", 0, b"x")
    run.close()
    assert archive.state(run.folder) == "detached"
    assert second.lock() is True
    assert archive.state(run.folder) == "running"
    second.close()


def test_the_lock_dies_with_its_holder(archive: Archive, document):
    archive.create("r1", document(), {}).close()
    code = (
        "import sys\nfrom orchestrator.archive import Archive\n"
        "run = Archive(sys.argv[1]).open_run('r1'); print(run.lock(), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(archive.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"True\n"
        assert archive.open_run("r1").lock() is False
        assert archive.state(archive.find("r1")) == "running"
        holder.kill()
        holder.wait()
    assert archive.open_run("r1").lock() is True


def test_journals_grow_without_gaps(archive: Archive, document):
    run = archive.create("r1", document(), {})
    assert run.append_events("gpu 1", 0, b"one\n") == b"one\n"
    assert run.append_events("gpu 1", 4, b"two\n") == b"two\n"
    assert run.journal_size("gpu 1") == 8
    with pytest.raises(ArchiveError, match="follow from 8"):
        run.append_events("gpu 1", 9, b"x")
    assert run.append_events("gpu 1", 2, b"e\ntwo\nthree\n") == b"three\n"
    assert run.append_events("gpu 1", 0, b"one\n") == b""
    with pytest.raises(ArchiveError, match="another one"):
        run.append_events("gpu 1", 0, b"ONE\ntwo\n")
    assert run.folder.events("gpu 1").read_bytes() == b"one\ntwo\nthree\n"


def test_a_copy_that_cannot_be_read_is_no_bug(archive: Archive, document):
    """What is here already is compared with what comes again; that the file cannot be read is said, with its path."""
    run = archive.create("r1", document(), {})
    run.append_events("gpu1", 0, b"one\n")
    journal = run.folder.events("gpu1")
    journal.unlink()
    journal.mkdir()
    with pytest.raises(
        ArchiveUnreadable, match=f"^{re.escape(str(journal))}: cannot be read: is no plain file$"
    ):
        run.append_events("gpu1", 0, b"one\ntwo\n")
    with pytest.raises(ArchiveUnreadable, match=r"is no plain file$"):
        run.journal_end("gpu1", 64)
    journal.rmdir()
    assert run.journal_end("gpu1", 64) == b""
    run.append_events("gpu1", 0, b"one\ntwo\n")
    assert run.journal_end("gpu1", 4) == b"two\n"


def test_the_first_of_two_hosts_stays_the_result_when_the_folder_is_read_again(
    archive: Archive, document, line
):
    run = archive.create("r1", document(), {})
    late, early = line(reason="late"), line(reason="early")
    run.append_events("a-late", 0, late[:30])
    run.append_events("z-early", 0, early)
    run.append_events("a-late", 30, late[30:])
    fold = fold_run(run.folder, run.document())
    assert [(m.host, m.reason) for m in run.measurements(fold)] == [("z-early", "early")]
    assert fold.hosts["a-late"].superseded == 1


def test_files_of_a_host_are_kept_in_their_place_only(archive: Archive, document):
    run = archive.create("r1", document(), {})
    assert run.save_file("gpu1", "logs/w0.log", [b"a", b"b"]).read_bytes() == b"ab"
    run.save_file("gpu1", "collected/c1/torch/out.csv", [b"1"])
    assert (run.folder.collected("gpu1") / "c1/torch/out.csv").is_file()
    for bad in ("logs/../../../x", "/etc/passwd", "run.json", "logs", "", "logs/a\0b"):
        with pytest.raises(ArchiveError):
            run.save_file("gpu1", bad, [b""])


def test_the_document_is_updated_key_by_key(archive: Archive, document):
    run = archive.create("r1", document(), {})
    run.update_run_document(
        {"hosts": {"gpu2": {"state": "unreachable", "error": "no route"}}, "note": {"a": 1}}
    )
    now = run.document()
    assert now.hosts["gpu1"].state == "ok"
    assert now.hosts["gpu2"].error == "no route"
    assert now.as_json()["note"] == {"a": 1}


def test_committing_moves_the_run_with_its_results(archive: Archive, document, line, measurement):
    run = archive.create("r1", document(), {})
    text = "x\u2028y\u0085z é 😀 \0 \x1b[31m"
    run.append_events(
        "gpu1", 0, line(backend="cutlass", extra={"s": text}, params={"m": 2**53 + 1, "f": 1.0})
    )
    run.append_events("gpu1", run.journal_size("gpu1"), line(backend="torch"))
    lost = measurement(
        case_id="c2", status="lost", verdict=None, timing=None, samples_us=None, device=None, row={}
    )
    fold = fold_run(run.folder, run.document())
    done = run.commit([*run.measurements(fold), lost], "finished", ended_at=END)

    assert done.path == archive.path / "runs" / "r1"
    assert list((archive.path / "open").iterdir()) == []
    assert archive.state(done) == "finished"
    closed = read_document(done.run_json)
    assert (closed.counts, closed.verdicts, closed.ended_at) == ({"ok": 2, "lost": 1}, {"valid": 2}, END)
    back = list(read_results(done))
    assert [m.backend for m in back] == ["torch", "cutlass", "torch"]
    assert back[1].extra == {"s": text}
    assert [json.loads(row) for row in done.results_jsonl.read_bytes().splitlines()][1]["params"][
        "m"
    ] == 2**53 + 1

    with duckdb.connect() as connection:
        relation = connection.read_parquet(str(done.results_parquet))
        assert dict(zip(relation.columns, map(str, relation.types), strict=True)).keys() == COLUMNS.keys()
        rows = relation.project(
            "backend, timing.median_us, params, started_at, samples_us, device.name, json_extract_string(extra, 's')"
        ).fetchall()
    assert rows[1][:3] == ("cutlass", 12.5, '{"m":9007199254740993,"f":1.0}')
    assert str(rows[1][3]) == "2025-01-02 03:04:05.250000"
    assert rows[1][4:] == ([12.0, 13.0], "B200", text)
    assert rows[2][1] is None


def test_a_committed_run_cannot_be_changed(archive: Archive, document):
    run = archive.create("r1", document(), {})
    run.commit([], "cancelled", ended_at=END)
    for change in (
        lambda: run.append_events("gpu1", 0, b"x"),
        lambda: run.update_run_document({"state": "lost"}),
        lambda: run.commit([], "finished", ended_at=END),
        lambda: archive.open_run("r1"),
        lambda: archive.create("r1", document(), {}),
    ):
        with pytest.raises(ArchiveError):
            change()
    assert run.folder.results_jsonl.read_bytes() == b""


def test_the_columns_are_those_of_the_record():
    assert list(COLUMNS) == list(Measurement.model_fields)


def test_finding_runs(archive: Archive, document):
    with pytest.raises(ArchiveError, match="no run in the archive"):
        archive.find("latest")
    for run_id in ("20250102T030405Z-aaaaaa", "20250102T030405Z-aabbbb", "20250103T000000Z-cccccc"):
        archive.create(run_id, document(), {}).close()
    assert archive.find("latest").run_id == "20250103T000000Z-cccccc"
    assert archive.find("20250102T030405Z-aab").run_id == "20250102T030405Z-aabbbb"
    assert [r.run_id[-6:] for r in archive.runs()] == ["cccccc", "aabbbb", "aaaaaa"]
    with pytest.raises(ArchiveError, match=r"beginning of 2 runs:\n.*aabbbb  fp4\n.*aaaaaa  fp4"):
        archive.find("20250102")
    with pytest.raises(ArchiveError, match="no run 'nope'"):
        archive.find("nope")
    with pytest.raises(ArchiveError):
        archive.find("")


def test_an_exact_id_wins_over_longer_ones(archive: Archive, document):
    for run_id in ("r1", "r12"):
        archive.create(run_id, document(), {}).close()
    assert archive.find("r1").run_id == "r1"


def test_what_is_no_run_is_told_apart(archive: Archive, document):
    archive.create("r1", document(), {}).commit([], "finished", ended_at=END)
    (archive.path / "runs" / "holiday photos").mkdir()
    (archive.path / "runs" / ".DS_Store").touch()
    (archive.path / "open" / "half").mkdir()
    runs, strays = archive.scan()
    assert [r.run_id for r in runs] == ["r1"]
    assert [p.name for p in strays] == ["half", "holiday photos"]


def test_damage_is_named(archive: Archive, document, measurement):
    done = archive.create("r1", document(), {}).commit([measurement()], "finished", ended_at=END)
    whole = done.results_jsonl.read_bytes()
    done.results_jsonl.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArchiveError, match=r"results.jsonl:1: is damaged"):
        list(read_results(done))
    done.run_json.write_text('{"schema_version": 1,')
    with pytest.raises(ArchiveError, match=r"run.json: is damaged"):
        read_document(done.run_json)
    done.run_json.write_text('{"schema_version": 9, "run_id": "r1", "sweep": {"name": "x"}}')
    with pytest.raises(ArchiveError, match="newer farbench"):
        read_document(done.run_json)


def test_modes_follow_the_umask_but_nothing_is_world_writable(archive: Archive, document, measurement):
    before = os.umask(0)
    try:
        run = archive.create("r1", document(), {"a/b.py": b""})
        run.append_events("gpu1", 0, b"x\n")
        run.save_file("gpu1", "logs/w", [b""])
        run.commit([measurement()], "finished", ended_at=END)
    finally:
        os.umask(before)
    modes = {p: stat.S_IMODE(p.stat().st_mode) for p in (archive.path, *archive.path.rglob("*"))}
    assert len(modes) > 10
    assert {p.name for p, mode in modes.items() if mode & stat.S_IWOTH} == set()


def test_an_archive_that_is_a_file_is_refused(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ArchiveError):
        Archive(tmp_path / "file").runs()
    assert Archive(tmp_path / "nothing").runs() == []


def test_many_readers_asking_never_keep_the_coordinator_out(archive: Archive, document):
    archive.create("r1", document(), {}).close()
    code = (
        "import sys\nfrom orchestrator.archive import RunFolder, Archive\nfrom pathlib import Path\n"
        "a = Archive(sys.argv[1]); f = a.find('r1'); print('ready', flush=True)\n"
        "while True: a.state(f)"
    )
    readers = [
        subprocess.Popen([sys.executable, "-c", code, str(archive.path)], stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    try:
        for reader in readers:
            assert reader.stdout.readline() == b"ready\n"
        for _ in range(20):
            run = archive.open_run("r1")
            assert run.lock() is True
            run.close()
    finally:
        for reader in readers:
            reader.kill()
            reader.wait()
            reader.stdout.close()


def test_reading_leaves_no_trace(archive: Archive, document, line, measurement):
    archive.create("r1", document(), {}).commit([measurement()], "finished", ended_at=END)
    run = archive.create("r2", document(), {})
    run.append_events("gpu1", 0, line("r2"))
    run.close()
    run.folder.lock.unlink()  # an archive that was copied without it

    def tree() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in archive.path.rglob("*")}

    before = tree()
    assert [archive.state(folder) for folder in archive.runs()] == ["detached", "finished"]
    assert query(archive, "SELECT count(*) FROM results").rows == [(2,)]
    assert [len(build(archive, folder).measurements) for folder in archive.runs()] == [1, 1]
    assert tree() == before


def test_the_run_folder_of_a_path_names_its_run(tmp_path: Path):
    assert RunFolder(tmp_path / "runs" / "abc").run_id == "abc"


def test_a_place_that_cannot_be_written_is_named(archive: Archive, document):
    run = archive.create("r1", document(), {})
    (run.folder.path / "hosts").write_text("a file where a folder should be")
    with pytest.raises(ArchiveError, match=r"events.jsonl could not be written: "):
        run.append_events("gpu1", 0, b"x\n")
    (run.folder.path / "results.jsonl").mkdir()
    with pytest.raises(ArchiveError, match=r"r1.* could not be written: "):
        run.commit([], "finished", ended_at=END)
    assert not run.folder.is_committed


def test_runs_of_one_second_sort_as_they_began(archive: Archive, document):
    """`latest` is the one that began last, whatever was drawn for the others."""
    begun = []
    for drawn in ("ffff00", "000001", "abcdef"):
        run_id = archive.next_id(lambda: 1735787045.9, lambda n, drawn=drawn: bytes.fromhex(drawn))
        archive.create(run_id, document(), {})
        begun.append(run_id)
        assert archive.find("latest").run_id == run_id
    assert begun == sorted(begun)
    assert {run_id[:17] for run_id in begun} == {"20250102T030405Z-"}
    assert begun[0] == "20250102T030405Z-ffff00"
