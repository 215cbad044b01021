"""Collecting moves files, so it must never reach through a link that a program left in its folder."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.agent.paths import RunPaths
from orchestrator.agent.script_folder import Folder


def test_files_behind_a_link_stay_where_they_are(tmp_path: Path) -> None:
    data = tmp_path / "datasets"
    (data / "deep").mkdir(parents=True)
    for name in ("a.csv", "deep/b.csv"):
        (data / name).write_text("the user's own")
    run = RunPaths(str(tmp_path), "r1")
    run.make()
    folder = Folder(run, "c1", "bench", attempt=1)
    folder.fill({}, executable=False)
    work = Path(folder.path)
    (work / "out").mkdir()
    (work / "mine.csv").write_text("1")
    (work / "out" / "mine.csv").write_text("2")
    os.symlink(data, work / "data")
    os.symlink(data / "a.csv", work / "linked.csv")

    folder.collect(["*.csv", "data/*.csv", "**/*"])

    kept = Path(run.collected) / "c1" / "bench"
    found = sorted(str(p.relative_to(kept)) for p in Path(run.collected).rglob("*") if p.is_file())
    assert found == ["mine.csv", "out/mine.csv"]
    assert sorted(str(p.relative_to(data)) for p in data.rglob("*") if p.is_file()) == ["a.csv", "deep/b.csv"]
