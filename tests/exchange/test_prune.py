"""Runs are removed by rules that are said first; what is open or tagged stays."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime

import pytest

from orchestrator.archive import Archive
from orchestrator.archive.notes import annotate, path_of
from orchestrator.archive.prune import Rules, choose, remove
from orchestrator.errors import ArchiveError, UsageError

NOW = datetime(2025, 6, 1, tzinfo=UTC)


@pytest.fixture
def four(archive: Archive, commit) -> Archive:
    """r1 and r2 are old, r2 was cancelled, r3 is new, r4 is open."""
    commit(archive, "r1", started_at="2025-01-01T00:00:00Z")
    commit(archive, "r2", state="cancelled", started_at="2025-02-01T12:00:00+02:00")
    commit(archive, "r3", started_at="2025-05-31T00:00:00Z")
    archive.create("r4", {"sweep": {"name": "x"}, "started_at": "2025-01-01T00:00:00Z"}, {}).close()
    return archive


@pytest.mark.parametrize(
    ("rules", "goes"),
    [
        (Rules(older_than_days=100), ["r2", "r1"]),
        (Rules(older_than_days=130), ["r1"]),
        (Rules(keep=2), ["r1"]),
        (Rules(keep=0), ["r3", "r2", "r1"]),
        (Rules(states=["cancelled", "lost"]), ["r2"]),
        (Rules(older_than_days=100, keep=1, states=["finished"]), ["r1"]),
        (Rules(runs=["r3", "r1"]), ["r3", "r1"]),
        (Rules(runs=["r3", "r1"], older_than_days=100), ["r1"]),
    ],
)
def test_every_rule_given_must_apply(four: Archive, rules: Rules, goes: list[str]):
    assert [c.folder.run_id for c in choose(four, rules, NOW).candidates] == goes


def test_what_stays_says_why(four: Archive):
    annotate(four, "r1", add=["golden"])
    choice = choose(four, Rules(runs=["r1", "r2", "r4"]), NOW)
    assert [c.folder.run_id for c in choice.candidates] == ["r2"]
    assert choice.spared == ("r4 is open: cancel or resume it first", "r1 is tagged golden: it stays")
    everything = choose(four, Rules(keep=0, tagged_too=True), NOW)
    assert [c.folder.run_id for c in everything.candidates] == ["r3", "r2", "r1"]


def test_a_run_that_cannot_be_read_or_dated_stays(four: Archive, commit):
    commit(four, "r0", started_at=None)
    four.find("r1").run_json.write_text("{")
    choice = choose(four, Rules(older_than_days=1), NOW)
    assert [c.folder.run_id for c in choice.candidates] == ["r3", "r2"]
    assert "r1 stays" in choice.spared[0]


def test_no_rule_removes_nothing(four: Archive):
    with pytest.raises(UsageError, match="say which runs"):
        choose(four, Rules(), NOW)
    with pytest.raises(ArchiveError, match="no run 'r9'"):
        choose(four, Rules(runs=["r9"]), NOW)


def test_a_state_that_there_is_not_is_a_mistake_and_no_empty_answer(four: Archive):
    with pytest.raises(
        UsageError, match=r"--state canceled: .*did you mean 'cancelled'\?.*finished, cancelled, lost"
    ):
        choose(four, Rules(keep=0, states=["lost", "canceled"]), NOW)
    with pytest.raises(UsageError, match="open runs are never removed"):
        choose(four, Rules(states=["running"]), NOW)


def test_removed_runs_are_gone_with_their_notes(four: Archive):
    annotate(four, "r1", note="x")
    choice = choose(four, Rules(older_than_days=100), NOW)
    assert remove(four, choice.candidates) == 2
    assert [run.run_id for run in four.runs()] == ["r4", "r3"]
    assert not path_of(four, "r1").exists()
    assert remove(four, choice.candidates) == 0  # somebody else did it
    assert list((four.path / ".moving").iterdir()) == []


def test_the_command_says_first_and_asks_for_yes(four: Archive, farbench):
    done = farbench("runs", "--prune", "--keep", "1")
    assert done.code == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["r2", "r1"]
    assert "2 would go" in done.stderr
    assert "--yes" in done.stderr
    assert len(four.runs()) == 4
    done = farbench("runs", "--prune", "r1", "--yes", "--json")
    assert [run["run_id"] for run in done.json()["runs"]] == ["r1"]
    assert [run.run_id for run in four.runs()] == ["r4", "r3", "r2"]
    done = farbench("runs", "--keep", "1")
    assert (done.code, len(four.runs())) == (2, 3)
    assert farbench("runs", "--prune").code == 2


def test_what_a_killed_command_left_is_swept(four: Archive):
    left = four.path / ".moving" / "tmpabc"
    (left / "runs" / "r9").mkdir(parents=True)
    (left / "lock").touch()
    beginning = four.path / ".moving" / "tmpnew"  # another command that has not taken its lock yet
    beginning.mkdir()
    remove(four, choose(four, Rules(runs=["r2"]), NOW).candidates)
    assert [p.name for p in (four.path / ".moving").iterdir()] == ["tmpnew"]
    shutil.rmtree(beginning)
