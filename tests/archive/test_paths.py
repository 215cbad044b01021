from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.archive import RunFolder, new_run_id, safe_name


def test_a_run_id_tells_the_time_and_sorts_by_it():
    first = new_run_id(lambda: 1735787045.9, lambda n: bytes(range(n)))
    later = new_run_id(lambda: 1735787046.0, lambda n: bytes(n))
    assert first == "20250102T030405Z-000102"
    assert later == "20250102T030406Z-000000"
    assert first < later


@pytest.mark.parametrize(
    ("host", "folder"),
    [
        ("gpu1.example.com", "gpu1.example.com"),
        ("../../etc", "%2E.%2F..%2Fetc"),
        ("..", "%2E."),
        (".", "%2E"),
        ("rack 3/gpu é", "rack%203%2Fgpu%20%C3%A9"),
        ("a\0b", "a%00b"),
    ],
)
def test_a_hosts_name_is_one_plain_folder_name(host: str, folder: str, tmp_path: Path):
    assert safe_name(host) == folder
    run = RunFolder(tmp_path)
    path = run.events(host)
    assert path.parent.parent == run.hosts
    path.parent.mkdir(parents=True)
    path.touch()
    assert run.host_names() == [host]


def test_long_names_stay_apart_and_are_known_by_the_document(tmp_path: Path):
    one, other = "n" * 300 + "1", "n" * 300 + "2"
    assert safe_name(one) != safe_name(other)
    assert len(safe_name(one)) <= 120
    run = RunFolder(tmp_path)
    run.events(one).parent.mkdir(parents=True)
    run.events(one).touch()
    assert run.host_names((other, one)) == [one]


def test_a_run_knows_whether_it_can_still_change(tmp_path: Path):
    assert RunFolder(tmp_path / "runs" / "x").is_committed
    assert not RunFolder(tmp_path / "open" / "x").is_committed
