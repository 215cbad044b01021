"""What the README tells a newcomer to type works as it stands there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.e2e.conftest import Laptop

ROOT = Path(__file__).resolve().parents[2]
FP4 = "examples/fp4-gemm-glm5.yaml"


def clone(laptop: Laptop) -> None:
    """What of a clone the first steps need: its hosts.yaml and its examples."""
    shutil.copy(ROOT / "hosts.yaml", laptop.folder)
    shutil.copytree(ROOT / "examples", laptop.folder / "examples")


def test_init_in_a_clone_writes_what_is_missing_and_leaves_the_rest(laptop: Laptop) -> None:
    clone(laptop)
    laptop.write("hosts.yaml", "hosts: {mine: {embedded: true}}\n")
    done = laptop.farbench("init")
    assert done.code == 0, done.stderr
    assert done.stderr == (
        "wrote sweep.yaml\nleft alone: hosts.yaml (--force replaces)\nnext: farbench run sweep.yaml\n"
    )
    assert "mine" in (laptop.folder / "hosts.yaml").read_text(encoding="utf-8")
    assert laptop.farbench("plan", "sweep.yaml", "--host", "mine").code == 0

    again = laptop.farbench("init")
    assert again.code == 4
    assert (
        again.stderr == "error: nothing to write; left alone: hosts.yaml and sweep.yaml (--force replaces)\n"
    )
    assert laptop.farbench("init", "--force").code == 0
    assert "mine" not in (laptop.folder / "hosts.yaml").read_text(encoding="utf-8")


def test_the_hosts_of_the_readme_lead_to_its_plan(laptop: Laptop) -> None:
    clone(laptop)
    refused = laptop.farbench("plan", FP4)
    assert refused.code == 2
    assert (
        "has tag 'gpu'; tags there: none. Give a host such a tag, or name hosts with --host" in refused.stderr
    )
    assert laptop.farbench("plan", FP4, "--host", "local").code == 0

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(# hosts\.yaml\n.*?)```", readme, re.DOTALL)
    laptop.write("hosts.yaml", block)
    planned = laptop.farbench("plan", FP4, "--json")
    assert planned.code == 0, planned.stderr
    assert {p["host"] for p in planned.json()["placements"]} == {"blackwell"}


def test_a_choice_that_there_is_not_is_told_in_plain_words(laptop: Laptop) -> None:
    done = laptop.farbench("report", "latest", "--format", "pdf")
    assert done.code == 2
    assert "Invalid value for '--format': 'pdf' is not one of" in done.stderr
    assert laptop.farbench("report").stderr == "error: there is no run in the archive yet (archive)\n"
