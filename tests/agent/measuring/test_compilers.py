"""Caches and locks of just-in-time compilers: what a killed compilation leaves, and where there is nothing to write to."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest
from core.conftest import Host

from orchestrator.agent import jit_caches
from orchestrator.agent.probe import probe
from tests.support.waiting import wait_for

from .conftest import says


@pytest.fixture
def extensions(telling: Host, tmp_path: Path) -> Path:
    """The cache of torch's extensions, empty, on a host whose other caches are empty as well."""
    folder = tmp_path / "extensions"
    folder.mkdir()
    telling.job["env"].update({cache.variable: str(tmp_path / cache.variable) for cache in jit_caches.CACHES})
    telling.job["env"]["TORCH_EXTENSIONS_DIR"] = str(folder)
    return folder


def hanging(word: str = "hang") -> dict[str, object]:
    return {**says("c1", a=[word], b=["valid"]), "compile_timeout_s": 1.5}


def messages(host: Host) -> list[str]:
    events = (host.run_dir / "events.jsonl").read_text().splitlines()
    return [line for line in events if '"problem"' in line]


def test_a_timeout_in_compile_names_the_stale_lock_it_waited_for(telling: Host, extensions: Path) -> None:
    lock = extensions / "py311_cu130" / "kernel" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(lock, (time.time() - 7200, time.time() - 7200))
    found = telling.run([hanging()])
    assert found["c1/a"]["status"] == "timeout"
    reason = found["c1/a"]["reason"]
    assert reason.startswith(
        "compiling and preparing took longer than compile_timeout_s = 1.5 s: waited for a lock? "
    )
    assert f"{lock} (2.0 h old, stale: no process has it open, remove it)" in reason
    assert (found["c1/b"]["status"], found["c1/b"]["attempt"]) == ("ok", 2)


def test_a_lock_that_another_process_holds_is_named_with_its_holder(
    telling: Host, tmp_path: Path, extensions: Path
) -> None:
    folder = tmp_path / "FLASHINFER_WORKSPACE_BASE" / ".cache" / "flashinfer" / "0.7.4"
    folder.mkdir(parents=True)
    (folder / "nobody.lock").touch()
    with open(folder / "gemm.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        reason = telling.run([hanging()])["c1/a"]["reason"]
    assert f"{folder}/gemm.lock" in reason
    assert f"held by process {os.getpid()})" in reason
    assert "nobody.lock" not in reason


def test_a_timeout_without_a_foreign_lock_names_the_caches(telling: Host, extensions: Path) -> None:
    reason = telling.run([hanging()])["c1/a"]["reason"]
    assert reason.endswith(f"no foreign lock in the caches of compilers ({extensions})")


def test_a_compilation_that_was_ended_tells_of_the_lock_it_left(telling: Host, extensions: Path) -> None:
    telling.run([hanging("lock")])
    (told,) = messages(telling)
    lock = extensions / "py311_cu130" / "mine" / "lock"
    assert f"a compilation that was ended left a lock that others will wait for: {lock}" in told
    assert lock.exists(), "a shared cache is not ours to clean"


def test_caches_are_shared_unless_something_is_wrong_or_asked_for(telling: Host, tmp_path: Path) -> None:
    extra = telling.run([says("c1", a=["caches"])])["c1/a"]["extra"]
    assert set(extra.values()) == {None}
    assert messages(telling) == []


def test_private_caches_on_request_are_one_for_each_worker_and_go_with_the_run(telling: Host) -> None:
    telling.job.update(jit_cache="private", devices={"cpu": 2})
    call = telling.launch([says("c1", a=["caches"]), says("c2", a=["gate"]), says("c3", a=["caches"])])
    wait_for(lambda: telling.trace("gates"))
    (telling.traces / "open").touch()
    assert call.expect("end")["state"] == "finished"
    told = [record for record in telling.measurements() if "TRITON_CACHE_DIR" in record["extra"]]
    assert sorted(record["case_id"] for record in told) == ["c1", "c3"]
    for record in told:
        own = telling.run_dir / "work" / "caches" / f"cpu{record['device']['index']}"
        assert {Path(path).parent for path in record["extra"].values()} == {own}
    assert not (telling.run_dir / "work").exists()


def test_a_cache_that_cannot_be_written_becomes_private_and_is_told_once(
    telling: Host, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    telling.job["env"]["TRITON_CACHE_DIR"] = str(tmp_path / "file" / "triton")
    found = telling.run([says("c1", a=["caches"], b=["kill"], c=["caches"])])
    for backend in "ac":
        extra = found[f"c1/{backend}"]["extra"]
        assert extra["TRITON_CACHE_DIR"] == str(
            telling.run_dir / "work" / "caches" / "cpu0" / "triton_cache_dir"
        )
        assert extra["TORCH_EXTENSIONS_DIR"] is None
    (told,) = messages(telling)
    assert f"{tmp_path}/file is no folder (TRITON_CACHE_DIR): workers compile into private caches" in told


def test_a_user_without_an_entry_and_a_home_gets_caches_and_a_home_below_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(jit_caches.pwd, "getpwuid", unknown)
    own = tmp_path / "own"
    chosen, problems = jit_caches.private({}, str(own), everything=False)
    assert chosen == {
        "HOME": str(own),
        **{cache.variable: str(own / cache.variable.lower()) for cache in jit_caches.CACHES},
    }
    assert all(Path(path).is_dir() for path in chosen.values())
    assert problems[0].startswith("this user has neither a home folder nor a name")
    named, problems = jit_caches.private({"HOME": str(tmp_path), "LOGNAME": "me"}, str(own), everything=False)
    assert (named, problems) == ({}, [])


def test_eight_workers_that_compile_at_once_share_no_private_cache(telling: Host) -> None:
    telling.job.update(jit_cache="private", devices={"cpu": 8})
    # A worker keeps its case until all have one, so that each of the eight has compiled.
    cases = [{**says(f"c{n}", a=["gate"], b=["caches"])} for n in range(8)]
    call = telling.launch([{**case, "measure": {"retries": 0}} for case in cases])
    wait_for(lambda: len(telling.trace("gates")) == 8)
    (telling.traces / "open").touch()
    assert call.expect("end")["state"] == "finished"
    told = [record["extra"] for record in telling.measurements() if record["backend"] == "b"]
    assert len({extra["TRITON_CACHE_DIR"] for extra in told}) == 8
    assert len({extra["TORCH_EXTENSIONS_DIR"] for extra in told}) == 8


def test_what_a_killed_worker_locked_in_a_private_cache_holds_up_nobody(tmp_path: Path) -> None:
    chosen, problems = jit_caches.private({"HOME": str(tmp_path)}, str(tmp_path / "own"), everything=True)
    assert problems == []
    assert set(chosen) == {cache.variable for cache in jit_caches.CACHES}
    lock = Path(chosen["TORCH_EXTENSIONS_DIR"]) / "kernel" / "lock"
    lock.parent.mkdir()
    lock.touch()
    (lock.parent / "kernel.so").touch()
    jit_caches.private({"HOME": str(tmp_path)}, str(tmp_path / "own"), everything=True)
    assert not lock.exists()
    assert (lock.parent / "kernel.so").exists()


def test_a_lock_that_a_living_process_has_open_is_not_stale(tmp_path: Path) -> None:
    environ = {cache.variable: str(tmp_path / cache.variable) for cache in jit_caches.CACHES}
    folder = tmp_path / "TORCH_EXTENSIONS_DIR"
    folder.mkdir()
    with open(folder / "lock", "x"):
        (lock,) = jit_caches.locks(environ)
        assert lock.holder == os.getpid()
        assert jit_caches.left_behind(environ, 0.0) == []
    (lock,) = jit_caches.locks(environ)
    assert lock.holder is None
    assert [each.path for each in jit_caches.left_behind(environ, 0.0)] == [str(folder / "lock")]


def test_an_unwritable_cache_is_known_before_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    env = {"TRITON_CACHE_DIR": str(tmp_path / "file")}
    facts = probe({"devices": {"cpu": 1}, "workdir": str(tmp_path), "modules": [], "env": env})
    assert facts["problems"] == [
        f"{tmp_path}/file is no folder (TRITON_CACHE_DIR): workers will compile into private caches, anew in each run"
    ]


def test_values_that_json_does_not_know_do_not_cost_the_measurement(telling: Host) -> None:
    record = telling.run([says("c1", a=["strange"])])["c1/a"]
    assert (record["status"], record["timing"]["median_us"]) == ("ok", 10.0)
    assert record["metrics"] == {"a": None, "b": None, "c": 1}
    assert record["reason"] == "extra.f is infinity; metrics.a is NaN; metrics.b is -infinity"
    assert record["extra"] == {"f": None, "d": "text", "e": 10**400}
    journal = (telling.run_dir / "events.jsonl").read_text()
    assert "NaN," not in journal
    assert "Infinity" not in journal
