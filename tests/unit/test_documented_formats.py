"""What docs/architecture.md and the docstring of run.json say of the formats, against the code that reads and writes them."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from orchestrator.agent.paths import RunPaths
from orchestrator.archive import document
from orchestrator.events.journal import Event
from orchestrator.inventory import HostSpec
from orchestrator.job import build_job
from orchestrator.plan import make_plan
from orchestrator.rendering import Catalogue
from orchestrator.sweep import load_sweep

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
PASSED_OVER = {"coordinator", "cancel_requested"}
"""Events that are for a person who reads the journal; the controller needs none of them."""


def section(title: str) -> str:
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def events() -> dict[str, set[str]]:
    """Field names by event, as the table has them."""
    found: dict[str, set[str]] = {}
    for line in section("The journal").splitlines():
        if line.startswith("| `"):
            _, names, fields, _ = line.split("|")
            said = {word for code in re.findall(r"`([^`]*)`", fields) for word in re.findall(r"\w+", code)}
            found |= dict.fromkeys(re.findall(r"\w+", names), said)
    return found


def appended() -> list[tuple[str, set[str]]]:
    """Every event that the agent's code writes by name, with the fields that it names there."""
    return [
        (str(node.args[0].value), {keyword.arg for keyword in node.keywords if keyword.arg})
        for path in (ROOT / "orchestrator/agent").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith("journal.append")
        and isinstance(node.args[0], ast.Constant)
    ]


def test_the_journal_s_table_names_the_events_that_are_read() -> None:
    read = {name for model in get_args(Event) for name in get_args(model.model_fields["type"].annotation)}
    assert set(events()) == read | PASSED_OVER


@pytest.mark.parametrize("model", get_args(Event), ids=lambda model: model.__name__)
def test_the_journal_s_table_names_the_fields_that_are_read(model: Any) -> None:
    for name in get_args(model.model_fields["type"].annotation):
        assert set(model.model_fields) - {"t", "mono", "type"} <= events()[name], name


def test_the_journal_s_table_names_what_the_agent_writes() -> None:
    written = appended()
    assert len(written) > 10
    for name, fields in written:
        assert fields <= events()[name], name


def test_the_example_of_a_job_has_every_key(tmp_path: Path) -> None:
    (tmp_path / "gemm.py.j2").write_text("x = 1\n")
    (tmp_path / "sweep.yaml").write_text("payload: gemm\nmatrix: {m: [1]}\nbackends: [numpy]\n")
    host = HostSpec(name="one", address="one")
    plan = make_plan(load_sweep(tmp_path / "sweep.yaml"), [host], [], Catalogue([tmp_path]))
    example = json.loads(section("On the host").split("```json\n")[1].split("```")[0])
    assert example.keys() == build_job(plan, host, "r", "n").job.keys()


def test_the_tree_on_the_host_has_every_file_of_a_run() -> None:
    tree = section("On the host").split("`job.json`:")[0]
    paths = RunPaths("/w", "r")
    places = {
        str(Path(path).relative_to(paths.root))
        for path in vars(paths).values()
        if path.startswith(f"{paths.root}/")
    }
    assert len(places) > 10
    assert {place for place in places if not re.search(rf"[\s/]{re.escape(place)}[\s/]", tree)} == set()


@pytest.mark.parametrize(
    "part",
    [
        document.RunDocument, document.SweepRecord, document.PlanRecord, document.CaseRecord,
        document.PlacementRecord, document.HostRecord,
    ],
    ids=lambda part: part.__name__,
)  # fmt: skip
def test_the_docstring_of_run_json_names_every_key(part: Any) -> None:
    said = set(re.findall(r"\w+", document.__doc__ or ""))
    assert set(part.model_fields) <= said
