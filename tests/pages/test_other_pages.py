"""The pages of a comparison and of a history: made from runs that are resampled from one, watched in Chromium."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By

from orchestrator.archive import Archive, read_results
from orchestrator.compare import Outcome, compare, history
from orchestrator.compare.values import Difference, LeftOut
from orchestrator.report.html import changes, trends
from tests.pages.browser import Browser
from tests.pages.conftest import page_of
from tests.pages.made_runs import BACKENDS, EVIL, devices, failed, measurement, write_run

CASES = [
    {"id": f"{m:016x}", "label": f"m={m}", "payload": "gemm_fp4", "params": {"m": m, "n": 2048, "k": 6144}} for m in (16, 64)
]  # fmt: skip
CASES[0]["label"] = EVIL


@pytest.fixture(scope="module")
def nightly(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    """Twelve nights; from the ninth on `torch` takes half as long again, and in the last `sgl_kernel` crashes."""
    folder = tmp_path_factory.mktemp("nightly")
    archive = Archive(folder / "archive")
    device = devices("gpu-a", 1)[0]
    for night in range(12):
        records = []
        for case in CASES:
            for backend in BACKENDS:
                us = (
                    10.0
                    * (1.5 if backend == "torch" and night >= 8 else 1.0)
                    * (1 + 0.001 * ((night * 7) % 5))
                )
                record = measurement("gpu-a", device, case, backend, us)
                record["samples_us"] = [us * (1 + 0.0005 * (i % 7 - 3)) for i in range(40)]
                record["started_at"] = f"2025-01-{night + 1:02}T03:04:06Z"
                crashes = night == 11 and backend == "sgl_kernel"
                records.append(failed(record | {"samples_us": None}, "crashed", EVIL) if crashes else record)
        run = write_run(folder / "one", CASES, records, ("gpu-a",), replicate="replicate")
        run_id = f"202501{night + 1:02}T030405Z-abcdef"
        goal = archive.path / "runs" / run_id
        goal.parent.mkdir(parents=True, exist_ok=True)
        run.path.rename(goal)
        document = json.loads((goal / "run.json").read_text())
        started = f"2025-01-{night + 1:02}T03:04:05Z"
        (goal / "run.json").write_text(json.dumps({**document, "run_id": run_id, "started_at": started}))
        renamed = [m.model_copy(update={"run_id": run_id}) for m in read_results(archive.find(run_id))]
        (goal / "results.jsonl").write_text("".join(m.model_dump_json() + "\n" for m in renamed))
        (goal / "results.parquet").unlink()
    return archive


def opened(chromium: Browser, path: Path, text: str, charts: int) -> None:
    path.write_text(text, encoding="utf-8")
    for width, dark in ((1400, False), (400, True)):
        chromium.open(path, width=width, dark=dark)
        assert chromium.draw_everything() == charts
        assert chromium.run("return document.documentElement.scrollWidth") <= width
    assert chromium.complaints() == []
    assert all(url == path.as_uri() or url.startswith("data:") for url in chromium.requests())
    assert EVIL in chromium.run("return document.getElementById('app').innerText")
    assert chromium.run("return document.querySelectorAll('#app img').length") == 0


def test_the_page_of_a_comparison(nightly: Archive, chromium: Browser, tmp_path: Path) -> None:
    found = compare(nightly, "20250103", "20250112")
    assert {(p.match.subject.backend, p.outcome.value) for p in found.pairs} >= {("torch", "slower")}
    found = dataclasses.replace(
        found,
        differences=(Difference("gpu-a", "driver", "570.1", EVIL),),
        left_out=(*found.left_out, LeftOut("c", EVIL, "p", "", EVIL, EVIL, EVIL, EVIL)),
    )
    opened(chromium, tmp_path / "changes.html", changes.render(found), 1)
    first = chromium.find("tbody tr.row")
    cells = [cell.text for cell in first.find_elements(By.XPATH, "./*")]
    assert cells[2:4] == ["torch", "✗ slower"]
    assert cells[4].startswith("+49.") or cells[4].startswith("+50.")
    left_out = chromium.all("section")[1].text
    assert "crashed" in left_out


def test_what_is_unclear_has_the_mark_of_what_is_suspect(
    nightly: Archive, chromium: Browser, tmp_path: Path
) -> None:
    found = compare(nightly, "20250103", "20250112")
    pairs = tuple(dataclasses.replace(pair, outcome=Outcome.UNCLEAR) for pair in found.pairs)
    opened(chromium, tmp_path / "unclear.html", changes.render(dataclasses.replace(found, pairs=pairs)), 1)
    cells = chromium.find("tbody tr.row").find_elements(By.XPATH, "./*")
    assert cells[3].text == "? unclear"


def marks(chromium: Browser) -> list[list[str]]:
    """What stands beside the vertical axis of each chart."""
    assert chromium.draw_everything()
    found: list[list[str]] = chromium.run(
        "return [...document.querySelectorAll('.plot')].map(p => [...p.querySelectorAll('.ytick text')].map(t => t.textContent))"
    )
    return found


def test_times_that_hardly_differ_can_be_read_off_their_axes(chromium: Browser, tmp_path: Path) -> None:
    device = devices("gpu-a", 1)[0]
    records = [
        measurement("gpu-a", device, case, "torch", us)
        for case, us in zip(CASES, (401.0, 403.0), strict=True)
    ]
    run = write_run(tmp_path, CASES, records, ("gpu-a",), replicate="replicate")
    archive = Archive(tmp_path)
    chromium.open(page_of(run, tmp_path / "run.html"))
    times = marks(chromium)[0]
    assert [float(mark) for mark in times] == [380, 400, 420]

    (tmp_path / "history.html").write_text(
        trends.render(history(archive, "m=64"), "one run"), encoding="utf-8"
    )
    chromium.open(tmp_path / "history.html")
    (levels,) = marks(chromium)
    assert len(levels) >= 3
    assert all(len(level) <= 5 and 398 < float(level) < 408 for level in levels), levels
    assert len(set(levels)) == len(levels)
    assert chromium.complaints() == []
    assert all(url.startswith(("file:", "data:")) for url in chromium.requests())


def test_the_page_of_a_history(nightly: Archive, chromium: Browser, tmp_path: Path) -> None:
    found = history(nightly, "*")
    opened(chromium, tmp_path / "history.html", trends.render(found, f"History of {EVIL}"), 1)
    table = chromium.all("section")[1].find_element(By.TAG_NAME, "table").text
    assert table.count("20250109T030405Z-abcdef") == 2  # both cases, from the ninth night on
    assert "✗ +50." in table or "✗ +49." in table
    chosen = chromium.find("figure select").text.splitlines()[0]
    assert "torch" in chosen  # what changed comes first
