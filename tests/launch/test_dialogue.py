"""The dialogue with the real agent, on a real sshd and on the embedded server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.errors import HostError, HostUnreachable, HostUnusable
from orchestrator.launch.bundle import agent_bundle
from orchestrator.launch.dialogue import Alive, Dialogue, End, Events, FileSet, Hello, Launched, Message
from orchestrator.launch.fetching import fetch
from orchestrator.transport.open import Connections
from tests.support.runs import TREE, item, job, journal, measurements
from tests.support.sshd import Spec, Sshd

NASTY = 'it\'s "$HOME" $(touch pwned)\n{x!r} é'


@pytest.fixture
def dialogue(any_host: Spec, connections: Connections, tmp_path: Path) -> Dialogue:
    import dataclasses

    spec = dataclasses.replace(any_host, workdir=str(tmp_path / "work dir é"))
    return Dialogue(connections.transport(spec), spec)


def test_a_run_from_launch_to_end(dialogue: Dialogue) -> None:
    messages = list(dialogue.launch(job=job("r1"), tree=TREE, queue=[item("c1", NASTY)]))
    assert [type(message) for message in messages[:2]] == [Hello, Launched]
    assert any(isinstance(message, Alive) for message in messages)
    assert isinstance(messages[-1], End)
    assert messages[-1].state == "finished"
    (measured,) = measurements(messages)
    assert measured["reason"] is None
    assert (measured["status"], measured["timing"]["median_us"], measured["extra"]["seen"]) == (
        "ok",
        5.0,
        NASTY,
    )
    assert dialogue.status("r1").state == "finished"
    assert dialogue.status("r1").offset == messages[-1].offset


def test_a_second_run_uploads_nothing(dialogue: Dialogue) -> None:
    files = FileSet(TREE)
    first = dialogue.launch(job=job("r1"), tree=files, queue=[item("c1")])
    assert len(list(first)) > 3
    second = dialogue.launch(job=job("r2"), tree=files, queue=[item("c1")])
    assert set(first.hello.missing) == {agent_bundle()[0], files.tree["scripts/bench/bench.py"]}
    assert second.hello.missing == []
    assert len(measurements(list(second))) == 1


def test_a_large_file_from_disk_arrives_whole(dialogue: Dialogue, tmp_path: Path) -> None:
    content = bytes(range(256)) * 40_000
    (tmp_path / "data.bin").write_bytes(content)
    tree = {**TREE, "scripts/bench/data.bin": tmp_path / "data.bin"}
    list(dialogue.launch(job=job("r1"), tree=tree, queue=[item("c1")]))
    (came,) = [
        (f.size, f.content and f.content.read())
        for f in fetch(dialogue, "r1", {"scripts/bench/data.bin": None}, 2**30)
    ]
    assert came == (len(content), content)


def test_launch_only_then_follow_from_an_offset(dialogue: Dialogue) -> None:
    started = list(dialogue.launch(job=job("r1"), tree=TREE, queue=[item("c1")], follow_offset=None))
    assert [type(message) for message in started] == [Hello, Launched]
    whole = list(dialogue.follow("r1", 0))
    end = whole[-1]
    assert isinstance(end, End)
    first = next(message for message in whole if isinstance(message, Events))
    cut = first.data.index(b"\n") + 1
    rest = list(dialogue.follow("r1", cut))
    assert journal(rest) == journal(whole)[1:]


def test_more_cases_and_the_end_of_the_queue_arrive_while_following(dialogue: Dialogue) -> None:
    following = dialogue.launch(job=job("r1"), tree=TREE, queue=[item("c1")], sealed=False)
    seen: list[Message] = []
    for message in following:
        seen.append(message)
        if isinstance(message, Launched):
            following.send_control({"type": "enqueue", "items": [item("c2")], "sealed": True})
    assert {measured["case_id"] for measured in measurements(seen)} == {"c1", "c2"}


def test_cancelling_over_the_following_and_by_command(dialogue: Dialogue) -> None:
    following = dialogue.launch(job=job("r1"), tree=TREE, queue=[], sealed=False)
    for message in following:
        if isinstance(message, Launched):
            following.send_control({"type": "cancel"})
    assert isinstance(message, End)
    assert message.state == "cancelled"
    list(dialogue.launch(job=job("r2"), tree=TREE, queue=[], sealed=False, follow_offset=None))
    assert dialogue.cancel("r2") == 0
    assert dialogue.status("r2").state == "cancelled"


def test_closing_a_following_ends_its_iteration_and_not_the_run(dialogue: Dialogue) -> None:
    following = dialogue.launch(job=job("r1"), tree=TREE, queue=[], sealed=False)
    launched = threading.Event()
    problems: list[BaseException] = []

    def iterate() -> None:
        try:
            for message in following:
                if isinstance(message, Launched):
                    launched.set()
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=iterate)
    thread.start()
    assert launched.wait(60)
    following.close()
    thread.join(60)
    assert not thread.is_alive()
    assert problems == []
    assert dialogue.status("r1").agent
    with pytest.raises(HostUnreachable):
        following.send_control({"type": "cancel"})
    dialogue.cancel("r1")


def test_logs_runs_and_garbage(dialogue: Dialogue) -> None:
    list(dialogue.launch(job=job("r1"), tree=TREE, queue=[item("c1")]))
    logs = [file.path for file in dialogue.list_files("r1")]
    assert any(path.startswith("logs/") for path in logs)
    assert [run["run_id"] for run in dialogue.runs()] == ["r1"]
    assert dialogue.gc(dry_run=True, keep=["r1"]).bytes >= 0
    assert [run["run_id"] for run in dialogue.runs()] == ["r1"]


def test_probing(dialogue: Dialogue) -> None:
    hello, found = dialogue.probe(["json", "surely_no_such_module"])
    assert hello.version.startswith("3.")
    assert found.devices
    assert found.modules["surely_no_such_module"] is None
    assert found.disk_free_bytes is not None
    assert found.disk_free_bytes > 0


def test_what_the_host_refuses_is_told_in_its_words(dialogue: Dialogue) -> None:
    with pytest.raises(HostUnusable, match="this host has no such run"):
        dialogue.status("nothing")


def test_a_work_folder_that_cannot_be(sshd: Sshd, connections: Connections, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    spec = sshd.spec(workdir=str(tmp_path / "file" / "work"))
    with pytest.raises(HostUnusable) as caught:
        Dialogue(connections.transport(spec), spec).launch(
            job=job("r1"), tree={"big": b"x" * 30_000_000}, queue=[]
        )
    assert str(tmp_path / "file") in str(caught.value)
    assert "workdir" in str(caught.value)


def test_login_scripts_may_print_what_they_like(sshd: Sshd, connections: Connections) -> None:
    (sshd.home / ".bashrc").write_text(
        "echo '{\"type\":\"hello\"}'\nhead -c 300000 /dev/zero\nprintf 'no newline '\necho oops >&2\n"
    )
    spec = sshd.spec(workdir="~/bench runs")
    messages = list(
        Dialogue(connections.transport(spec), spec).launch(job=job("r1"), tree=TREE, queue=[item("c1")])
    )
    assert len(measurements(messages)) == 1
    assert (sshd.home / "bench runs" / "runs" / "r1").is_dir()


def test_a_login_script_that_ends_the_session(sshd: Sshd, connections: Connections) -> None:
    (sshd.home / ".bashrc").write_text("printf 'This account\\033[31m is closed.'\nexit 7\n")
    spec = sshd.spec()
    with pytest.raises(HostUnusable) as caught:
        Dialogue(connections.transport(spec), spec).status("r1")
    assert "ended without an answer (exit status 7)" in str(caught.value)
    assert "This account[31m is closed." in str(caught.value)


@pytest.mark.parametrize("shell", ["fish", "tcsh", "zsh"])
def test_other_login_shells(shell: str, make_sshd: Callable[..., Sshd], connections: Connections) -> None:
    spec = make_sshd(shell=f"/usr/bin/env {shell}").spec()
    with pytest.raises(HostUnusable, match="this host has no such run"):
        Dialogue(connections.transport(spec), spec).status("nothing")


def test_a_lost_link_while_following(sshd: Sshd, connections: Connections) -> None:
    spec = sshd.spec()
    dialogue = Dialogue(connections.transport(spec), spec)
    following = iter(dialogue.launch(job=job("r1"), tree=TREE, queue=[], sealed=False))
    assert any(isinstance(message, Alive) for message in following)
    sshd.kill_connections()
    with pytest.raises(HostUnreachable):
        list(following)
    assert dialogue.status("r1").agent
    dialogue.cancel("r1")


def test_one_flight_when_the_host_lacks_nothing(sshd: Sshd, connections: Connections) -> None:
    """Commands open one channel each, on one connection."""
    spec = sshd.spec()
    dialogue = Dialogue(connections.transport(spec), spec)
    for _ in range(3):
        with pytest.raises(HostError, match="no such run"):
            dialogue.status("nothing")
    assert sshd.read_log().count("Accepted publickey") == 1
    assert sshd.read_log().count("Starting session") == 3
