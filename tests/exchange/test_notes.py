"""Notes and tags: beside the runs, seen by everything that lists them, harmless whatever they say."""

from __future__ import annotations

import threading

import pytest

from orchestrator.archive import Archive
from orchestrator.archive.notes import annotate, path_of, read_notes, with_tag
from orchestrator.archive.query import query
from orchestrator.errors import ArchiveError, UsageError
from tests.exchange.conftest import contents

HOSTILE = "</script><img src=x onerror=alert(1)> [bold]x[/] \x1b[31m \u2028 é"


def test_a_note_and_tags_come_and_go(archive: Archive, commit):
    run = commit(archive, "r1")
    before = contents(run.path)
    annotate(archive, "r1", note="  first  ", add=["b", "a", "b"])
    assert (read_notes(archive, "r1").note, read_notes(archive, "r1").tags) == ("first", ("a", "b"))
    annotate(archive, "r1", add=["c"], remove=["a", "nothing"])
    assert (read_notes(archive, "r1").note, read_notes(archive, "r1").tags) == ("first", ("b", "c"))
    annotate(archive, "r1", note="", remove=["b", "c"])
    assert not path_of(archive, "r1").exists()
    assert contents(run.path) == before


@pytest.mark.parametrize("tag", ["", "a b", "-x", "é", "a/b", "x" * 65, "a\n"])
def test_what_cannot_be_a_tag(archive: Archive, commit, tag: str):
    commit(archive, "r1")
    with pytest.raises(UsageError, match="cannot be a tag"):
        annotate(archive, "r1", add=[tag])
    assert read_notes(archive, "r1").tags == ()


def test_a_note_has_an_end(archive: Archive, commit):
    commit(archive, "r1")
    with pytest.raises(UsageError, match="64 KiB at most"):
        annotate(archive, "r1", note="x" * 65537)


def test_runs_with_a_tag(archive: Archive, commit):
    for run_id, tags in (("r1", ["a"]), ("r2", ["b"]), ("r3", ["a", "b"])):
        commit(archive, run_id)
        annotate(archive, run_id, add=tags)
    path_of(archive, "r2").write_text("{")
    assert with_tag(archive, "a") == ["r3", "r1"]
    assert with_tag(archive, "b") == ["r3"]


def test_two_at_once_lose_nothing(archive: Archive, commit):
    commit(archive, "r1")
    threads = [
        threading.Thread(target=annotate, args=(archive, "r1"), kwargs={"add": [f"t{i}"]}) for i in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_notes(archive, "r1").tags) == 12


def test_the_commands_show_them_and_show_them_inert(archive: Archive, commit, farbench):
    commit(archive, "20250101T000000Z-aaaaaa")
    commit(archive, "20250102T000000Z-bbbbbb")
    done = farbench("runs", "20250101", "--note", HOSTILE, "--add-tag", "golden", "--add-tag", "h200")
    assert done.code == 0, done.stderr
    assert "#golden #h200 </script><img src=x onerror=alert(1)> [bold]x[/]" in " ".join(done.stdout.split())
    assert "\x1b[31m" not in done.stdout
    assert "\u2028" not in done.stdout
    assert "bbbbbb" not in done.stdout
    listed = farbench("runs", "--json").json()["runs"]
    assert [(run.get("tags"), run.get("note")) for run in listed] == [
        (None, None),
        (["golden", "h200"], HOSTILE),
    ]
    assert [run["run_id"][-6:] for run in farbench("runs", "--tag", "h200", "--json").json()["runs"]] == [
        "aaaaaa"
    ]
    rows = query(archive, "select run_id, tags, note from runs where list_contains(tags, 'golden')").rows
    assert rows == [("20250101T000000Z-aaaaaa", ["golden", "h200"], HOSTILE)]
    assert farbench("runs", "--note", "whose?").code == 2


def test_a_damaged_note_is_named_and_harms_no_run(archive: Archive, commit, farbench):
    commit(archive, "r1")
    path_of(archive, "r1").parent.mkdir(exist_ok=True)
    path_of(archive, "r1").write_text('{"tags": 7}')
    with pytest.raises(ArchiveError, match=r"notes/r1\.json: are no notes"):
        read_notes(archive, "r1")
    done = farbench("runs", "--json")
    assert [run["run_id"] for run in done.json()["runs"]] == ["r1"]
    assert "notes/r1.json" in done.stderr
    table = query(archive, "select count(*) from results")
    assert (table.rows, len(table.warnings)) == ([(1,)], 1)
    path_of(archive, "r1").write_text('{"schema_version": 2}')
    with pytest.raises(ArchiveError, match="newer farbench"):
        read_notes(archive, "r1")


def test_an_archive_that_is_no_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ArchiveError, match="cannot be written"):
        annotate(Archive(tmp_path / "file"), "r1", note="x")
