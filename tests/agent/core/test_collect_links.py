"""Collecting moves files, so it must never reach through a link that a program left in its folder."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

script_folder = importlib.import_module("orchestrator.agent.script_folder")


def test_files_behind_a_link_stay_where_they_are(tmp_path: Path) -> None:
    data = tmp_path / "datasets"
    (data / "deep").mkdir(parents=True)
    for name in ("a.csv", "deep/b.csv"):
        (data / name).write_text("the user's own")
    folder = script_folder.Folder.__new__(script_folder.Folder)
    folder.path = str(tmp_path / "work")
    folder._collected = str(tmp_path / "collected")
    folder._given = {}
    (tmp_path / "work" / "out").mkdir(parents=True)
    (tmp_path / "work" / "mine.csv").write_text("1")
    (tmp_path / "work" / "out" / "mine.csv").write_text("2")
    os.symlink(data, tmp_path / "work" / "data")
    os.symlink(data / "a.csv", tmp_path / "work" / "linked.csv")

    folder.collect(["*.csv", "data/*.csv", "**/*"])

    found = sorted(
        str(p.relative_to(tmp_path / "collected")) for p in (tmp_path / "collected").rglob("*") if p.is_file()
    )
    assert found == ["mine.csv", "out/mine.csv"]
    assert sorted(str(p.relative_to(data)) for p in data.rglob("*") if p.is_file()) == ["a.csv", "deep/b.csv"]
