from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from orchestrator.agent import bounded, exits, procs
from tests.support.waiting import wait_for

from .conftest import Spawn

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP
# A worker whose child leaves the session and whose own parent (the worker) then dies.
ORPHANING = """
import os, sys, subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True,
                         stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
print(child.pid, flush=True)
"""


def test_a_process_is_known_by_pid_start_and_boot(python_process: Spawn) -> None:
    process = python_process(SLEEP)
    who = procs.identity(process.pid)
    assert who["pid"] == process.pid
    assert procs.is_alive(who)
    assert not procs.is_alive({**who, "start_time": who["start_time"] + 1}), "the PID was used again"
    assert not procs.is_alive({**who, "boot_id": "0" * 36}), "the host was booted again"
    process.kill()
    process.wait()
    assert not procs.is_alive(who)
    assert procs.start_time(process.pid) is None


def test_a_zombie_is_not_alive(python_process: Spawn) -> None:
    process = python_process(SLEEP)
    who = procs.identity(process.pid)
    process.kill()
    wait_for(lambda: (entry := procs.stat(process.pid)) is not None and entry.state == "Z")
    assert procs.start_time(process.pid) == who["start_time"]
    assert not procs.is_alive(who)


def test_what_another_user_wrote_is_never_taken_for_a_process() -> None:
    me = procs.identity()
    assert procs.is_alive(me)
    for wrong in (
        {},
        {"pid": True},
        {**me, "pid": str(me["pid"])},
        {**me, "pid": -1},
        {**me, "start_time": None},
    ):
        assert not procs.is_alive(wrong)
    assert not procs.is_alive({**me, "boot_id": ""})


def test_a_name_with_parentheses_and_spaces_does_not_shift_the_fields(tmp_path) -> None:
    program = tmp_path / "a) S 1 (b"
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([str(program), "600"], start_new_session=True)
    try:
        wait_for(lambda: procs.environ_of(process.pid) is not None)
        entry = procs.stat(process.pid)
        assert entry is not None
        assert (entry.ppid, entry.pgid, entry.sid) == (os.getpid(), process.pid, process.pid)
    finally:
        process.kill()
        process.wait()


def test_marked_processes_are_found_by_their_whole_entry(python_process: Spawn, nonce: str) -> None:
    ours = python_process(SLEEP, env={"FARBENCH_NONCE": nonce, "FARBENCH_WORKER": "w1"})
    longer = python_process(SLEEP, env={"FARBENCH_NONCE": nonce + "0", "OTHER": f"FARBENCH_NONCE={nonce}"})
    for process in (ours, longer):
        assert process.stdout is not None
        process.stdout.readline()
    assert procs.find_marked(nonce) == [ours.pid]
    assert procs.find_marked(nonce, b"FARBENCH_WORKER=w1") == [ours.pid]
    assert procs.find_marked(nonce, b"FARBENCH_WORKER=w") == []
    assert procs.find_marked("") == []


def test_a_process_is_found_from_the_moment_it_was_started(nonce: str) -> None:
    # In the middle of execve a process shows no environment at all.
    for number in range(60):
        mark = f"{nonce}-{number}"
        process = subprocess.Popen(["/bin/sleep", "600"], env={"FARBENCH_NONCE": mark})
        found = procs.find_marked(mark)
        process.kill()
        process.wait()
        assert found == [process.pid]


def test_an_orphan_in_a_session_of_its_own_is_found_and_ended(python_process: Spawn, nonce: str) -> None:
    worker = python_process(ORPHANING, env={"FARBENCH_NONCE": nonce})
    assert worker.stdout is not None
    orphan = int(worker.stdout.readline())
    worker.wait()
    assert procs.find_marked(nonce) == [orphan]
    assert procs.end_marked(nonce, grace_s=5) == []
    assert procs.find_marked(nonce) == []


def test_who_ignores_sigterm_is_killed(python_process: Spawn, nonce: str) -> None:
    process = python_process(STUBBORN, env={"FARBENCH_NONCE": nonce}, start_new_session=True)
    assert process.stdout is not None
    process.stdout.readline()
    assert procs.end_marked(nonce, grace_s=0.1) == []
    assert process.wait() == -signal.SIGKILL


def test_a_stopped_process_gets_its_chance_to_end_well(python_process: Spawn, nonce: str) -> None:
    code = f"import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n{SLEEP}"
    process = python_process(code, env={"FARBENCH_NONCE": nonce})
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGSTOP)
    assert procs.end_marked(nonce, grace_s=60) == []
    assert process.wait() == 7


def test_descendants_come_parents_first(python_process: Spawn) -> None:
    inner = "import time; print('inner', flush=True); time.sleep(600)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    outer = python_process(code)
    assert outer.stdout is not None
    outer.stdout.readline()
    below = procs.descendants(outer.pid)
    assert len(below) == 1
    assert procs.descendants(os.getpid()).index(outer.pid) < procs.descendants(os.getpid()).index(below[0])
    procs.end(lambda: below)
    outer.wait()


def test_the_environment_of_a_process_that_is_gone_is_none(python_process: Spawn) -> None:
    process = python_process("pass", env={"WHO": "a b=c"})
    wait_for(lambda: (entry := procs.stat(process.pid)) is not None and entry.state == "Z")
    process.wait()
    assert procs.environ_of(process.pid) is None
    alive = python_process(SLEEP, env={"WHO": "a b=c"})
    assert alive.stdout is not None
    alive.stdout.readline()
    assert b"WHO=a b=c" in (procs.environ_of(alive.pid) or [])


def test_a_bounded_command_gives_its_output_and_code() -> None:
    done = bounded.run(["/bin/sh", "-c", "echo out; echo err >&2; exit 3"], {}, 60)
    assert done == (3, "out\n", "err\n")
    assert bounded.run(["/bin/sh", "-c", "printf '\\377'; kill -9 $$"], {}, 60) == (-9, "\ufffd", "")


def test_a_bounded_command_is_ended_with_its_children(nonce: str) -> None:
    environ = {"FARBENCH_NONCE": nonce}
    done = bounded.run(["/bin/sh", "-c", "echo began; /bin/sleep 600 & /bin/sleep 600"], environ, 0.5)
    assert done == (None, "began\n", "")
    wait_for(lambda: not procs.find_marked(nonce))


def test_what_a_bounded_command_leaves_running_does_not_hold_it_up(nonce: str) -> None:
    environ = {"FARBENCH_NONCE": nonce}
    done = bounded.run(["/bin/sh", "-c", "/bin/sleep 600 & echo done"], environ, 500)
    assert done.code == 0
    assert procs.end_marked(nonce) == []


def test_only_the_beginning_of_a_flood_is_kept() -> None:
    done = bounded.run(["/bin/sh", "-c", "head -c 5000000 /dev/zero"], os.environ, 60)
    assert (done.code, len(done.stdout)) == (0, 1 << 20)


@pytest.mark.parametrize(
    ("cgroup", "file", "content"),
    [
        ("0::/user/farbench\n", "user/farbench/memory.events", "low 0\noom 3\noom_kill 2\n"),
        ("5:cpu:/x\n4:memory:/job\n", "memory/job/memory.oom_control", "oom_kill_disable 0\noom_kill 2\n"),
    ],
)
def test_kills_for_memory_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroup: str, file: str, content: str
) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "cgroup").write_text(cgroup)
    monkeypatch.setattr(exits, "_PROC", str(tmp_path / "proc"))
    monkeypatch.setattr(exits, "_CGROUP", str(tmp_path / "cgroup"))
    assert exits.oom_kills() is None
    events = tmp_path / "cgroup" / file
    events.parent.mkdir(parents=True)
    events.write_text(content)
    assert exits.oom_kills() == 2


def test_a_host_without_proc_still_knows_when_a_process_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python_process: Spawn
) -> None:
    process = python_process(SLEEP)
    monkeypatch.setattr(procs, "_PROC", str(tmp_path))
    started = procs.start_time(process.pid)
    assert started is not None
    assert abs(started - time.time()) < 3600
    assert procs.start_time(process.pid) == started
    assert procs.find_marked("any") == []
