"""Several hosts: those that fail are told and the others go on; cases move, and each is measured once per device model."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.faults.conftest import Desk, agents, assert_complete, is_running, kill_host
from tests.faults.proxy import Proxy
from tests.support.sshd import Sshd, free_port
from tests.support.waiting import wait_for

Make = Callable[..., Sshd]


def shard(desk: Desk, cases: int, seconds: float = 0.15, **more: Any) -> None:
    listed = [{"i": i, "seconds": seconds} for i in range(cases)]
    desk.sweep(listed, placement="shard", **{"steal_after_s": 3, **more})


def test_one_host_dead_from_the_start_another_dies_in_the_middle(desk: Desk, make_sshd: Make) -> None:
    a, b, c = make_sshd(), make_sshd(), make_sshd()
    a.stop()
    for name, server in zip("abc", (a, b, c), strict=True):
        desk.add_host(name, server)
    shard(desk, 14)
    process, run_id = desk.begin()
    wait_for(lambda: desk.measured_here(run_id, "b") and desk.measured_here(run_id, "c"), "both to measure")
    kill_host(b)
    done = desk.end(process)
    assert done["counts"] == {"ok": 14}
    assert {name: host["state"] for name, host in done["hosts"].items()} == {
        "a": "unreachable",
        "b": "lost",
        "c": "ok",
    }
    results = assert_complete(desk, run_id, 14)
    assert {r["host"] for r in results} == {"b", "c"}


def test_a_host_that_was_silent_too_long_comes_back_and_the_first_result_stands(
    desk: Desk, make_sshd: Make
) -> None:
    slow, quick = make_sshd(), make_sshd()
    with Proxy(slow) as proxy:
        desk.add_host("slow", slow, via=proxy)
        desk.add_host("quick", quick)
        shard(desk, 8, 0.4, steal_after_s=1)
        process, run_id = desk.begin()
        wait_for(
            lambda: desk.measured_here(run_id, "slow") and desk.measured_here(run_id, "quick"),
            "both to measure",
        )
        proxy.freeze()
        # Both measure what had been the silent one's; then it is back, before all is over.
        wait_for(
            lambda: max(Counter(t["case"] for t in desk.traced()).values()) > 1, "a case to be measured twice"
        )
        proxy.thaw()
        done = desk.end(process)
        assert done["counts"] == {"ok": 8}
    assert {r["host"] for r in assert_complete(desk, run_id, 8)} == {"slow", "quick"}
    # The other result of what both measured stays in that host's journal.
    assert _measured(desk, run_id, "slow") & _measured(desk, run_id, "quick")


def _measured(desk: Desk, run_id: str, host: str) -> set[int]:
    return {e["measurement"]["params"]["i"] for e in desk.journal(run_id, host) if e["type"] == "measurement"}


def test_a_slow_host_gives_cases_to_one_that_has_run_dry(desk: Desk, make_sshd: Make) -> None:
    """The slow one is held up by somebody else's run on its only device, from before the start to long after."""
    busy, free = make_sshd(), make_sshd()
    desk.add_host("busy", busy)
    desk.sweep([{"i": 99, "how": "wait"}])
    other = desk.json("run", "sweep.yaml", "--detach")["run_id"]
    wait_for(lambda: (desk.traces / "waiting").exists(), "the other run to measure")
    desk.add_host("free", free)
    shard(desk, 6, 0.05)
    process, run_id = desk.begin()
    done = desk.end(process)
    assert done["counts"] == {"ok": 6}
    assert {r["host"] for r in assert_complete(desk, run_id, 6)} == {"free"}
    assert f"held by run {other}" in done["said"]
    desk.open_gate()
    desk.json("attach", other)


def test_a_host_that_hangs_at_login_holds_up_no_other_and_gets_its_share_later(
    desk: Desk, make_sshd: Make
) -> None:
    shell = desk.write(
        "shell", f'#!/bin/sh\nuntil [ -e {desk.traces}/woken ]; do sleep 0.05; done\nexec /bin/sh "$@"\n'
    )
    shell.chmod(0o755)
    desk.add_host("quick", make_sshd())
    desk.add_host("hung", make_sshd(shell=str(shell)))
    shard(desk, 30, 0.1, steal_after_s=1)
    process, run_id = desk.begin()
    wait_for(lambda: desk.measured_here(run_id, "quick"), "the other one to measure")
    (desk.traces / "woken").touch()
    assert desk.end(process)["counts"] == {"ok": 30}
    assert {r["host"] for r in assert_complete(desk, run_id, 30)} == {"quick", "hung"}
    assert len(desk.traced()) == 30


def test_a_run_that_is_complete_does_not_wait_for_a_host_that_hangs_at_login(
    desk: Desk, make_sshd: Make
) -> None:
    shell = desk.write(
        "shell",
        f"#!/bin/sh\necho $$ >>{desk.traces}/shells\n"
        f'until [ -e {desk.traces}/woken ]; do sleep 0.05; done\nexec /bin/sh "$@"\n',
    )
    shell.chmod(0o755)
    hung = make_sshd(shell=str(shell))
    desk.add_host("quick", make_sshd())
    desk.add_host("hung", hung)
    shard(desk, 3, 0.0, steal_after_s=1)
    process, run_id = desk.begin()
    done = desk.end(process)
    assert (done["state"], done["counts"]) == ("finished", {"ok": 3})
    assert done["hosts"]["quick"]["state"] == "ok"
    assert done["hosts"]["hung"] == {
        "state": "unreachable",
        "error": "hung: it had not answered yet when everything was measured; nothing was given to it",
    }
    assert {r["host"] for r in assert_complete(desk, run_id, 3)} == {"quick"}
    # What it does with our command once it wakes leaves nothing.
    shells = [int(line) for line in (desk.traces / "shells").read_text().split()]
    assert shells
    assert any(map(is_running, shells))
    (desk.traces / "woken").touch()
    wait_for(lambda: not any(map(is_running, shells)), "the shell to end")
    assert not agents(hung)
    assert not list(hung.home.glob("farbench/runs/*"))


def test_a_sharded_run_detaches_and_goes_on_alone_and_is_attached_again(desk: Desk, make_sshd: Make) -> None:
    for name in ("h1", "h2"):
        desk.add_host(name, make_sshd())
    shard(desk, 10)
    detached = desk.json("run", "sweep.yaml", "--detach")
    assert detached["state"] == "detached"
    run_id = detached["run_id"]
    wait_for(lambda: len(desk.traced()) == 10, "the hosts to measure all of it alone")
    attached = desk.json("attach", run_id)
    assert (attached["state"], attached["counts"]) == ("finished", {"ok": 10})
    assert_complete(desk, run_id, 10)
    assert len(desk.traced()) == 10


def test_the_controller_dies_in_the_middle_of_dealing(desk: Desk, make_sshd: Make) -> None:
    for name in ("h1", "h2"):
        desk.add_host(name, make_sshd())
    shard(desk, 12)
    for delay_s in (0.0, 0.05, 0.3):
        process, run_id = desk.begin()
        wait_for(lambda: any(desk.journal(run_id, h) for h in ("h1", "h2")), "a first word of a host")  # noqa: B023
        time.sleep(delay_s)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert desk.json("resume", run_id)["counts"] == {"ok": 12}
        assert_complete(desk, run_id, 12)
    assert len(desk.traced()) == 36


def test_a_host_that_is_gone_when_a_sharded_run_is_attached(desk: Desk, make_sshd: Make) -> None:
    """Its cases move to the other one; nothing more is asked of the user."""
    gone, left = make_sshd(), make_sshd()
    desk.add_host("gone", gone)
    desk.add_host("left", left)
    shard(desk, 12, 0.2)
    run_id = desk.json("run", "sweep.yaml", "--detach")["run_id"]
    for agent in agents(gone):
        os.kill(agent, signal.SIGKILL)
    attached = desk.json("attach", run_id)
    assert attached["counts"] == {"ok": 12}
    assert attached["hosts"]["gone"]["state"] == "lost"
    assert_complete(desk, run_id, 12)


def test_two_entries_of_one_machine_do_not_get_in_each_others_way(desk: Desk, host: Sshd) -> None:
    """Same address, same work folder, same device: they take turns, and neither touches what is the other's."""
    desk.add_host("one", host)
    desk.add_host("same", host)
    desk.sweep([{"i": i, "how": "kill" if i == 1 else "ok"} for i in range(3)])
    process, run_id = desk.begin()
    stdout, stderr = process.communicate(timeout=100)
    assert json.loads(stdout)["counts"] == {"ok": 4, "crashed": 2}, stderr
    results = desk.results(run_id)
    assert sorted((r["host"], r["params"]["i"]) for r in results) == [
        (h, i) for h in ("one", "same") for i in range(3)
    ]
    folders = sorted(path.name for path in (host.home / "farbench" / "runs").iterdir())
    assert folders == [run_id, f"{run_id}.2"]
    assert Counter(t["host"] for t in desk.traced()) == {"one": 2, "same": 2}
    shown = desk.json("logs", run_id, "--worker", "agent")
    assert {log["host"] for log in shown["logs"]} <= {"one", "same"}


def test_hosts_that_cannot_be_used_are_told_and_the_others_go_on(desk: Desk, make_sshd: Make) -> None:
    good, keyless = make_sshd(), make_sshd()
    desk.add_host("good", good)
    desk.add_host("nobody", good, port=free_port())
    desk.add_host("changed", keyless)
    (desk.folder / "known_hosts_changed").write_text(
        f"[{keyless.address}]:{keyless.port} {good.host_public_key}\n"
    )
    desk.add_host("no-device", good, devices=["GPU-not-there"], workdir="~/other")
    desk.sweep(2)
    process, _ = desk.begin()
    stdout, _ = process.communicate(timeout=100)
    document = json.loads(stdout)
    assert process.returncode == 1
    assert {name: host["state"] for name, host in document["hosts"].items()} == {
        "good": "ok", "nobody": "unreachable", "changed": "refused", "no-device": "unusable",
    }  # fmt: skip
    assert "GPU-not-there" in document["hosts"]["no-device"]["error"]
    assert document["counts"] == {"ok": 2, "lost": 6}
    assert document["state"] == "finished"
    detached = desk.json("run", "sweep.yaml", "--detach", "--host", "good", "--host", "changed")
    attached = desk.farbench("attach", detached["run_id"], "--json")
    assert attached.json()["hosts"]["changed"]["state"] == "refused"
    assert attached.json()["counts"] == {"ok": 2, "lost": 2}


def test_what_was_cancelled_of_a_sharded_run_is_resumed_as_a_new_one(desk: Desk, make_sshd: Make) -> None:
    for name in ("h1", "h2"):
        desk.add_host(name, make_sshd())
    desk.sweep([{"i": i, "how": "wait" if i in (2, 3) else "ok"} for i in range(8)], placement="shard")
    run_id = desk.json("run", "sweep.yaml", "--detach")["run_id"]
    wait_for(lambda: (desk.traces / "waiting").exists() and len(desk.traced()) >= 1, "a result")
    cancelled = desk.json("cancel", run_id)
    done = cancelled["counts"]["ok"]
    assert cancelled["counts"] == {"ok": done, "cancelled": 8 - done}
    desk.open_gate()
    resumed = desk.json("resume", run_id)
    assert resumed["run_id"] != run_id
    assert resumed["counts"] == {"ok": 8 - done}
    both = [r for r in (*desk.results(run_id), *desk.results(resumed["run_id"])) if r["status"] == "ok"]
    assert sorted(r["params"]["i"] for r in both) == list(range(8))
