"""`farbench compare` and `farbench history`, run as users run them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from orchestrator.archive import Archive

QUIET = [100.0, 100.2, 99.9, 100.1, 99.8, 100.0, 100.3, 99.9, 100.1, 100.0]
Farbench = Callable[..., subprocess.CompletedProcess[str]]


def test_a_regression_exits_with_5_unless_it_is_told_not_to(
    farbench: Farbench, add_runs: Callable[..., list[str]]
) -> None:
    ids = add_runs([*QUIET, 104.0])
    done = farbench("compare", ids[9], "latest")
    assert done.returncode == 5, done.stderr
    assert "1 compared: 1 slower" in done.stdout
    assert farbench("compare", "history").returncode == 5
    assert farbench("compare", ids[9], "latest", "--fail-on", "none").returncode == 0
    assert farbench("compare", "latest", ids[9], "--json").returncode == 0
    assert farbench("compare", ids[9], "latest", "--threshold", "10").returncode == 0


def test_what_is_the_same_exits_with_0_and_what_is_nothing_with_4(
    farbench: Farbench, add_runs: Callable[..., list[str]], add_run: Callable[..., object], measured: Callable[..., object]
) -> None:  # fmt: skip
    ids = add_runs(QUIET)
    assert farbench("compare", ids[8], ids[9]).returncode == 0
    add_run("20250109T000000Z-000000", [measured("other")])
    done = farbench("compare", ids[9], "latest")
    assert done.returncode == 4
    assert "Nothing could be compared" in done.stdout
    assert "left out (2)" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("no-such-run", "latest"),
        ("latest", "latest"),
        ("baseline",),
        ("latest", "history", "--threshold", "-1"),
    ],
)
def test_wrong_usage_exits_with_2(
    farbench: Farbench, add_runs: Callable[..., list[str]], arguments: tuple[str, ...]
) -> None:
    add_runs([100.0, 100.0])
    done = farbench("compare", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


def test_files_for_ci_are_written_where_they_are_asked_for(
    farbench: Farbench, add_runs: Callable[..., list[str]], tmp_path: Path
) -> None:
    ids = add_runs([*QUIET, 104.0])
    for format, name in (
        ("junit", "out/report.xml"),
        ("markdown", "summary.md"),
        ("json", "c.json"),
        ("table", "t"),
    ):
        done = farbench("compare", ids[9], "latest", "--format", format, "-o", str(tmp_path / name))
        assert (done.returncode, done.stdout) == (5, "")
    assert ET.parse(tmp_path / "out/report.xml").getroot().get("failures") == "1"
    assert (tmp_path / "summary.md").read_text("utf-8").startswith("### 🔴 1 of 1 slower")
    assert json.loads((tmp_path / "c.json").read_text("utf-8"))["counts"]["slower"] == 1
    assert "slower" in (tmp_path / "t").read_text("utf-8")


def test_history_shows_the_trend(farbench: Farbench, add_runs: Callable[..., list[str]]) -> None:
    ids = add_runs([*QUIET, *(1.2 * t for t in QUIET)])
    done = farbench("history", "m=16*")
    assert done.returncode == 0, done.stderr
    assert f"at {ids[10]}" in done.stdout
    assert "+20." in done.stdout
    assert "▁" in done.stdout
    (series,) = json.loads(farbench("history", "c1", "--json").stdout)["series"]
    assert len(series["points"]) == 20
    assert series["changes"][0]["run_id"] == ids[10]
    assert series["changes"][0]["change_percent"] == pytest.approx(20.0, abs=0.3)
    assert farbench("history", "c1", "--backend", "none").returncode == 4


def test_real_runs_of_a_program_that_became_slower(farbench: Farbench, archive: Archive) -> None:
    """From a sweep to the exit code: the program's time comes from a file beside it, which changes between runs."""
    folder = archive.path.parent
    (folder / "bench.py").write_text(
        "import json\nus = float(open('time.txt').read())\n"
        "print(json.dumps({'samples_us': [us * (1 + 0.001 * (i * 7 % 5)) for i in range(30)]}))\n"
    )
    (folder / "sweep.yaml").write_text(
        "name: b\npayload: {script: bench.py, files: [time.txt]}\nmatrix: {m: [1, 2]}\nhosts: local\n"
    )
    host = {"embedded": True, "workdir": str(folder / "work")}
    (folder / "hosts.yaml").write_text(json.dumps({"hosts": {"local": host}}))
    for time_us in (100, 101, 100, 99, 400):
        (folder / "time.txt").write_text(str(time_us))
        done = farbench("run", "sweep.yaml")
        assert done.returncode == 0, done.stderr
    done = farbench("compare", "history", "latest", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["counts"]["slower"]) == (5, 2), found
    assert [round(pair["change_percent"]) for pair in found["pairs"]] == [300, 300]
    assert found["a"]["name"] == "4 earlier runs"
