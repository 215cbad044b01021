"""Small parts of the agent by themselves: logs that are followed while written, folders of entries that share a machine."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from orchestrator.agent import places
from orchestrator.agent.coordination import may_steer, take_over
from orchestrator.agent.logs import LogFile, Redactor
from orchestrator.agent.paths import RunPaths
from orchestrator.agent.tailing import Log


def read_all(log: Log) -> bytes:
    out = b""
    while data := log.read():
        out += data
    return out


@pytest.mark.parametrize(
    ("tail", "expected"),
    [(None, b"a\nb\nc\nd"), (0, b""), (1, b"d"), (2, b"c\nd"), (9, b"a\nb\nc\nd")],
)
def test_a_tail_is_of_whole_lines_and_goes_on(tail: int | None, expected: bytes, tmp_path: Path) -> None:
    path = tmp_path / "w.log"
    path.write_bytes(b"a\nb\nc\nd")
    log = Log(str(path), tail)
    assert read_all(log) == expected
    with path.open("ab") as file:
        file.write(b"e\n")
    assert read_all(log) == b"e\n"
    log.close()


def test_a_log_that_is_not_there_yet_is_read_once_it_is(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "w.log"), 5)
    assert log.read() == b""
    (tmp_path / "w.log").write_bytes(b"now\n")
    assert read_all(log) == b"now\n"
    log.close()


@pytest.mark.parametrize("seed", range(5))
def test_a_follower_misses_nothing_of_a_log_that_fits(seed: int, tmp_path: Path) -> None:
    """The log is written to a file and two that take turns, and joined at the end; the follower looks now and then."""
    rng = random.Random(seed)
    written = b""
    file = LogFile(str(tmp_path / "w.log"), Redactor([]), cap=8000)
    log = Log(str(tmp_path / "w.log"), None)
    seen = b""
    while len(written) < 5500:
        piece = b"%d\n" % rng.randrange(10 ** rng.randrange(1, 40))
        file.write(piece)
        written += piece
        if rng.random() < 0.2:
            seen += read_all(log)
    file.close()
    assert seen + read_all(log) == written
    log.close()


def test_entries_that_launch_at_once_get_folders_of_their_own(tmp_path: Path) -> None:
    got: dict[str, str] = {}

    def launch(host: str) -> None:
        got[host] = places.claim(str(tmp_path), "r1", host).root

    threads = [threading.Thread(target=launch, args=(f"h{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(got.values())) == 8
    assert str(tmp_path / "runs" / "r1") in got.values()
    for host, root in got.items():
        found = places.find(str(tmp_path), "r1", host)
        assert found is not None
        assert found.root == root
        assert places.claim(str(tmp_path), "r1", host).root == root
    assert places.find(str(tmp_path), "r1", "a stranger") is None
    assert places.find(str(tmp_path), "r2", "h0") is None
    assert {places.run_of(Path(root).name) for root in got.values()} == {"r1"}
    assert places.run_of("20260101T000000Z-abcdef") == "20260101T000000Z-abcdef"


def test_the_session_that_came_last_steers(tmp_path: Path) -> None:
    paths = RunPaths(str(tmp_path), "r1")
    paths.make()
    assert may_steer(paths, None)
    take_over(paths, {"coordinator": "a", "claim": True})
    take_over(paths, {"coordinator": "a", "claim": True})
    assert len(paths.requests()) == 1  # said again after a break, it is the same session
    assert may_steer(paths, "a")
    take_over(paths, {"coordinator": "b", "claim": True})
    take_over(paths, {"coordinator": "a", "claim": False})
    assert (may_steer(paths, "a"), may_steer(paths, "b"), may_steer(paths, None)) == (False, True, False)
