"""A run that is exported and imported is the same run; nothing that is not is taken."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from orchestrator.archive import Archive, read_results
from orchestrator.archive.bundle import export_run
from orchestrator.archive.notes import annotate, read_notes
from orchestrator.archive.query import query
from orchestrator.archive.unbundle import import_run
from orchestrator.errors import ArchiveError, FileError
from tests.exchange.conftest import contents

LONG = "collected/gpu1/" + "é" * 80 + "/" + "x" * 120 + ".csv"


@pytest.fixture
def bundle(archive: Archive, commit, tmp_path: Path) -> Path:
    run = commit(
        archive, "20250102T030405Z-abcdef", {"log_tail": "a\u2028b\x1b[0m" + "z" * 2**20}, {"backend": "b"}
    )
    kept = run.path / LONG
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"1,2\n")
    annotate(archive, run.run_id, note="driver 580 [x]", add=["golden"])
    export_run(archive, run, tmp_path / "out" / "run.tar.zst")
    return tmp_path / "out" / "run.tar.zst"


def test_the_run_comes_back_byte_for_byte(archive: Archive, elsewhere: Archive, bundle: Path):
    before = archive.find("latest")
    taken = import_run(elsewhere, bundle)
    assert not taken.already_here
    assert elsewhere.find("latest").path == taken.folder.path == elsewhere.path / "runs" / before.run_id
    assert contents(taken.folder.path) == contents(before.path)
    assert LONG in contents(taken.folder.path)
    assert next(m.log_tail for m in read_results(taken.folder)) == "a\u2028b\x1b[0m" + "z" * 2**20
    said = read_notes(elsewhere, before.run_id)
    assert (said.note, said.tags) == ("driver 580 [x]", ("golden",))
    sql = "select params->>'m', length(log_tail), backend from results order by backend desc"
    assert (
        query(elsewhere, sql).rows
        == query(archive, sql).rows
        == [(str(2**53 + 1), 2**20 + 7, "torch"), (str(2**53 + 1), None, "b")]
    )
    assert list((elsewhere.path / ".moving").iterdir()) == []


def test_the_same_run_gives_the_same_bytes(
    archive: Archive, elsewhere: Archive, bundle: Path, tmp_path: Path
):
    export_run(archive, archive.find("latest"), tmp_path / "again.tar.zst")
    assert (tmp_path / "again.tar.zst").read_bytes() == bundle.read_bytes()
    import_run(elsewhere, bundle)
    export_run(elsewhere, elsewhere.find("latest"), tmp_path / "there.tar.zst")
    assert (tmp_path / "there.tar.zst").read_bytes() == bundle.read_bytes()


def test_the_usual_tools_can_read_it(bundle: Path, tmp_path: Path):
    subprocess.run(["tar", "--zstd", "-xf", str(bundle), "-C", str(tmp_path)], check=True)
    assert (tmp_path / "run" / LONG).read_bytes() == b"1,2\n"
    assert (tmp_path / "run" / "scripts" / "gemm.py").read_bytes() == b"print(1)\n"


def test_importing_again_changes_nothing(elsewhere: Archive, bundle: Path):
    import_run(elsewhere, bundle)
    annotate(elsewhere, "20250102T030405Z-abcdef", note="my own", remove=["golden"])
    before = contents(elsewhere.path)
    assert import_run(elsewhere, bundle).already_here
    assert contents(elsewhere.path) == before


def test_another_run_by_that_id_is_left_alone(elsewhere: Archive, bundle: Path, commit):
    commit(elsewhere, "20250102T030405Z-abcdef", {"status": "crashed", "verdict": None, "timing": None})
    before = contents(elsewhere.path)
    with pytest.raises(ArchiveError, match=r"another run 20250102T030405Z-abcdef .* files differ"):
        import_run(elsewhere, bundle)
    assert contents(elsewhere.path) == before


def test_an_open_run_by_that_id_is_left_alone(elsewhere: Archive, bundle: Path):
    with (
        elsewhere.create("20250102T030405Z-abcdef", {"sweep": {"name": "x"}}, {}),
        pytest.raises(ArchiveError, match="already"),
    ):
        import_run(elsewhere, bundle)


def test_an_open_run_is_not_exported(archive: Archive, farbench):
    archive.create("r1", {"sweep": {"name": "x"}}, {}).close()
    done = farbench("export", "r1")
    assert done.code == 2
    assert "r1 is still open" in done.stderr
    assert "farbench attach" in done.stderr


def test_what_a_killed_write_left_is_not_exported(
    archive: Archive, elsewhere: Archive, commit, tmp_path: Path
):
    run = commit(archive, "r1")
    (run.path / ".results.parquet.tmp").write_bytes(b"half")
    (run.path / "scripts" / ".config").write_bytes(b"whole")
    (run.path / "scripts" / "link").symlink_to("/etc/hostname")
    export_run(archive, run, tmp_path / "x.tar.zst")
    names = contents(import_run(elsewhere, tmp_path / "x.tar.zst").folder.path)
    assert "scripts/.config" in names
    assert not {".results.parquet.tmp", "scripts/link"} & names.keys()


def test_the_commands(archive: Archive, elsewhere: Archive, farbench, commit, tmp_path: Path):
    commit(archive, "20250102T030405Z-abcdef")
    done = farbench("export", "latest")
    assert (done.code, done.stdout) == (0, "")
    assert "wrote 20250102T030405Z-abcdef.tar.zst" in done.stderr
    file = tmp_path / "20250102T030405Z-abcdef.tar.zst"
    done = farbench("import", file, archive=elsewhere)
    assert (done.code, done.stdout) == (0, "20250102T030405Z-abcdef\n")
    done = farbench("import", file, "--json", archive=elsewhere)
    assert done.json() == {"run_id": "20250102T030405Z-abcdef", "format": "farbench", "already_here": True}
    here, there = (
        farbench("report", "--format", "csv"),
        farbench("report", "--format", "csv", archive=elsewhere),
    )
    assert here.stdout == there.stdout != ""
    done = farbench("import", file, "--device", "B200", archive=elsewhere)
    assert done.code == 2
    assert "says that itself: --device" in done.stderr
    done = farbench("import", tmp_path / "nowhere")
    assert (done.code, "No such file" in done.stderr) == (2, True)


def test_where_nothing_can_be_written_it_is_said(archive: Archive, bundle: Path, tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="cannot be written"):
        export_run(archive, archive.find("latest"), tmp_path / "file" / "x.tar.zst")
    with pytest.raises(FileError, match="cannot be written: No such file"):
        export_run(archive, archive.find("latest"), Path("/proc/none/x.tar.zst"))
    with pytest.raises(ArchiveError, match="nothing can be written"):
        import_run(Archive(tmp_path / "file"), bundle)
