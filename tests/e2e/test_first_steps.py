"""What the README tells a newcomer to type works as it stands there."""

from __future__ import annotations

import re
import shlex
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


def test_the_help_shows_sweeps_as_they_can_be_planned(laptop: Laptop) -> None:
    clone(laptop)
    laptop.write("hosts.yaml", "hosts: {blackwell: {address: gpu1.example.com, tags: [gpu]}}\n")
    shown = []
    for command in ("plan", "render", "run"):
        text = " ".join(laptop.farbench(command, "--help").stdout.split())
        (example,) = re.findall(r"Example: farbench (.+?) ╭", text)
        shown.append(example)
        _, *arguments = shlex.split(example.split(" && ")[0])
        if command == "render":
            assert laptop.farbench(command, *arguments).code == 0, example
        else:
            hosts = () if "--host" in arguments else ("--host", "blackwell")
            done = laptop.farbench("plan", *arguments, *hosts)
            assert done.code == 0, (example, done.stderr)
    assert all(" examples/" in example for example in shown)


def test_a_payload_beside_the_sweep_says_where_to_run(laptop: Laptop) -> None:
    clone(laptop)
    refused = laptop.farbench("plan", "examples/mistakes/no_output.yaml", "--host", "local")
    folder = laptop.folder / "examples" / "mistakes"
    assert refused.code == 2
    assert f"One lies beside the sweep, in {folder / 'payloads'}: run farbench in {folder}" in refused.stderr


def test_a_choice_that_there_is_not_is_told_in_plain_words(laptop: Laptop) -> None:
    done = laptop.farbench("report", "latest", "--format", "pdf")
    assert done.code == 2
    assert "Invalid value for '--format': 'pdf' is not one of" in done.stderr
    assert laptop.farbench("report").stderr == "error: there is no run in the archive yet (archive)\n"
