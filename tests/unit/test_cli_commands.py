"""Every command is listed where it is loaded from, has help with its own words, and is in the documentation."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import typer

from orchestrator.cli.app import MODULES, make_app

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
