"""No room for the archive, or none of it to be read: said with what to do, whatever was going on; once that is mended, everything
is there."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Finished
from tests.faults.conftest import Desk, agents, assert_complete
from tests.support.sshd import Sshd
from tests.support.waiting import wait_for

CASES = 4


def let_files_grow_to(pid: int, size: int) -> None:
    """From now on a process cannot make a file larger: what a full disk or a quota does, for every user to have."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def gated(desk: Desk, label: str = "") -> None:
    cases = [{"i": i, "label": f"{i}{label}"} for i in range(CASES - 1)]
    desk.sweep([*cases, {"i": CASES - 1, "how": "wait"}])


def at_the_last_case(desk: Desk, host: Sshd) -> tuple[subprocess.Popen[str], str]:
    """A run that waits at its last case, with all other results here."""
    desk.add_host("h1", host)
    gated(desk)
    process, run_id = desk.begin()
    wait_for(
        lambda: desk.measured_here(run_id) == CASES - 1 and (desk.traces / "waiting").exists(),
        "the last case",
    )
    return process, run_id


def in_no_room(desk: Desk, *arguments: str) -> Finished:
    """A command that cannot write a byte to any file."""
    code = "import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); runpy.run_module('orchestrator', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=desk.folder, env=desk.environ, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    return Finished(done.returncode, done.stdout, done.stderr)


def unable_to_read(desk: Desk, *arguments: str) -> Finished:
    """A command that has no more rights than files give: root's go past them."""
    bare = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()
    done = subprocess.run(
        [*bare, sys.executable, "-m", "orchestrator", *arguments], cwd=desk.folder, env=desk.environ,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    return Finished(done.returncode, done.stdout, done.stderr)


def test_in_the_middle_of_a_run(desk: Desk, host: Sshd) -> None:
    process, run_id = at_the_last_case(desk, host)
    let_files_grow_to(process.pid, 0)
    desk.open_gate()
    _, stderr = process.communicate(timeout=100)
    assert process.returncode == 1, stderr
    assert f"archive/open/{run_id}/hosts/h1/events.jsonl could not be written: File too large" in stderr
    assert "what was launched goes on at its hosts, and nothing measured there is lost" in stderr
    assert f"Make room here, then: farbench attach {run_id}" in stderr
    again = in_no_room(desk, "attach", run_id)
    assert (again.code, again.stdout) == (1, f"{run_id}\n")
    assert f"Make room here, then: farbench attach {run_id}" in again.stderr
    assert desk.json("attach", run_id)["counts"] == {"ok": CASES}
    assert_complete(desk, run_id, CASES)
    assert len(desk.traced()) == CASES


def test_what_is_no_want_of_room_gets_other_advice(desk: Desk, host: Sshd) -> None:
    """Something else lies where the archive keeps in which order results came."""
    process, run_id = at_the_last_case(desk, host)
    arrivals = desk.folder / "archive" / "open" / run_id / "hosts" / "arrivals"
    aside = arrivals.rename(arrivals.with_name("aside"))
    arrivals.mkdir()
    desk.open_gate()
    _, stderr = process.communicate(timeout=100)
    assert process.returncode == 1, stderr
    assert "could not be written: Is a directory\n" in stderr
    assert f"nothing measured there is lost. Fix that here, then: farbench attach {run_id}\n" in stderr
    assert "Make room" not in stderr
    arrivals.rmdir()
    aside.rename(arrivals)
    assert desk.json("attach", run_id)["counts"] == {"ok": CASES}
    assert_complete(desk, run_id, CASES)


def test_when_the_run_is_cancelled(desk: Desk, host: Sshd) -> None:
    desk.add_host("h1", host)
    gated(desk)
    run_id = desk.json("run", "sweep.yaml", "--detach")["run_id"]
    wait_for(lambda: (desk.traces / "waiting").exists(), "the last case")
    done = in_no_room(desk, "cancel", run_id)
    assert done.code == 1
    assert "the hosts that answered have stopped, and keep what they measured" in done.stderr
    assert f"Make room here, then: farbench cancel {run_id}" in done.stderr
    assert not agents(host)
    assert [run["state"] for run in desk.json("runs")["runs"]] == ["detached"]
    cancelled = desk.json("cancel", run_id)
    assert (cancelled["state"], cancelled["counts"]) == ("cancelled", {"ok": CASES - 1, "cancelled": 1})


def test_when_the_run_is_committed(desk: Desk, make_sshd: Callable[..., Sshd]) -> None:
    """Every journal is here; together they do not fit into one file of results."""
    for name in ("h1", "h2"):
        desk.add_host(name, make_sshd())
    gated(desk, " " + "long " * 4000)
    process, run_id = desk.begin()
    wait_for(
        lambda: all(desk.measured_here(run_id, name) == CASES - 1 for name in ("h1", "h2")), "the last cases"
    )
    journals = [
        desk.folder / "archive" / "open" / run_id / "hosts" / name / "events.jsonl" for name in ("h1", "h2")
    ]
    let_files_grow_to(process.pid, max(journal.stat().st_size for journal in journals) + 20_000)
    desk.open_gate()
    _, stderr = process.communicate(timeout=100)
    assert process.returncode == 1, stderr
    assert f"archive/open/{run_id} could not be written: File too large" in stderr
    assert f"Make room here, then: farbench attach {run_id}" in stderr
    assert not (desk.folder / "archive" / "runs" / run_id).exists()
    shown = desk.json("report", run_id, "--format", "json")["measurements"]
    assert [m["status"] for m in shown] == ["ok"] * 2 * CASES
    assert desk.json("attach", run_id)["counts"] == {"ok": 2 * CASES}
    assert len(desk.results(run_id)) == 2 * CASES
    assert not [
        path for path in Path(desk.folder / "archive" / "runs" / run_id).iterdir() if path.suffix == ".tmp"
    ]
    assert (
        json.loads((desk.folder / "archive" / "runs" / run_id / "run.json").read_text())["state"]
        == "finished"
    )


def test_where_not_even_a_temporary_file_has_room(desk: Desk, host: Sshd) -> None:
    """What a full disk is for most commands: said, and no bug."""
    desk.add_host("h1", host, transport="openssh")
    desk.sweep(1)
    run_id = desk.json("run", "sweep.yaml")["run_id"]
    for command in (("query", "select 1"), ("history", "x")):
        done = in_no_room(desk, *command)
        assert (done.code, done.stdout) == (1, "")
        assert done.stderr.startswith("error: No usable temporary directory found in [")
        assert done.stderr.endswith("]: make room in one of them, or name another folder by TMPDIR\n")
    done = in_no_room(desk, "pull", run_id, "-o", "files")
    assert done.code == 3
    assert "h1: no folder for ssh's sockets can be made here: No usable temporary directory" in done.stderr


COLLECTING = """
import os, sys, time
with open("table.bin", "wb") as file:
    file.write(b"t" * 3_000_000)
open(os.path.join(os.environ["TRACES"], f"waiting-{sys.argv[1]}-{os.environ['WHERE']}"), "w").close()
while not os.path.exists(os.path.join(os.environ["TRACES"], "open")):
    time.sleep(0.02)
print('{"median_us": 5.0}')
"""


def test_when_collected_files_come_home(desk: Desk, make_sshd: Callable[..., Sshd]) -> None:
    """The hosts are well, and are not blamed; results have room, and are here."""
    for name in ("h1", "h2"):
        desk.add_host(name, make_sshd())
    desk.write("bench.py", COLLECTING)
    payload = {"script": "bench.py", "args": ["{{ name }}"], "collect": ["*.bin"]}
    desk.write("sweep.yaml", json.dumps({"name": "s", "payload": payload, "matrix": {"name": ["a"]}}))
    process, run_id = desk.begin()
    wait_for(lambda: len(list(desk.traces.glob("waiting-*"))) == 2, "both cases")
    let_files_grow_to(process.pid, 1_000_000)
    desk.open_gate()
    _, stderr = process.communicate(timeout=100)
    assert process.returncode == 1, stderr
    assert "unusable" not in stderr
    for name in ("h1", "h2"):
        where = f"archive/open/{run_id}/collected/{name}/"
        assert f"{name}: its collected files are still there, as " in stderr
        assert where in stderr
        assert desk.measured_here(run_id, name) == 1
    assert stderr.count("could not be written: File too large\n  what was launched goes on at its hosts") == 1
    assert stderr.endswith(f"Make room here, then: farbench attach {run_id}\n")
    full = in_no_room(desk, "pull", run_id)
    assert (full.code, full.stdout) == (1, "")
    assert "could not be written: File too large\n  what is not here is still at its hosts" in full.stderr
    assert f"Make room here, then: farbench pull {run_id}\n" in full.stderr
    done = desk.json("attach", run_id)
    assert (done["state"], done["counts"]) == ("finished", {"ok": 2})
    assert {host["state"] for host in done["hosts"].values()} == {"ok"}
    collected = desk.folder / "archive" / "runs" / run_id / "collected"
    found = {path.relative_to(collected).parts[0]: path.read_bytes() for path in collected.rglob("*.bin")}
    assert found == {"h1": b"t" * 3_000_000, "h2": b"t" * 3_000_000}


@pytest.mark.parametrize("what", ["hosts/h1/events.jsonl", "launch.json", "scripts/odd.py", "run.json"])
def test_what_cannot_be_read_is_named_and_nothing_is_lost(desk: Desk, host: Sshd, what: str) -> None:
    desk.add_host("h1", host)
    gated(desk)
    process, run_id = desk.begin()
    wait_for(lambda: desk.measured_here(run_id) == CASES - 1, "results")
    process.kill()
    process.communicate()
    path = desk.folder / "archive" / "open" / run_id / what
    mode = path.stat().st_mode
    path.chmod(0)
    desk.open_gate()
    for command in ("attach", "resume"):
        done = unable_to_read(desk, command, run_id)
        assert "Traceback" not in done.stderr
        assert f"open/{run_id}/{what}: cannot be read: Permission denied" in done.stderr
        assert done.code in (1, 2), done.stderr
        if done.code == 1:
            assert (
                f"nothing measured there is lost. Fix that here, then: farbench attach {run_id}\n"
                in done.stderr
            )
    path.chmod(mode)
    assert desk.json("attach", run_id)["counts"] == {"ok": CASES}
    assert_complete(desk, run_id, CASES)


def test_a_run_is_cancelled_also_if_what_is_here_cannot_be_read(desk: Desk, host: Sshd) -> None:
    process, run_id = at_the_last_case(desk, host)
    process.kill()
    process.communicate()
    journal = desk.folder / "archive" / "open" / run_id / "hosts" / "h1" / "events.jsonl"
    mode = journal.stat().st_mode
    journal.chmod(0)
    done = unable_to_read(desk, "cancel", run_id)
    assert done.code == 1, done.stderr
    assert "cannot be read: Permission denied" in done.stderr
    assert f"Fix that here, then: farbench cancel {run_id}\n" in done.stderr
    assert not agents(host)
    journal.chmod(mode)
    cancelled = desk.json("cancel", run_id)
    assert (cancelled["state"], cancelled["counts"]) == ("cancelled", {"ok": CASES - 1, "cancelled": 1})


@pytest.mark.parametrize("done", [0, CASES - 1])
def test_an_archive_that_is_moved_in_the_middle(desk: Desk, host: Sshd, done: int) -> None:
    """As when its disk is unplugged: no new archive is begun in its place, and at its new place the run is taken up."""
    desk.add_host("h1", host)
    desk.sweep([{"i": i, "how": "wait" if i == done else "ok"} for i in range(CASES)])
    process, run_id = desk.begin()
    wait_for(lambda: desk.measured_here(run_id) == done and (desk.traces / "waiting").exists(), "the gate")
    (desk.folder / "archive").rename(desk.folder / "moved")
    desk.open_gate()
    _, stderr = process.communicate(timeout=100)
    assert process.returncode == 1, stderr
    assert f"error: archive/open/{run_id} is gone: it was removed or moved" in stderr
    assert f"nothing measured there is lost. Fix that here, then: farbench attach {run_id}\n" in stderr
    assert not (desk.folder / "archive").exists()
    found = desk.json("attach", run_id, "--archive", "moved")
    assert (found["state"], found["counts"]) == ("finished", {"ok": CASES})


def test_a_journal_that_is_removed_here_comes_again(desk: Desk, host: Sshd) -> None:
    process, run_id = at_the_last_case(desk, host)
    (desk.folder / "archive" / "open" / run_id / "hosts" / "h1" / "events.jsonl").unlink()
    desk.open_gate()
    _, stderr = process.communicate(timeout=100)
    assert process.returncode == 1, stderr
    assert "of the journal are missing here; follow from 0\n" in stderr
    assert f"Fix that here, then: farbench attach {run_id}\n" in stderr
    assert desk.json("attach", run_id)["counts"] == {"ok": CASES}
    assert_complete(desk, run_id, CASES)
