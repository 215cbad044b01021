"""Every command is listed where it is loaded from, has help with its own words, and is in the documentation."""

from __future__ import annotations

import importlib
import io
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from orchestrator.cli import app as application
from orchestrator.cli.app import MODULES, make_app
from orchestrator.cli.console import out
from orchestrator.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = [command for commands in MODULES.values() for command in commands]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_registers_the_commands_it_is_listed_with(module: str) -> None:
    app = typer.Typer()
    importlib.import_module(f"orchestrator.cli.{module}").register(app)
    names = [c.name or c.callback.__name__ for c in app.registered_commands if c.callback]  # type: ignore[attr-defined]
    assert set(names) == set(MODULES[module])


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_and_is_documented(command: str) -> None:
    registered = {c.name or c.callback.__name__: c for c in make_app().registered_commands if c.callback}  # type: ignore[attr-defined]
    text = registered[command].callback.__doc__  # type: ignore[union-attr]
    assert text
    assert len(text.split()) >= 8
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    assert any(f"farbench {command}" in page.read_text(encoding="utf-8") for page in pages), command


def test_a_command_loads_only_its_own_module() -> None:
    names = {c.callback.__name__ for c in make_app("plan").registered_commands if c.callback}  # type: ignore[attr-defined]
    assert names == set(MODULES["sweep_commands"])
    assert len(make_app("nonsense").registered_commands) == len(COMMANDS)


def test_payloads_lists_those_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    found = runner.invoke(make_app("payloads"), ["payloads", "copy", "gemm_int8", "copy", "--json"])
    assert [payload["name"] for payload in json.loads(found.stdout)["payloads"]] == ["copy", "gemm_int8"]
    everything = json.loads(runner.invoke(make_app("payloads"), ["payloads", "--json"]).stdout)
    assert len(everything["payloads"]) == 10
    with pytest.raises(UsageError, match=r"no payload 'gem_int8'.*gemm_int8"):
        runner.invoke(make_app("payloads"), ["payloads", "gem_int8"], catch_exceptions=False)


class Troubled(io.StringIO):
    """A stream that fails while it handles Ctrl-C."""

    def write(self, text: str) -> int:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            return len(text) // 0


def test_a_bug_that_comes_while_an_interrupt_is_handled_is_a_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as changed:
        changed.setattr(sys, "stdout", Troubled())
        assert application.run(["payloads", "--json"]) == 70
    told = capsys.readouterr().err
    assert "ZeroDivisionError" in told
    assert "This is a bug in farbench" in told


@pytest.fixture
def as_wide_as_a_file(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COLUMNS", "160")
    out.cache_clear()
    yield
    out.cache_clear()


@pytest.mark.usefixtures("as_wide_as_a_file")
@pytest.mark.parametrize(
    "command",
    [
        ["report"], ["report", "--format", "markdown"], ["report", "--json"], ["query", "select label from results"],
        ["query", "select label from results", "--format", "csv"], ["history", "n=100"], ["history", "n=100", "--json"],
        ["plot"], ["compare", "history"], ["compare", "history", "--json"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_what_is_written_to_a_file_is_what_would_be_printed(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = shutil.copytree(ROOT / "tests" / "exchange" / "data" / "archive-v1", tmp_path / "archive")
    monkeypatch.setenv("FARBENCH_ARCHIVE", str(archive))
    shown = application.run(command)
    printed = capsys.readouterr().out
    assert printed.strip()
    target = tmp_path / "new" / "file"
    assert application.run([*command, "-o", str(target)]) == shown
    told = capsys.readouterr()
    assert told.out == ""
    assert f"wrote {target}\n" in told.err
    written = target.read_text(encoding="utf-8")
    assert [line.rstrip() for line in written.splitlines()] == [
        line.rstrip() for line in printed.splitlines()
    ]
