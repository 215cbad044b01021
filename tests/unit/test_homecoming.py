"""What is brought home of a host: within bounds, whatever it announced, and nothing that is here already."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.launch.dialogue import Dialogue
from orchestrator.launch.fetching import Fetched
from orchestrator.launch.messages import RemoteFile
from orchestrator.run import homecoming
from orchestrator.run.homecoming import Shelf


class Liar:
    """A host that announces 10 bytes of each file, and sends as many as it likes."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = {f"collected/{name}": size for name, size in sizes.items()}
        self.taken = 0

    def list_files(self, run_id: str) -> list[RemoteFile]:
        return [RemoteFile(name, 10) for name in self.sizes]

    def fetch(
        self, dialogue: object, run_id: str, wanted: Mapping[str, str | None], limit: int
    ) -> Iterator[Fetched]:
        for name in wanted:
            size = self.sizes[name]
            self.taken += size
            yield Fetched(
                name, size, None if size > limit else io.BytesIO(bytes(size)), is_large=size > limit
            )


def brought(liar: Liar, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[str], list[str]]:
    """(names that came, problems, what was said)."""
    monkeypatch.setattr(homecoming, "fetch", liar.fetch)
    problems, said = list[str](), list[str]()
    shelf = Shelf(lambda path, pieces: Path(path), lambda path: [Path("/nowhere") / path])
    came = homecoming.bring(cast("Dialogue", cast("Any", liar)), "r", shelf, problems, said.append)
    return [path.name for path, _ in came], problems, said


def test_a_file_that_grows_while_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homecoming, "FILE_LIMIT_BYTES", 25)
    came, problems, said = brought(Liar({"a": 10, "grown": 30, "b": 10}), monkeypatch)
    assert came == ["a", "b"]
    assert [problem.split(":")[0] for problem in problems] == ["collected/grown is not brought home"]
    assert said[0] == "bringing home 1/3 files"


def test_all_files_of_a_host_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homecoming, "HOST_LIMIT_BYTES", 25)
    came, problems, _ = brought(Liar({"a": 10, "b": 10, "c": 10, "d": 10}), monkeypatch)
    assert came == ["a", "b"]
    assert len(problems) == 2
    assert "all files of a host" in problems[0]


def test_all_files_of_a_host_that_sends_more_than_it_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homecoming, "HOST_LIMIT_BYTES", 45)
    liar = Liar({"a": 10, "b": 40, "c": 10, "d": 10})
    came, problems, _ = brought(liar, monkeypatch)
    assert came == ["a"]
    assert "collected/b" in problems[0]
    assert "2 more files" in problems[1]
    assert liar.taken == 50


def test_what_is_here_under_another_name_is_copied_from_there(tmp_path: Path) -> None:
    """A host cannot make us believe that we have what we have not."""
    (tmp_path / "copy").write_bytes(b"0123456789")

    def save(path: str, pieces: Iterator[bytes]) -> Path:
        (tmp_path / "saved").write_bytes(b"".join(pieces))
        return tmp_path / "saved"

    def places(second: str, path: str) -> list[Path]:
        return [tmp_path / "target", tmp_path / second]

    same = Fetched("logs/x", 10, is_same=True)
    listed = RemoteFile("logs/x", 10)
    for second, kept in (("copy", tmp_path / "saved"), ("none", None)):
        shelf = Shelf(save, partial(places, second))
        copy = homecoming._copy_of(listed, shelf)
        assert (copy is None) == (kept is None)
        if kept is not None:
            assert homecoming._keep(same, copy, shelf) == kept
            assert kept.read_bytes() == b"0123456789"
        else:
            with pytest.raises(homecoming.ArchiveError, match="which it is not"):
                homecoming._keep(same, copy, shelf)
