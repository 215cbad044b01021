"""What survives: lost connections, killed agents, torn journals, full disks; and what cancelling leaves behind."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator.agent import commands, procs
from orchestrator.launch.bundle import agent_bundle
from tests.support.waiting import wait_for

from .conftest import Host, does, item, measurements, runs


def beside(host: Host) -> Host:
    """Another run on the same host."""
    other = Host.__new__(Host)
    other.__dict__.update(host.__dict__)
    other.run_id, other.nonce, other.calls = "20260101-120001-efgh", "another", []
    other.run_dir = host.workdir / "runs" / other.run_id
    other.job = {**host.job, "run_id": other.run_id, "nonce": other.nonce}
    return other


def test_a_detached_launch_closes_its_channel_at_once(host: Host) -> None:
    call = host.launch([does("c1", a="gate")], follow=None)
    assert call.expect("launched")["already"] is False
    assert call.process.wait(30) == 0
    assert call.process.stderr is not None
    assert call.process.stderr.read() == b""
    wait_for(lambda: host.trace("gates"))
    (host.traces / "open").touch()
    follower = host.call({"name": "follow", "run_id": host.run_id, "offset": 0})
    assert follower.expect("end")["state"] == "finished"
    assert measurements(follower)["c1/a"]["status"] == "ok"


def test_a_second_launch_joins_the_agent_that_lives(host: Host) -> None:
    first = host.launch([does("c1", a="gate")])
    wait_for(lambda: host.trace("gates"))
    second = host.launch([does("c1", a="gate")])
    launched = second.expect("launched")
    assert launched["already"] is True
    assert launched["pid"] == host.agent_pid()
    (host.traces / "open").touch()
    assert second.expect("end")["state"] == first.expect("end")["state"] == "finished"
    assert len(host.trace("cases")) == 1


def test_following_goes_on_where_a_lost_connection_broke_off(host: Host) -> None:
    first = host.launch([does("c1", a="ok"), does("c2", a="gate"), does("c3", a="ok")])
    first.wait_for("measurement")
    first.close()
    (host.traces / "open").touch()
    second = host.call({"name": "follow", "run_id": host.run_id, "offset": len(first.journal)})
    end = second.expect("end")
    whole = bytes(first.journal + second.journal)
    assert whole == (host.run_dir / "events.jsonl").read_bytes()
    assert end["offset"] == len(whole)
    assert len(host.measurements()) == 3


def test_a_killed_agent_is_seen_and_its_successor_measures_only_what_is_left(host: Host) -> None:
    cases = [does("c1", a="ok", b="ok"), does("c2", a="ok", b="gate", c="ok"), does("c3", a="ok")]
    first = host.launch(cases)
    first.wait_for("measurement", 3)
    wait_for(lambda: host.trace("gates"))
    worker = int(host.trace("cases")[-1].split()[1])
    os.kill(host.agent_pid(), signal.SIGKILL)
    assert first.expect("end")["state"] == "dead"
    wait_for(lambda: not runs(worker))
    (host.traces / "open").touch()
    second = host.launch(cases, follow=len(first.journal))
    assert second.expect("launched")["already"] is False
    assert second.expect("end")["state"] == "finished"
    measured = [(m["case_id"], m["backend"], m["attempt"]) for m in host.measurements()]
    assert measured == [
        ("c1", "a", 1), ("c1", "b", 1), ("c2", "a", 1), ("c2", "b", 2), ("c2", "c", 2), ("c3", "a", 1),
    ]  # fmt: skip


def test_an_agent_whose_folder_is_removed_ends_and_touches_nothing_of_its_successor(host: Host) -> None:
    """Both have the same marks, and their workers the same names."""
    cases = [does("c1", a="ok"), does("c2", a="gate"), does("c3", a="ok")]
    host.launch(cases).wait_for("measurement")
    wait_for(lambda: host.trace("gates"))
    first, worker = host.agent_pid(), int(host.trace("cases")[-1].split()[1])
    wait_for(lambda: (stat := procs.stat(first)) is not None and stat.state == "S")
    os.kill(first, signal.SIGSTOP)  # it cannot notice before its successor is at work
    shutil.rmtree(host.workdir)  # with the leases in it
    second = host.launch(cases)
    assert second.expect("launched")["already"] is False
    wait_for(lambda: len(host.trace("gates")) == 2)
    os.kill(first, signal.SIGCONT)
    wait_for(lambda: not runs(first) and not runs(worker))
    (host.traces / "open").touch()
    assert second.expect("end")["state"] == "finished"
    found = measurements(second)
    assert {key: (record["status"], record["attempt"]) for key, record in found.items()} == {
        "c1/a": ("ok", 1), "c2/a": ("ok", 1), "c3/a": ("ok", 1),
    }  # fmt: skip


def test_an_agent_whose_folder_is_removed_leaves_no_process(host: Host) -> None:
    host.launch([does("c1", a="hang")])
    wait_for(lambda: host.trace("cases"))
    agent, worker = host.agent_pid(), int(host.trace("cases")[-1].split()[1])
    shutil.rmtree(host.run_dir)
    wait_for(lambda: not runs(agent) and not runs(worker))


def test_a_case_that_ends_agents_does_not_keep_the_others_from_being_measured(host: Host) -> None:
    cases = [does("c1", a="kill the agent"), does("c2", a="ok"), does("c3", a="ok")]
    for measured in ([], [], ["c2", "c3"]):
        assert host.launch(cases).expect("end")["state"] == "dead"
        assert [m["case_id"] for m in host.measurements()] == measured


def test_a_torn_line_is_ended_and_only_the_torn_case_is_measured_again(host: Host) -> None:
    host.run([item("c1"), item("c2")])
    journal = host.run_dir / "events.jsonl"
    lines = journal.read_bytes().split(b"\n")
    last = max(number for number, line in enumerate(lines) if b'"measurement"' in line and b'"c2"' in line)
    torn = b"\n".join(lines[:last]) + b"\n" + lines[last][:200]
    journal.write_bytes(torn)
    call = host.launch([item("c1"), item("c2")])
    assert call.expect("end")["state"] == "finished"
    assert journal.read_bytes().startswith(torn + b'\n{"t":')
    assert sorted(m["case_id"] for m in host.measurements()) == ["c1", "c2"]


def test_a_killed_agent_leaves_no_process_that_its_successor_would_not_end(host: Host) -> None:
    call = host.launch([does("c1", a="stray")])
    wait_for(lambda: host.trace("strays"))
    stray = int(host.trace("strays")[0])
    os.kill(host.agent_pid(), signal.SIGKILL)
    call.expect("end")
    assert runs(stray)
    host.launch([], sealed=True).expect("launched")
    wait_for(lambda: not runs(stray))
    host.call({"name": "cancel", "run_id": host.run_id}).expect("cancelled")


@pytest.mark.parametrize("how", ["command", "control line"])
def test_cancelling_ends_the_workers_and_keeps_what_is_measured(host: Host, how: str) -> None:
    call = host.launch([does("c1", a="ok", b="deaf"), does("c2", a="ok")])
    call.wait_for("measurement")
    worker = int(host.trace("cases")[0].split()[1])
    if how == "command":
        answer = host.call({"name": "cancel", "run_id": host.run_id}).expect("cancelled")
        assert answer["measurements"] == 1
        assert not runs(worker)
    else:
        call.say(type="cancel")
    assert call.expect("end")["state"] == "cancelled"
    assert not runs(worker)
    assert call.events("cancel_requested")
    (finished,) = call.events("agent_finished")
    assert finished["state"] == "cancelled"
    assert finished["counts"] == {"ok": 1}
    status = host.call({"name": "status", "run_id": host.run_id}).expect("status")
    assert (status["agent"], status["state"], status["offset"]) == (False, "cancelled", len(call.journal))


def test_cancelling_a_run_whose_agent_was_killed_ends_it_properly(host: Host) -> None:
    call = host.launch([does("c1", a="gate")])
    wait_for(lambda: host.trace("gates"))
    os.kill(host.agent_pid(), signal.SIGKILL)
    assert call.expect("end")["state"] == "dead"
    assert host.call({"name": "cancel", "run_id": host.run_id}).expect("cancelled")["measurements"] == 0
    status = host.call({"name": "status", "run_id": host.run_id}).expect("status")
    assert status["state"] == "cancelled"


def test_cancelling_does_not_wait_for_an_agent_that_is_stopped(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could not answer before it is continued, which nobody may ever do; its worker and its lock go with it."""
    monkeypatch.setattr(commands, "CANCEL_PATIENCE_S", float("inf"))
    host.launch([does("c1", a="ok"), does("c2", a="gate")])
    wait_for(lambda: host.trace("gates"))
    worker, agent = int(host.trace("cases")[0].split()[1]), host.agent_pid()
    os.kill(agent, signal.SIGSTOP)
    wait_for(lambda: procs.is_stopped(procs.identity(agent)))
    reader, writer = os.pipe()
    context = SimpleNamespace(
        nonce="n", workdir=str(host.workdir), input_fd=reader, output_fd=writer, pending=b""
    )
    commands.dispatch({"name": "cancel", "run_id": host.run_id}, context)
    answer = json.loads(os.read(reader, 4096).partition(b" ")[2])
    os.close(reader)
    os.close(writer)
    assert answer == {"type": "cancelled", "measurements": 1}
    assert not runs(agent)
    assert not runs(worker)
    assert host.call({"name": "status", "run_id": host.run_id}).expect("status")["state"] == "cancelled"


def test_an_open_queue_takes_more_cases_and_gives_back_what_is_asked_for(host: Host) -> None:
    call = host.launch([does("c1", a="gate"), does("c2", a="ok"), does("c3", a="ok")], sealed=False)
    wait_for(lambda: host.trace("gates"))
    call.say(type="release", case_ids=["c1", "c3"])
    assert call.wait_for("released")[0]["case_ids"] == ["c3"]
    for _ in range(2):
        call.say(type="enqueue", items=[does("c4", a="ok"), does("c2", a="ok")], sealed=True)
    (host.traces / "open").touch()
    assert call.expect("end")["state"] == "finished"
    assert sorted(measurements(call)) == ["c1/a", "c2/a", "c4/a"]


def test_a_released_case_is_not_taken_up_by_a_successor_but_may_be_offered_again(host: Host) -> None:
    cases = [does("c1", a="gate"), does("c2", a="ok")]
    call = host.launch(cases)
    wait_for(lambda: host.trace("gates"))
    call.say(type="release", case_ids=["c2"])
    call.wait_for("released")
    os.kill(host.agent_pid(), signal.SIGKILL)
    call.expect("end")
    (host.traces / "open").touch()
    again = host.launch(cases)
    again.expect("end")
    assert [m["case_id"] for m in host.measurements()] == ["c1"]
    host.launch([does("c2", a="ok")]).expect("end")
    assert [m["case_id"] for m in host.measurements()] == ["c1", "c2"]


def test_a_device_in_use_by_another_run_is_waited_for(host: Host) -> None:
    first = host.launch([does("c1", a="gate")])
    wait_for(lambda: host.trace("gates"))
    other = beside(host)
    waiting = other.launch([does("c2", a="ok")])
    (event,) = waiting.wait_for("lease_wait")
    assert event["device"] == "cpu-0"
    assert event["holder"]["run_id"] == host.run_id
    (host.traces / "open").touch()
    assert waiting.expect("end")["state"] == first.expect("end")["state"] == "finished"
    other.close()


def test_a_read_only_folder_is_refused_with_step_path_and_cause(host: Host) -> None:
    host.workdir.write_text("a file where the folder should be")
    with pytest.raises(AssertionError) as refused:
        host.launch([item("c1")])
    (answer,) = refused.value.args
    assert answer["type"] == "refused"
    assert answer["step"] == "create the work folder"
    assert answer["path"].startswith(str(host.workdir))
    assert answer["error"] in ("Not a directory", "File exists")
    assert "workdir" in answer["hint"]


def test_an_upload_that_is_not_what_was_announced_is_refused_and_leaves_nothing(host: Host) -> None:
    call = host.call({"name": "runs"}, {"0" * 64: b"something else"})
    answer, _ = call.next()
    assert (answer["type"], answer["step"]) == ("refused", "check the upload")
    assert [
        path.name for path in (host.workdir / "cache").iterdir() if path.name.startswith(("0" * 16, "."))
    ] == []


def test_an_upload_cut_short_leaves_no_half_file(host: Host) -> None:
    data = b"x" * 10_000_000
    sha256 = hashlib.sha256(data).hexdigest()
    call = host.call({"name": "runs"}, {sha256: data}, upload=False)
    stdin = call.process.stdin
    assert stdin is not None
    stdin.write(agent_bundle()[1] + data[:9_000_000])
    stdin.close()
    assert call.process.wait(30) == 1
    assert [path.name for path in (host.workdir / "cache").iterdir()] == [agent_bundle()[0]]


def test_files_of_a_run_are_listed_and_fetched_together(host: Host) -> None:
    host.run([does("c1", a="exit")])
    files = dict(map(tuple, host.call({"name": "list", "run_id": host.run_id}).expect("files")["files"]))
    log, text = "logs/cpu0-001.log", b"last words of the payload\n"
    assert files[log] == len(text)
    large = host.run_dir / "logs" / "large.log"
    large.write_bytes(bytes(9_000_000))
    (host.run_dir / "logs" / "huge.log").write_bytes(bytes(10_000_001))
    asked = [
        [log, None], [log, hashlib.sha256(text).hexdigest()], [log, "0" * 64], ["logs/large.log", None],
        ["logs/huge.log", None], ["logs/none.log", None], ["../../../etc/passwd", None], ["logs/\0", None],
    ]  # fmt: skip
    call = host.call({"name": "fetch", "run_id": host.run_id, "files": asked, "limit": 10_000_000})
    assert call.next() == ({"type": "file", "path": log, "size": 26, "length": 26}, text)
    assert call.next()[0] == {"type": "same", "path": log, "size": 26}
    assert call.next()[1] == text
    blocks = [call.next(), call.next()]
    assert [message["size"] for message, _ in blocks] == [9_000_000] * 2
    assert b"".join(body for _, body in blocks) == bytes(9_000_000)
    assert call.next()[0] == {"type": "large", "path": "logs/huge.log", "size": 10_000_001}
    unread = [call.next()[0] for _ in range(3)]
    assert [message["type"] for message in unread] == ["unread"] * 3
    assert unread[0]["error"] == "No such file or directory"
    assert "leads out" in unread[1]["error"] or "passwd" in unread[1]["error"]
    call.expect("fetched")


def test_an_unknown_run_and_an_unknown_command_are_refused(host: Host) -> None:
    answer, _ = host.call({"name": "follow", "run_id": "nope", "offset": 0}).next()
    assert answer["error"] == "this host has no such run"
    answer, _ = host.call({"name": "dance"}).next()
    assert answer["error"] == "unknown command 'dance'"


def test_a_closed_lid_ends_the_follower_and_not_the_agent(host: Host) -> None:
    call = host.launch([does("c1", a="gate")])
    wait_for(lambda: host.trace("gates"))
    assert call.process.stdin is not None
    call.process.stdin.close()
    assert call.process.wait(30) == 0
    assert procs.is_alive(json.loads((host.run_dir / "agent.json").read_bytes()))
    (host.traces / "open").touch()
    wait_for(lambda: len(host.measurements()) == 1)
    with open(host.run_dir / "agent.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def test_the_agent_stays_small_with_many_workers_and_much_output(host: Host) -> None:
    host.job["devices"] = {"cpu": 8}
    call = host.launch([does(f"c{n}", a="noise", b="gate") for n in range(8)])
    wait_for(lambda: len(host.trace("gates")) == 8)
    status = Path(f"/proc/{host.agent_pid()}/status").read_text()
    peak_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    (host.traces / "open").touch()
    call.expect("end")
    assert peak_kib < 40 * 1024


@pytest.fixture
def tiny_disk(host: Host, tmp_path: Path):
    """The host's workdir on a disk of 12 MiB."""
    host.workdir.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=12m", "none", str(host.workdir)], check=False
    )
    if mounted.returncode:
        pytest.skip("a full disk needs the right to mount a small one: run as root")
    yield
    host.close()
    subprocess.run(["umount", "-l", str(host.workdir)], check=True)


def _fill(path: Path) -> None:
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass


@pytest.mark.usefixtures("tiny_disk")
def test_a_full_disk_is_recorded_and_the_rest_is_given_back(host: Host) -> None:
    call = host.launch([does("c1", a="gate"), *(does(f"c{n}", a="ok") for n in range(2, 60))])
    wait_for(lambda: host.trace("gates"))
    _fill(host.workdir / "filler")
    (host.traces / "open").touch()
    assert call.expect("end")["state"] == "finished"
    told = [event["message"] for event in call.events("problem")]
    assert any(f"the disk is full: {host.workdir}/runs/" in message for message in told)
    released = {case_id for event in call.events("released") for case_id in event["case_ids"]}
    measured = {record["case_id"] for record in measurements(call).values()}
    assert measured | released == {f"c{n}" for n in range(1, 60)}
    assert "c1" in measured


@pytest.mark.usefixtures("tiny_disk")
def test_an_upload_to_a_full_disk_is_refused(host: Host) -> None:
    _fill(host.workdir / "filler")
    answer, _ = host.call({"name": "runs"}, {"2" * 64: b"x"}).next()
    assert answer["type"] == "refused"
    assert answer["error"] == "No space left on device"
    assert "free some space" in answer["hint"]


def test_an_agent_that_is_asked_to_end_leaves_the_run_to_its_successor(host: Host) -> None:
    call = host.launch([does("c1", a="ok", b="gate"), does("c2", a="ok")])
    call.wait_for("measurement")
    wait_for(lambda: host.trace("gates"))
    worker = int(host.trace("cases")[0].split()[1])
    os.kill(host.agent_pid(), signal.SIGTERM)
    assert call.expect("end")["state"] == "dead"
    assert not runs(worker)
    (host.traces / "open").touch()
    assert (
        host.launch([does("c1", a="ok", b="gate"), does("c2", a="ok")]).expect("end")["state"] == "finished"
    )
    assert [(m["case_id"], m["backend"]) for m in host.measurements()] == [
        ("c1", "a"),
        ("c1", "b"),
        ("c2", "a"),
    ]


def test_who_does_not_want_to_wait_for_devices_gives_the_cases_back(host: Host) -> None:
    host.launch([does("c1", a="gate")])
    wait_for(lambda: host.trace("gates"))
    other = beside(host)
    other.job["wait_for_devices"] = False
    call = other.launch([does("c2", a="ok")])
    assert call.expect("end")["state"] == "finished"
    assert [event["case_ids"] for event in call.events("released")] == [["c2"]]
    other.close()
    (host.traces / "open").touch()


def test_who_does_not_want_to_wait_measures_what_fits_on_the_idle_devices(host: Host) -> None:
    host.launch([does("c1", a="gate")])
    wait_for(lambda: host.trace("gates"))
    other = beside(host)
    other.job = {**other.job, "wait_for_devices": False, "devices": {"cpu": 2}}
    gang = {**does("c2", a="ok"), "devices_per_case": 2}
    call = other.launch([gang, does("c3", a="ok"), does("c4", a="ok")])
    assert call.expect("end")["state"] == "finished"
    assert sorted(measurements(call)) == ["c3/a", "c4/a"]
    (released,) = call.events("released")
    assert released["case_ids"] == ["c2"]
    assert released["reason"].startswith("a device that is needed is in use: cpu-0 is held by run ")
    other.close()
    (host.traces / "open").touch()


def test_no_device_is_no_dead_end(host: Host) -> None:
    host.job["devices"] = ["GPU-that-is-not-there"]
    call = host.launch([does("c1", a="ok")])
    assert call.expect("end")["state"] == "finished"
    assert [event["case_ids"] for event in call.events("released")] == [["c1"]]
    assert any("GPU-that-is-not-there" in event["message"] for event in call.events("problem"))
