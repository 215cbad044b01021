"""Archives and bundles of every format that there ever was are kept here, and read as they were meant."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orchestrator.archive import Archive, fold_run, read_document, read_results
from orchestrator.archive.bundle import BUNDLE_VERSION, export_run
from orchestrator.archive.document import DOCUMENT_VERSION
from orchestrator.archive.notes import NOTES_VERSION, read_notes
from orchestrator.archive.query import query
from orchestrator.archive.unbundle import import_run
from orchestrator.model import SCHEMA_VERSION
from orchestrator.report import build, list_runs, render
from tests.exchange.conftest import DATA

DONE, OPEN = "20261129T204949Z-5d6559", "20261130T000000Z-0be001"
TEXT = "[bs=8] \u2028 \x1b[31m é"
VERSIONS = range(1, max(DOCUMENT_VERSION, SCHEMA_VERSION, NOTES_VERSION) + 1)


@pytest.fixture(params=VERSIONS)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Archive:
    """A copy of the archive of a version; a new version needs one in tests/exchange/data before it is released."""
    shutil.copytree(DATA / f"archive-v{request.param}", tmp_path / "kept")
    return Archive(tmp_path / "kept")


def test_its_runs(kept: Archive):
    done, unfinished = kept.find(DONE), kept.find(OPEN)
    assert [m.status.value for m in read_results(done)] == ["ok", "ok", "error"]
    assert [m.params["n"] for m in read_results(done)] == [100, 2**53 + 1, 333]
    assert next(read_results(done)).extra["text"] == TEXT
    document = read_document(unfinished.run_json)
    assert (document.sweep.name, kept.state(unfinished, document)) == ("kept-v1", "detached")
    assert fold_run(unfinished, document).counts().statuses == {"ok": 2}
    assert (read_notes(kept, DONE).note, read_notes(kept, DONE).tags) == ("kept for ever é", ("golden",))


def test_the_list_the_report_and_queries(kept: Archive):
    lines = list_runs(kept)
    assert [(run.run_id, run.state, run.counts) for run in lines.runs] == [
        (OPEN, "detached", {"ok": 2}),
        (DONE, "finished", {"ok": 2, "error": 1}),
    ]
    assert lines.warnings == ()
    text = render(build(kept, kept.find(DONE)), "csv")
    assert isinstance(text, str)
    assert "9007199254740993" in text
    table = query(
        kept,
        "select run_id, status, params->>'n', extra->>'text', timing.timer, len(samples_us) from results order by all",
    )
    assert table.rows == [
        (DONE, "error", "333", TEXT, None, None),
        (DONE, "ok", "100", TEXT, "program", 8),
        (DONE, "ok", "9007199254740993", TEXT, "program", 8),
        (OPEN, "ok", "100", TEXT, "program", 8),
        (OPEN, "ok", "9007199254740993", TEXT, "program", 8),
    ]
    assert table.warnings == []


def test_it_is_exported_and_taken_in(kept: Archive, elsewhere: Archive, tmp_path: Path):
    export_run(kept, kept.find(DONE), tmp_path / "x.tar.zst")
    taken = import_run(elsewhere, tmp_path / "x.tar.zst").folder
    assert list(read_results(taken)) == list(read_results(kept.find(DONE)))


@pytest.mark.parametrize("version", range(1, BUNDLE_VERSION + 1))
def test_its_bundles(elsewhere: Archive, version: int):
    taken = import_run(elsewhere, DATA / f"bundle-v{version}.tar.zst").folder
    assert [m.status.value for m in read_results(taken)] == ["ok", "ok", "error"]
    assert read_notes(elsewhere, DONE).tags == ("golden",)
    assert query(elsewhere, "select count(*) from results").rows == [(3,)]
