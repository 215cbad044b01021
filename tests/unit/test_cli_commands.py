"""Every command is listed where it is loaded from, has help with its own words, and is in the documentation."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from orchestrator.cli import app as application
from orchestrator.cli.app import MODULES, make_app
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


def test_an_interrupt_that_a_library_made_an_error_of_is_no_bug(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C while pydantic's compiled part builds a model."""

    def loaded(_: str | None) -> typer.Typer:
        raise RuntimeError('Error building "model" validator:\n  KeyboardInterrupt: ')

    monkeypatch.setattr(application, "make_app", loaded)
    assert application.run(["plan"]) == 130
    assert capsys.readouterr().err == "interrupted\n"
