"""What travels in the wheel: the templates, the harness, the agent, the starter files, the type marker."""

from __future__ import annotations

import zipfile
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).resolve().parents[2]


def test_the_wheel_carries_everything_that_runs(tmp_path: Path) -> None:
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    names = set(zipfile.ZipFile(wheel).namelist())
    for template in (ROOT / "payloads").glob("*.py.j2"):
        assert f"orchestrator/_payloads/{template.name}" in names
    for module in (ROOT / "payloads" / "harness").glob("*.py"):
        assert f"orchestrator/_payloads/harness/{module.name}" in names
    for module in (ROOT / "orchestrator" / "agent").glob("*.py"):
        assert f"orchestrator/agent/{module.name}" in names
    assert {
        "orchestrator/py.typed",
        "orchestrator/cli/starter/hosts.yaml",
        "orchestrator/cli/starter/sweep.yaml",
    } <= names
    assert not any("tests/" in name or name.endswith(".pyc") for name in names)


def test_the_shipped_hosts_file_is_what_init_writes() -> None:
    starter = ROOT / "orchestrator" / "cli" / "starter" / "hosts.yaml"
    assert (ROOT / "hosts.yaml").read_text(encoding="utf-8") == starter.read_text(encoding="utf-8")
