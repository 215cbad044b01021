"""Logs and collected files: from hosts while a run is open, from the archive afterwards, live on request."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path

from tests.faults.conftest import Desk
from tests.support.sshd import Sshd
from tests.support.waiting import wait_for

PROGRAM = """
import os, sys, time
name, traces = sys.argv[1], os.environ["TRACES"]
print("hello from", name, flush=True)
with open(f"table-{name}.csv", "wb") as file:
    file.write(b"\\xff\\x00,1\\n" * 100_000)
open("ignored.txt", "w").close()
if name == "b":
    open(os.path.join(traces, "waiting"), "w").close()
    while not os.path.exists(os.path.join(traces, "open")):
        time.sleep(0.02)
    print("gate is open", flush=True)
print('{"median_us": 5.0}')
"""


def script_sweep(desk: Desk) -> None:
    desk.write("bench.py", PROGRAM)
    payload = {"script": "bench.py", "args": ["{{ name }}"], "collect": ["*.csv"]}
    desk.write(
        "sweep.yaml", json.dumps({"name": "s", "payload": payload, "matrix": {"name": ["a", "b", "c"]}})
    )


def test_files_come_home_by_themselves_and_logs_when_asked_for(
    desk: Desk, host: Sshd, tmp_path: Path
) -> None:
    desk.add_host("h1", host)
    script_sweep(desk)
    process, run_id = desk.begin()
    wait_for(lambda: (desk.traces / "waiting").exists(), "the second case")

    so_far = desk.farbench("logs", run_id)
    assert so_far.code == 0, so_far.stderr
    assert [line.split("  ")[1] for line in so_far.stdout.splitlines()] == [
        "hello from a",
        '{"median_us": 5.0}',
        "hello from b",
    ]
    following = desk.start("logs", run_id, "--follow", "--tail", "1")
    assert following.stdout is not None
    assert following.stdout.readline().endswith("  hello from b\n")
    busy = desk.farbench("pull", run_id)
    assert busy.code == 2
    assert "-o DIR" in busy.stderr
    pulled = desk.json("pull", run_id, "-o", str(tmp_path / "pulled"))
    assert {Path(file["path"]).name for file in pulled["files"]} >= {
        "table-a.csv",
        "agent.log",
        "cpu0-001.log",
    }

    desk.open_gate()
    rest, _ = following.communicate(timeout=100)
    assert following.returncode == 0
    assert [line.split("  ")[1] for line in rest.splitlines()] == [
        "gate is open",
        '{"median_us": 5.0}',
        "hello from c",
        '{"median_us": 5.0}',
    ]
    assert desk.end(process)["counts"] == {"ok": 3}
    collected = desk.folder / "archive" / "runs" / run_id / "collected" / "h1"
    found = {path.name: path.read_bytes() for path in collected.rglob("*") if path.is_file()}
    assert found == {f"table-{name}.csv": b"\xff\x00,1\n" * 100_000 for name in "abc"}


def test_pulled_logs_are_read_from_the_archive(desk: Desk, host: Sshd) -> None:
    desk.add_host("h1", host)
    script_sweep(desk)
    process, run_id = desk.begin()
    wait_for(lambda: (desk.traces / "waiting").exists(), "the second case")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    desk.json("pull", run_id)
    desk.open_gate()
    desk.json("attach", run_id)
    host.stop()
    shown = desk.json("logs", run_id, "--tail", "1")
    assert [(log["host"], log["worker"], log["text"]) for log in shown["logs"]] == [
        ("h1", "cpu0-001", "hello from b\n")
    ]
    mistyped = desk.farbench("logs", run_id, "--worker", "cpu0-1")
    assert (mistyped.code, mistyped.stdout) == (0, "")
    assert mistyped.stderr.endswith("nothing was printed by a worker 'cpu0-1'\n")
    nothing = desk.farbench("logs", run_id, "--host", "h2")
    assert nothing.code == 2
    assert "it has: h1" in nothing.stderr


def test_many_files_come_together_and_only_once(desk: Desk, host: Sshd) -> None:
    desk.add_host("h1", host)
    many = "for n in range(60):\n    open(f'{n}.csv', 'w').write('%02d' % n)\nprint('{\"median_us\": 5.0}')\n"
    desk.write("bench.py", many)
    payload = {"script": "bench.py", "collect": ["*.csv"]}
    desk.write("sweep.yaml", json.dumps({"name": "s", "payload": payload, "matrix": {"m": [1]}}))
    done = desk.farbench("run", "sweep.yaml")
    assert done.code == 0, done.stderr
    assert re.search(r"^h1: running: bringing home \d+/60 files$", done.stderr, re.MULTILINE)
    kept = sorted(desk.folder.glob("archive/runs/*/collected/h1/*/bench/*.csv"))
    assert sorted(path.read_text() for path in kept) == [f"{n:02d}" for n in range(60)]

    def pull() -> dict[str, tuple[str, int]]:
        pulled = desk.farbench("pull", "latest", "-o", "files")
        assert pulled.code == 0, pulled.stderr
        assert "h1: bringing home 1/" in pulled.stderr
        found = (desk.folder / "files").rglob("*.csv")
        return {
            path.name: (path.read_text(), path.stat().st_ino) for path in found
        }  # rewritten: another number

    first = pull()
    assert sorted(text for text, _ in first.values()) == [f"{n:02d}" for n in range(60)]
    assert pull() == first
    (there,) = (host.home / "farbench" / "runs").rglob("7.csv")
    there.write_text("xx")
    last = pull()
    assert last.pop("7.csv")[0] == "xx"
    assert last == {name: kept for name, kept in first.items() if name != "7.csv"}


def test_a_file_whose_name_is_no_text_is_told_and_holds_up_nothing(desk: Desk, host: Sshd) -> None:
    desk.add_host("h1", host)
    desk.write(
        "bench.py",
        "for name in (b'bad-\\xff.csv', b'good.csv', 'gut-\\u00e9.csv'.encode()):\n    open(name, 'wb').write(name)\n"
        "print('{\"median_us\": 5.0}')\n",
    )
    payload = {"script": "bench.py", "collect": ["*.csv"]}
    desk.write("sweep.yaml", json.dumps({"name": "s", "payload": payload, "matrix": {"name": ["a"]}}))
    process, run_id = desk.begin()
    done = desk.end(process)
    assert (done["state"], done["counts"], done["hosts"]["h1"]["state"]) == ("finished", {"ok": 1}, "ok")
    told = [line for line in done["said"].splitlines() if "is not brought home" in line]
    assert len(told) == 1
    assert re.search(
        r"^h1: .*collected/\w+/bench/bad-\ufffd\.csv is not brought home: its name there is not UTF-8$",
        told[0],
    )
    collected = desk.folder / "archive" / "runs" / run_id / "collected"
    assert sorted(path.name for path in collected.rglob("*.csv")) == ["good.csv", "gut-é.csv"]
    assert {path.read_text() for path in collected.rglob("*.csv")} == {"good.csv", "gut-é.csv"}
    # Asked for by hand, it is named again, and the rest is brought.
    pulled = desk.farbench("pull", run_id, "-o", "files")
    assert pulled.code == 1
    assert "its name there is not UTF-8" in pulled.stderr
    assert (sorted(path.name for path in (desk.folder / "files").rglob("*.csv"))) == ["good.csv", "gut-é.csv"]


ODD_NAMES = (
    "con\\back.csv", "a\nb.csv", "-rf.csv", "\x1b[31m.csv", "[x]*.csv", "%2F.csv", " .csv",
    ".x.csv.tmp", "x.csv", f"{'long' * 62}abc.csv",
)  # fmt: skip
"""The last three: like the temporary file of another, and as long as a name can be."""


def test_files_of_any_name_come_home_and_travel(desk: Desk, host: Sshd) -> None:
    desk.add_host("h1", host)
    desk.write(
        "bench.py",
        f"for name in {ODD_NAMES!r}:\n    open(name, 'w').write(name)\nprint('{{\"median_us\": 5.0}}')\n",
    )
    payload = {"script": "bench.py", "collect": ["*.csv", ".*.tmp"]}
    desk.write("sweep.yaml", json.dumps({"name": "s", "payload": payload, "matrix": {"name": ["a"]}}))
    process, run_id = desk.begin()
    assert "not brought home" not in desk.end(process)["said"]
    assert desk.farbench("pull", run_id, "-o", "files").code == 0
    assert desk.farbench("export", run_id, "-o", "run.tar.zst").code == 0
    assert desk.farbench("import", "run.tar.zst", "--archive", "other").code == 0
    for folder in (
        f"archive/runs/{run_id}/collected",
        "files/h1/collected",
        f"other/runs/{run_id}/collected",
    ):
        found = {p.name: p.read_text() for p in (desk.folder / folder).rglob("*") if p.is_file()}
        assert found == {name: name for name in ODD_NAMES}


def test_a_file_that_does_not_fit_comes_home_later(desk: Desk, host: Sshd) -> None:
    """The link breaks while files come home: they are fetched again, and the run is complete only then."""
    desk.add_host("h1", host)
    desk.write("bench.py", "open('big.csv', 'wb').write(bytes(40_000_000))\nprint('{\"median_us\": 5.0}')\n")
    payload = {"script": "bench.py", "collect": ["*.csv"]}
    desk.write("sweep.yaml", json.dumps({"name": "s", "payload": payload, "matrix": {"name": ["a"]}}))
    process, run_id = desk.begin()
    journal = host.home / "farbench" / "runs" / run_id / "events.jsonl"
    wait_for(lambda: journal.exists() and b'"agent_finished"' in journal.read_bytes(), "the agent's end")
    host.kill_connections()
    assert desk.end(process)["counts"] == {"ok": 1}
    (kept,) = (desk.folder / "archive" / "runs" / run_id / "collected").rglob("big.csv")
    assert kept.stat().st_size == 40_000_000
    assert sys.executable


def test_a_file_of_no_end_does_not_come_home_and_holds_nothing_up(desk: Desk, host: Sshd) -> None:
    """One full of holes costs its host nothing."""
    desk.add_host("h1", host)
    holes = "open('a.bin', 'w').truncate(3 * 2**30)\nopen('b.bin', 'w').write('small')\nprint('{\"median_us\": 5.0}')\n"
    desk.write("bench.py", holes)
    payload = {"script": "bench.py", "collect": ["*.bin"]}
    desk.write("sweep.yaml", json.dumps({"name": "s", "payload": payload, "matrix": {"m": [1]}}))
    done = desk.farbench("run", "sweep.yaml", "--json")
    assert done.code == 0, done.stderr
    assert "a.bin is not brought home: it is larger than what is brought of one file (2 GiB)" in done.stderr
    assert [path.name for path in (desk.folder / "archive" / "runs").rglob("*.bin")] == ["b.bin"]
