"""What hosts complain of while a run goes on reaches who watches it."""

from __future__ import annotations

import io
import json

from rich.console import Console

from orchestrator.cli.plain import PlainProgress
from orchestrator.cli.progress import LiveProgress
from orchestrator.events import Fold

NO_RIGHT = "the clocks cannot be locked, and cases are measured as they are: it has no GPU"


def problem(message: str) -> bytes:
    return json.dumps({"t": 1.0, "mono": 1.0, "type": "problem", "message": message}).encode() + b"\n"


def test_each_problem_of_a_host_is_told_once() -> None:
    said: list[str] = []
    progress, fold = PlainProgress(said.append), Fold(run_id="r")
    list(fold.feed("a", problem(NO_RIGHT)))
    progress.tick(fold, 3)
    progress.tick(fold, 3)
    list(fold.feed("a", problem(NO_RIGHT) + problem("the driver hangs\nsince yesterday") + problem(" ")))
    list(fold.feed("b", problem(NO_RIGHT)))
    progress.tick(fold, 3)
    assert said == [f"a: {NO_RIGHT}", "a: the driver hangs", f"b: {NO_RIGHT}"]


def test_in_a_terminal_it_stays_on_the_screen() -> None:
    screen = io.StringIO()
    progress, fold = LiveProgress(Console(file=screen, force_terminal=True, width=200)), Fold(run_id="r")
    list(fold.feed("a", problem(NO_RIGHT)))
    progress.tick(fold, 3)
    assert f"a: {NO_RIGHT}" in screen.getvalue()
