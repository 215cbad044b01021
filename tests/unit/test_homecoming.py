"""What is brought home of hosts that send more than they announced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrator.launch.dialogue import Dialogue, FilePart
from orchestrator.launch.messages import RemoteFile
from orchestrator.run import homecoming


class Liar:
    """A host whose files announce 10 bytes, and grow by as much as is taken."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.taken = 0

    def list_files(self, run_id: str) -> list[RemoteFile]:
        return [RemoteFile(f"collected/{name}", 10) for name in self.names]

    def read(self, run_id: str, path: str, offset: int, limit: int) -> FilePart:
        self.taken += 10
        return FilePart(path, offset + 20 if path.endswith("endless") else 10, b"0123456789")


def save(path: str, pieces: Iterator[bytes]) -> Path:
    return Path(path)


def test_a_file_that_grows_while_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homecoming, "FILE_LIMIT_BYTES", 25)
    liar, problems = Liar(["a", "endless", "b"]), list[str]()
    came = list(homecoming.bring(cast("Dialogue", cast("Any", liar)), "r", save, problems))
    assert came == [(Path("collected/a"), 10), (Path("collected/b"), 10)]
    assert [problem.split(":")[0] for problem in problems] == ["collected/endless is not brought home"]
    assert liar.taken == 50


def test_all_files_of_a_host_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homecoming, "HOST_LIMIT_BYTES", 25)
    liar, problems = Liar(["a", "b", "c", "d"]), list[str]()
    came = list(homecoming.bring(cast("Dialogue", cast("Any", liar)), "r", save, problems))
    assert [path.name for path, _ in came] == ["a", "b"]
    assert len(problems) == 2
    assert "all files of a host" in problems[0]
