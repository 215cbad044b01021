"""Links that break, fall silent or freeze are followed again; the user sees `reconnecting`, never a failed case."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.conftest import Desk, assert_complete
from tests.faults.proxy import Proxy
from tests.support.sshd import Sshd
from tests.support.waiting import wait_for
from tests.support.wire import far_away, run

CASES = 6
CUT_S = 20.0
IS_ROOT = os.geteuid() == 0


def slow(desk: Desk, seconds: float) -> None:
    desk.sweep([{"i": i, "seconds": seconds} for i in range(CASES)])


def test_sshd_is_killed_and_started_again(desk: Desk, host: Sshd) -> None:
    desk.add_host("h1", host)
    slow(desk, 0.4)
    process, run_id = desk.begin()
    wait_for(lambda: desk.measured_here(run_id), "a first result")
    host.stop()
    wait_for(lambda: len(desk.traced()) > 3, "the agent to go on")
    host.start()
    done = desk.end(process)
    assert done["counts"] == {"ok": CASES}
    assert "h1: reconnecting" in done["said"]
    assert_complete(desk, run_id, CASES)
    assert len(desk.traced()) == CASES


def test_the_link_freezes_and_is_dropped_after_the_stated_silence(desk: Desk, host: Sshd) -> None:
    with Proxy(host) as proxy:
        desk.add_host("h1", host, via=proxy)
        slow(desk, 0.5)
        process, run_id = desk.begin()
        wait_for(lambda: desk.measured_here(run_id), "a first result")
        proxy.freeze()
        assert process.stderr is not None
        said = ""
        while "h1: reconnecting" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        assert "nothing came from the host for 3 s" in said
        wait_for(lambda: len(desk.traced()) == CASES, "the agent to finish alone")
        proxy.thaw()
        assert desk.end(process)["counts"] == {"ok": CASES}
    assert_complete(desk, run_id, CASES)


@contextmanager
def cable(make_sshd: Callable[..., Sshd]) -> Iterator[tuple[Sshd, Callable[[bool], None], Proxy | None]]:
    """A host and a way to pull its cable: a network namespace where that is allowed, else a proxy that freezes."""
    if not IS_ROOT:
        host = make_sshd()
        with Proxy(host) as proxy:
            yield host, lambda plugged: proxy.thaw() if plugged else proxy.freeze(), proxy
        return
    with far_away() as there:
        host = make_sshd(address=there.address, port=2222, within=there.within)
        yield (
            host,
            lambda up: run("ip", "-n", there.name, "link", "set", there.far, "up" if up else "down"),
            None,
        )


def test_the_cable_is_out_for_twenty_seconds(desk: Desk, make_sshd: Callable[..., Sshd]) -> None:
    """No RST, no FIN: packets vanish, and come again later."""
    with cable(make_sshd) as (host, plug, proxy):
        desk.add_host("h1", host, via=proxy)
        slow(desk, 0.5)
        process, run_id = desk.begin()
        wait_for(lambda: desk.measured_here(run_id), "a first result")
        plug(False)
        time.sleep(CUT_S)
        assert len(desk.traced()) == CASES
        plug(True)
        done = desk.end(process)
        assert done["counts"] == {"ok": CASES}
        assert "h1: reconnecting" in done["said"]
        assert_complete(desk, run_id, CASES)
        assert len(desk.traced()) == CASES
        host.stop()


def test_the_link_breaks_while_the_run_is_launched(desk: Desk, host: Sshd) -> None:
    """Whether the host has the run is not known then: it is asked again, and nothing is started twice."""
    with Proxy(host) as proxy:
        desk.add_host("h1", host, via=proxy)
        slow(desk, 0.2)
        process, run_id = desk.begin()
        folder = host.home / "farbench" / "runs"
        wait_for(folder.exists, "the launch to reach the host")
        host.kill_connections()
        done = desk.end(process)
        assert done["counts"] == {"ok": CASES}
    assert_complete(desk, run_id, CASES)
    assert len(desk.traced()) == CASES


@pytest.mark.parametrize("detach", [False, True])
def test_a_host_whose_link_is_gone_when_somebody_comes_back(desk: Desk, host: Sshd, detach: bool) -> None:
    """Nothing is given up as lost because the host cannot be reached at the moment."""
    desk.add_host("h1", host)
    desk.sweep([{"i": i} for i in range(CASES)], steal_after_s=2)
    run_id = desk.json("run", "sweep.yaml", "--detach")["run_id"]
    wait_for(lambda: len(desk.traced()) == CASES, "the run to finish alone")
    host.stop()
    command = ("resume", run_id) if detach else ("attach", run_id)
    away = desk.farbench(*command, "--json")
    assert away.code != 0
    assert away.json()["state"] == "lost"
    # Resuming, a refused connection is final at once, as in `run`; following waits for the host, and then calls it lost.
    assert away.json()["hosts"]["h1"]["state"] == ("unreachable" if detach else "lost")
    assert sum(away.json()["counts"].values()) == CASES
    assert Path(desk.folder / "archive" / "open" / run_id).is_dir()
    host.start()
    assert desk.json("resume", run_id)["counts"] == {"ok": CASES}
    assert_complete(desk, run_id, CASES)
    assert len(desk.traced()) == CASES
