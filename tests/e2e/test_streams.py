"""A run is worth its while whether or not somebody reads what the command has to say about it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import pytest
from typer.core import TyperGroup

from orchestrator.cli import app
from tests.e2e.conftest import Laptop
from tests.support.sshd import Sshd


@pytest.fixture
def desk(laptop: Laptop, host: Sshd) -> Laptop:
    laptop.hosts(host)
    laptop.write("one.py", "print('{\"median_us\": 1.5}')\n")
    laptop.write(
        "sweep.yaml",
        json.dumps({"name": "s", "payload": {"script": "one.py", "results": "json_lines"}, "matrix": {"m": [1, 2]}}),
    )  # fmt: skip
    return laptop


@contextmanager
def left() -> Iterator[int]:
    """A pipe whose reader has left."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def run(desk: Laptop, *options: str, shell: str = 'exec "$@"', **streams: Any) -> tuple[int, str]:
    """`farbench run` with these streams; its exit code and what it said on standard error, if that is read."""
    wanted: dict[str, int | IO[Any]] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **streams}
    done = subprocess.run(
        ["/bin/sh", "-c", shell, "sh", sys.executable, "-m", "orchestrator", "run", "sweep.yaml", *options],
        cwd=desk.folder, env=desk.environ, text=True, check=False, **{"stderr": subprocess.PIPE, **wanted},
    )  # fmt: skip
    return done.returncode, done.stderr or ""


def measured(desk: Laptop) -> list[tuple[str, dict[str, int]]]:
    return [(run["state"], run["counts"]) for run in desk.farbench("runs", "--json").json()["runs"]]


def test_a_reader_who_has_left_ends_no_run(desk: Laptop) -> None:
    with left() as nobody:
        assert run(desk, stdout=nobody, stderr=nobody) == (0, "")
        code, said = run(desk, "--json", stdout=nobody)
    assert code == 0
    assert "Traceback" not in said
    assert measured(desk) == [("finished", {"ok": 2})] * 2


def test_a_run_whose_messages_nobody_hears_is_measured(desk: Laptop) -> None:
    assert run(desk, shell='exec "$@" <&- 2>&-') == (0, "")
    with open("/dev/full", "w") as full:
        assert run(desk, stderr=full) == (0, "")
    assert measured(desk) == [("finished", {"ok": 2})] * 2


def test_a_full_output_is_said_and_the_run_measured(desk: Laptop) -> None:
    with open("/dev/full", "w") as full:
        code, said = run(desk, stdout=full)
    assert code == 1
    assert said.startswith(
        "warning: standard output cannot be written (No space left on device); the run is 2"
    )
    assert said.endswith("error: the output cannot be written: No space left on device\n")
    assert measured(desk) == [("finished", {"ok": 2})]


def test_a_report_that_nobody_reads_is_no_error(desk: Laptop) -> None:
    assert run(desk)[0] == 0
    with left() as nobody:
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator", "report", "latest", "--format", "json"],
            cwd=desk.folder, env=desk.environ, stdout=nobody, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_while_arguments_are_read_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(TyperGroup, "make_context", interrupted)
    assert app.run(["runs"]) == 130
    assert capsys.readouterr().err == "interrupted\n"
