from __future__ import annotations

import json

from orchestrator.archive import Archive
from orchestrator.report import list_runs, runs_table, to_text

END = "2025-01-02T04:00:00Z"


def test_runs_are_listed_newest_first_with_their_counts(archive: Archive, document, ok, bad):
    archive.create("20250101T000000Z-aaaaaa", document(), {}).commit(
        [ok("c1", "torch", 1.0), bad("c2", "torch", "error", "x")], "finished", ended_at=END
    )
    run = archive.create("20250102T000000Z-bbbbbb", document(sweep={"name": "[bold]x\x1b"}), {})
    measurement = ok("c1", "torch", 1.0, run_id=run.run_id).model_dump(mode="json")
    run.append_events(
        "blackwell", 0, json.dumps({"type": "measurement", "measurement": measurement}).encode() + b"\n"
    )
    (archive.path / "runs" / "junk").mkdir()

    listing = list_runs(archive)
    assert listing.as_json() == {
        "runs": [
            {
                "run_id": "20250102T000000Z-bbbbbb", "sweep": "[bold]x\x1b", "state": "running",
                "started_at": "2025-01-02T03:04:05Z", "counts": {"ok": 1},
            },
            {
                "run_id": "20250101T000000Z-aaaaaa", "sweep": "fp4-gemm-glm5", "state": "finished",
                "started_at": "2025-01-02T03:04:05Z", "counts": {"ok": 1, "error": 1},
            },
        ]
    }  # fmt: skip
    assert [w.endswith("junk is no run") for w in listing.warnings] == [True]
    text = to_text(runs_table(listing))
    assert "1 of 6: 1 ok" in text
    assert "2: 1 ok, 1 error" in text
    assert r"[bold]x\x1b" in text
    run.close()
    assert list_runs(archive).runs[0].state == "detached"


def test_a_damaged_run_does_not_end_the_list(archive: Archive, document):
    for run_id in ("r1", "r2"):
        archive.create(run_id, document(), {}).commit([], "cancelled", ended_at=END)
    archive.find("r2").run_json.write_text("{")
    listing = list_runs(archive)
    assert [run.run_id for run in listing.runs] == ["r1"]
    assert "r2/run.json: is damaged" in listing.warnings[0]


def test_an_empty_archive(archive: Archive):
    assert list_runs(archive).as_json() == {"runs": []}


def test_an_open_run_of_which_it_is_not_known_how_much_is_to_come(archive: Archive, document):
    plan = {**document().plan.model_dump(mode="json"), "expected": None}
    archive.create("r1", document(plan=plan), {}).close()
    assert to_text(runs_table(list_runs(archive))).splitlines()[-1].split()[-1] == "0"
