"""A commit that is killed at any moment leaves the run open with all its journals, or committed whole."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time

import duckdb
import pytest

from orchestrator.archive import Archive, fold_run, read_document, read_results
from orchestrator.model import Status

MEASUREMENTS = 150
COMMITTER = """
import json, sys
from orchestrator.archive import Archive, fold_run

archive, start = Archive(sys.argv[1]), int(sys.argv[2])
document, journal = json.load(open(sys.argv[3])), open(sys.argv[4], "rb").read()
for number in range(start, start + 1000):
    run_id = f"r{number:05}"
    run = archive.create(run_id, document, {"a.py": b"x"})
    run.append_events("gpu1", 0, journal.replace(b"RUNID", run_id.encode()))
    fold = fold_run(run.folder, run.document())
    assert len(fold.entries) == MEASUREMENTS
    print(run_id, flush=True)
    run.commit(run.measurements(fold), "finished", ended_at="2025-01-02T04:00:00Z")
"""


@pytest.mark.timeout(300)
def test_kill_nine_at_random_moments(archive: Archive, document, line, tmp_path):
    (tmp_path / "document.json").write_text(json.dumps(document()))
    journal = b"".join(line("RUNID", case_id=f"c{i}", samples_us=[1.5] * 200) for i in range(MEASUREMENTS))
    (tmp_path / "journal").write_bytes(journal)
    chance = random.Random(7)
    left_open = 0
    committing: set[str] = set()  # runs whose journal was here before the kill
    for attempt in range(16):
        committer = subprocess.Popen(
            [
                sys.executable, "-c", COMMITTER.replace("MEASUREMENTS", str(MEASUREMENTS)),
                str(archive.path), str(attempt * 1000), str(tmp_path / "document.json"), str(tmp_path / "journal"),
            ],
            stdout=subprocess.PIPE,
        )  # fmt: skip
        first = committer.stdout.readline().decode().strip()
        assert first
        committing.add(first)
        time.sleep(chance.uniform(0, 0.35))  # anywhere in the first commits
        committer.kill()
        committer.wait()
        committing |= set(committer.stdout.read().decode().split())
        committer.stdout.close()

        for folder in archive.runs():
            if folder.is_committed:
                continue
            left_open += 1
            assert archive.state(folder) == "detached"
            run = archive.open_run(folder.run_id)
            assert run.lock()
            fold = fold_run(run.folder, run.document())
            if run.run_id in committing:
                assert len(fold.entries) == MEASUREMENTS
            run.commit(run.measurements(fold), "finished", ended_at="2025-01-02T05:00:00Z")

    assert left_open > 0
    runs, strays = archive.scan()
    assert strays == []
    with duckdb.connect() as connection:
        for folder in runs:
            closed = read_document(folder.run_json)
            expected = sum(closed.counts.values())
            assert expected == MEASUREMENTS or folder.run_id not in committing
            assert [m.status for m in read_results(folder)] == [Status.OK] * expected
            assert connection.read_parquet(str(folder.results_parquet)).shape[0] == expected
            assert sorted(p.name for p in folder.path.iterdir() if p.name.startswith(".")) == []
