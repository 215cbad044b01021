"""Pages of made-up runs, and one browser for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.archive import Archive, RunFolder
from orchestrator.report import build, render
from tests.pages.browser import Browser, browser
from tests.pages.made_runs import make_big_run, make_run


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser window."""
    with browser(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


def page_of(run: RunFolder, path: Path) -> Path:
    """The run's page, in a file."""
    content = render(build(Archive(run.path.parent.parent), run), "html", run)
    assert isinstance(content, str)
    path.write_text(content, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def made_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Eight shapes by three backends on two devices of two hosts, with attacks in what they say."""
    return make_run(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def made_page(made_run: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page_of(made_run, tmp_path_factory.mktemp("page") / "run.html")


@pytest.fixture(scope="module")
def big_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """10,000 measurements."""
    folder = tmp_path_factory.mktemp("big")
    return page_of(make_big_run(folder, 10_000), folder / "run.html")
