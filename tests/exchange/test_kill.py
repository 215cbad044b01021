"""kill -9 at random moments of importing: the archive opens, and has each run whole or not at all."""

from __future__ import annotations

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pytest

from orchestrator.archive import Archive, read_document, read_results
from orchestrator.archive.bundle import export_run
from orchestrator.archive.query import query
from orchestrator.archive.unbundle import import_run
from tests.exchange.conftest import ROOT, contents

KILLS = 50
ROWS = 300
# Starting Python takes longer than an import: one process forks a child for each kill, before it uses any thread.
PARENT = """
import os, signal, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import duckdb, zstandard
from orchestrator.archive import Archive, columns
from orchestrator.archive.unbundle import import_run
from orchestrator.importers.land import import_file
from orchestrator.importers.measurements import Said
from orchestrator.importers.source import Source

archive, sent = Archive(sys.argv[1]), Path(sys.argv[2])
for line in sys.stdin:
    number, delay = int(line.split()[0]), float(line.split()[1])
    child = os.fork()
    if not child:
        if number % 2:
            source = Source.read(sent / f"{number}.csv")
            import_file(archive, source, "triton-csv", Said(device="B200"), clock=time.time)
        else:
            import_run(archive, sent / f"{number}.tar.zst")
        os._exit(0)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    print("killed" if os.WIFSIGNALED(status) else os.WEXITSTATUS(status), flush=True)
"""


@pytest.mark.timeout(240)
def test_kill_nine_at_fifty_random_moments(archive: Archive, elsewhere: Archive, commit, tmp_path: Path):
    sent = tmp_path / "sent"
    sent.mkdir()
    table = "n,A (ms),B (ms)\n" + "".join(f"{i},1.5,2.5\n" for i in range(ROWS // 2))
    for number in range(KILLS):
        if number % 2:
            (sent / f"{number}.csv").write_text(table)
        else:
            run = commit(
                elsewhere,
                f"r{number:03}",
                *({"case_id": f"c{i}", "samples_us": [1.5] * 40} for i in range(ROWS)),
            )
            export_run(elsewhere, run, sent / f"{number}.tar.zst")
    chance = random.Random(11)
    ended = []
    longest = [
        0.08,
        0.25,
    ]  # seconds, of either kind: shorter after one that came too late, so that most hit on any machine
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(archive.path), str(sent)], cwd=ROOT,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        for number in range(KILLS):
            parent.stdin.write(f"{number} {chance.uniform(0, longest[number % 2]):.4f}\n")
            parent.stdin.flush()
            ended.append(parent.stdout.readline().strip())
            longest[number % 2] *= 1.15 if ended[-1] == "killed" else 0.7
    finally:
        parent.stdin.close()
        parent.wait()
        parent.stdout.close()

    assert ended.count("killed") + ended.count("0") == KILLS
    assert ended.count("killed") > KILLS // 3
    runs, strays = archive.scan()
    assert strays == []
    for folder in runs:
        assert folder.is_committed
        assert len(list(read_results(folder))) == sum(read_document(folder.run_json).counts.values()) == ROWS
        assert duckdb.read_parquet(str(folder.results_parquet)).shape[0] == ROWS
        if folder.run_id.startswith("r"):
            assert contents(folder.path) == contents(elsewhere.path / "runs" / folder.run_id)
    answer = query(archive, "select count(distinct run_id), count(*) from results")
    assert (answer.rows, answer.warnings) == ([(len(runs), len(runs) * ROWS)], [])


def test_what_was_interrupted_can_be_done_again(
    archive: Archive, elsewhere: Archive, commit, farbench, tmp_path: Path
):
    export_run(elsewhere, commit(elsewhere, "r1"), tmp_path / "r1.tar.zst")
    left = archive.path / ".moving" / "tmpabc" / "runs" / "r1"
    left.mkdir(parents=True)
    (left / "run.json").write_text("half")
    (left.parent.parent / "lock").touch()
    assert farbench("import", tmp_path / "r1.tar.zst").code == 0
    assert contents(archive.find("r1").path) == contents(elsewhere.find("r1").path)
    assert list((archive.path / ".moving").iterdir()) == []


def test_many_imports_at_once(archive: Archive, elsewhere: Archive, commit, tmp_path: Path):
    """Each sweeps what killed ones left, and none sweeps the others away."""
    for number in range(24):
        export_run(elsewhere, commit(elsewhere, f"r{number:02}"), tmp_path / f"{number}.tar.zst")
    with ThreadPoolExecutor(8) as pool:
        taken = list(
            pool.map(lambda number: import_run(archive, tmp_path / f"{number % 24}.tar.zst"), range(24))
        )
    assert len({one.folder.run_id for one in taken}) == len(archive.runs()) == 24
    assert list((archive.path / ".moving").iterdir()) == []
