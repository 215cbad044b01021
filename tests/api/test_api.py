"""The Python API as a notebook uses it, on the embedded host."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import orchestrator.api as farbench
from orchestrator.errors import FileError, UsageError
from tests.e2e.conftest import end_processes_below
from tests.e2e.templates import SLEEPY


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "payloads").mkdir()
    (tmp_path / "payloads" / "sleepy.py.j2").write_text(SLEEPY)
    host = {"embedded": True, "devices": {"cpu": 2}, "workdir": str(tmp_path / "work")}
    (tmp_path / "hosts.yaml").write_text(json.dumps({"hosts": {"local": host}}))
    sweep = {
        "name": "s",
        "payload": "sleepy",
        "matrix": {"i": [1, 2, 3, 4], "seconds": [0.0]},
        "backends": ["one"],
    }
    (tmp_path / "sweep.yaml").write_text(json.dumps(sweep))
    yield tmp_path
    end_processes_below(tmp_path)


def test_measurements_arrive_one_by_one_and_come_back_as_frames(desk: Path) -> None:
    heard: list[str] = []
    hosts = farbench.load_inventory("hosts.yaml")
    sweep = farbench.load_sweep("sweep.yaml", sets=["i=[1, 2, 3]"])
    assert [c.params["i"] for c in farbench.plan(sweep, hosts).cases] == [1, 2, 3]
    states: list[str] = []
    with farbench.run(
        sweep, hosts, hosts="local",
        on_measurement=lambda m: heard.append(m.case_id), on_host=lambda view: states.append(view.phase),
    ) as run:  # fmt: skip
        seen = list(run)
        assert sorted(m.params["i"] for m in seen) == [1, 2, 3]
        assert run.outcome.state == "finished"
        assert run.outcome.counts == {"ok": 3}
    assert heard == [m.case_id for m in seen]
    assert states[-1] == "ok"
    assert list(run) == []

    results = farbench.Archive("archive").results()
    assert len(results.rows()) == 3
    assert results.arrow().num_rows == 3
    assert set(results.pandas()["run_id"]) == {run.run_id}
    assert results.polars().height == 3
    assert farbench.Archive("archive").results("select count(*) as n from samples").rows() == [{"n": 30}]
    assert "i=2" in farbench.report()
    assert json.loads(farbench.report(run.run_id, format="json"))["run"]["run_id"] == run.run_id

    again = farbench.run(sweep, hosts)
    assert again.outcome.counts == {"ok": 3}
    comparison = farbench.compare(run.run_id, again.run_id, threshold=0.02)
    assert len(comparison.pairs) == 3
    assert comparison.threshold == 0.02
    with pytest.raises(TypeError, match="treshold"):
        farbench.compare(run.run_id, treshold=0.02)  # type: ignore[call-arg]


def test_leaving_early_detaches(desk: Path) -> None:
    sweep = farbench.load_sweep("sweep.yaml", sets=["seconds=[0.5]"])
    with farbench.run(sweep, farbench.load_inventory("hosts.yaml")) as run:
        first = next(iter(run))
        assert first.status == "ok"
    with pytest.raises(UsageError, match="farbench attach"):
        _ = run.outcome
    assert [r.run_id for r in farbench.Archive("archive").runs()] == [run.run_id]


def test_refusals_are_exceptions_of_one_tree(desk: Path) -> None:
    with pytest.raises(FileError, match=r"nothing\.yaml"):
        farbench.load_sweep("nothing.yaml")
    hosts = farbench.load_inventory("hosts.yaml")
    with pytest.raises(UsageError, match="nowhere"):
        farbench.run(farbench.load_sweep("sweep.yaml"), hosts, hosts="nowhere")
    assert not (desk / "archive").exists()


@pytest.mark.parametrize(
    ("method", "missing"),
    [
        ("arrow", "pyarrow"),
        ("pandas", "pandas"),
        ("pandas", "pyarrow"),
        ("polars", "polars"),
        ("polars", "pyarrow"),
    ],
)
def test_a_frame_without_its_library_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)  # importing it fails, as where it is not installed
    results = farbench.Archive(tmp_path).results()
    with pytest.raises(UsageError) as refusal:
        getattr(results, method)()
    said = str(refusal.value)
    assert said.startswith(f".{method}() needs {missing}, ")
    assert "pip install 'farbench[notebook]'" in said
    assert "\n" not in said
    assert results.rows() == []
