"""Plans and jobs: what is measured where, and what each host gets."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import FileError, NothingToDo
from orchestrator.inventory import CpuSlots, FromEnvironment, HostSpec
from orchestrator.job import build_job, queue_items, script_tree
from orchestrator.plan import Plan, make_plan
from orchestrator.rendering import Catalogue
from orchestrator.sweep import load_sweep

TEMPLATE = """\
{#- farbench
parameters:
  m: {type: int}
  n: {type: int, default: 1}
  dtype: {type: str, default: fp8, choices: [fp8, fp4]}
  scale: {type: float, default: 1.0}
backends: {numpy: x, torch: y, "flashinfer:cutlass": z}
accuracy: {min_cosine: 0.5}
-#}
import json
CASES = json.loads({{ cases | literal }})
"""
SWEEP = "payload: gemm\nmatrix: {m: [16, 64, 256]}\nbackends: [torch, numpy]\nbaseline: numpy\n"

HOSTS = tuple(HostSpec(name=name, address=name) for name in ("one", "two"))
MakePlan = Callable[..., Plan]


@pytest.fixture
def plan(tmp_path: Path) -> MakePlan:
    def plan(text: str = SWEEP, hosts: Sequence[HostSpec] = HOSTS, only: Sequence[str] = ()) -> Plan:
        (tmp_path / "payloads").mkdir(exist_ok=True)
        (tmp_path / "payloads/gemm.py.j2").write_text(TEMPLATE)
        (tmp_path / "payloads/free.py.j2").write_text("x = 1\n")
        (tmp_path / "sweep.yaml").write_text(text)
        return make_plan(load_sweep(tmp_path / "sweep.yaml"), hosts, only, Catalogue([tmp_path / "payloads"]))

    return plan


def test_a_plan_as_json(plan: MakePlan) -> None:
    made = plan("name: s\n" + SWEEP, hosts=HOSTS[:1], only=["m=16"])
    (case,) = made.cases
    assert json.loads(json.dumps(made.to_json())) == {
        "sweep": "s",
        "cases": [{"id": case.case_id, "label": "m=16", "payload": "gemm", "params": {"m": 16}}],
        "backends": ["torch", "numpy"],
        "placements": [{"case": case.case_id, "host": "one"}],
    }


@pytest.mark.parametrize("placement", ["replicate", "replicate_devices"])
def test_replicate_places_every_case_on_every_host(plan: MakePlan, placement: str) -> None:
    made = plan(f"{SWEEP}placement: {placement}\n")
    assert [p.host for p in made.placements] == ["one", "two"] * 3
    assert made.measurements("one") == made.measurements("two") == 6


def test_shard_places_each_case_once(plan: MakePlan) -> None:
    made = plan(f"{SWEEP}placement: shard\n")
    assert [p.host for p in made.placements] == ["one", "two", "one"]
    assert (made.measurements("one"), made.measurements("two")) == (4, 2)
    assert [case.label for case in made.cases_on("two")] == ["m=64"]


def test_without_hosts_there_are_cases_but_no_placements(plan: MakePlan) -> None:
    made = plan(f"{SWEEP}placement: shard\n", hosts=())
    assert (len(made.cases), made.placements) == (3, ())


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        (["m=16"], ["m=16"]),
        (["m=*6"], ["m=16", "m=256"]),
        (["m=64", "m=16"], ["m=16", "m=64"]),
        (["*"], ["m=16", "m=64", "m=256"]),
    ],
)
def test_only_selects_by_label(plan: MakePlan, only: list[str], expected: list[str]) -> None:
    assert [case.label for case in plan(only=only).cases] == expected


def test_only_selects_by_id_and_by_a_label_with_brackets(plan: MakePlan) -> None:
    text = "payload: free\nbackends: [a]\nmatrix: {s: [{m: 1, label: 'case [bs=8]'}, {m: 2}]}\n"
    case = plan(text).cases[0]
    assert plan(text, only=[case.case_id]).cases == (case,)
    assert plan(text, only=[f"{case.case_id[:8]}*"]).cases == (case,)
    assert plan(text, only=["case [bs=8]"]).cases == (case,)


def test_selecting_nothing_leaves_nothing_to_do(plan: MakePlan) -> None:
    with pytest.raises(NothingToDo, match="no case matches 'm=17'; labels are: 'm=16', 'm=64', 'm=256'"):
        plan(only=["m=17"])


def test_without_backends_those_of_the_template_are_meant(plan: MakePlan) -> None:
    made = plan("payload: gemm\nmatrix: {m: [1]}\n")
    assert made.backends == ("numpy", "torch", "flashinfer:cutlass")


def test_parts_of_one_payload_may_differ_in_backends(plan: MakePlan) -> None:
    made = plan(
        "parts:\n  - {payload: gemm, matrix: {m: [1]}, backends: [numpy]}\n"
        "  - {payload: gemm, matrix: {m: [2]}, backends: [torch]}\n"
    )
    assert [made.backends_of(case) for case in made.cases] == [("numpy",), ("torch",)]
    assert made.backends == ("numpy", "torch")
    items = queue_items(made)
    assert [item["backends"] for item in items.values()] == [["numpy"], ["torch"]]
    assert script_tree(made)["scripts/gemm.py"].count(b"case_id") == 2


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("payload: gem\n", 1, "no payload 'gem' (did you mean 'gemm'?); there are: free, gemm"),
        (
            "payload: gemm\nmatrix: {m: [1]}\nbackends: [toch]\n", 3,
            "has no backend 'toch' (did you mean 'torch'?); it has: numpy, torch, flashinfer:cutlass",
        ),
        ("payload: gemm\nmatrix:\n  k: [1]\n", 3, "payload 'gemm' has no parameter 'k'; it has: m, n, dtype, scale"),
        ("payload: gemm\nmatrix:\n  n: [1]\n", 3, "payload 'gemm' needs the parameter 'm'"),
        ("payload: gemm\nmatrix: {m: [1e6]}\n", 2, "parameter 'm' of payload 'gemm' is 1000000.0, not of type int; write 1000000"),
        ("payload: gemm\nmatrix: {m: [true]}\n", 2, "is true, not of type int"),
        ("payload: gemm\nmatrix: {m: ['16']}\n", 2, 'is "16", not of type int'),
        ("payload: gemm\nmatrix: {m: [1], scale: [x]}\n", 2, 'is "x", not of type float'),
        ("payload: gemm\nmatrix: {m: [1], dtype: [fp6]}\n", 2, '"fp6", which is none of "fp8", "fp4" (did you mean'),
        ("payload: gemm\nmatrix: {m: [1]}\nbaseline: numpi\n", 3, "baseline 'numpi' is none of the backends (did you mean 'numpy'?)"),
        ("payload: free\n", 1, "`backends:` is missing; payload 'free' names none itself"),
        ("payload:\n  script: gone.py\n", 1, "gone.py: no such file (paths are relative to the sweep file)"),
        ("payload:\n  command: [x]\n  files: [payloads]\n", 1, "payloads: is a folder, not a file"),
        ("payload:\n  command: [x, '{{ mm }}']\nmatrix: {m: [1]}\n", 2, "'mm' is undefined (did you mean 'm'?)"),
    ],
)  # fmt: skip
def test_what_a_payload_does_not_know_is_refused_at_the_sweeps_line(
    plan: MakePlan, tmp_path: Path, text: str, line: int, message: str
) -> None:
    with pytest.raises(FileError) as caught:
        plan(text)
    assert str(caught.value).startswith(f"{tmp_path / 'sweep.yaml'}:{line}: ")
    assert message in str(caught.value)


def test_a_fault_of_many_cases_is_told_once_a_line(plan: MakePlan) -> None:
    with pytest.raises(FileError) as caught:
        plan("payload: gemm\nmatrix:\n  m: [1, 2, 3]\n  q:\n    - 1\n    - 2\n")
    assert len(str(caught.value).splitlines()) == 1


def test_a_whole_number_will_do_where_a_float_is_wanted(plan: MakePlan) -> None:
    assert plan("payload: gemm\nmatrix: {m: [1], scale: [2]}\n").cases[0].params["scale"] == 2


# -- jobs -------------------------------------------------------------------------------------------------


def test_a_queue_item_holds_all_that_is_needed_to_measure(plan: MakePlan) -> None:
    made = plan(
        f"{SWEEP}measure: {{rounds: 5}}\naccuracy: {{max_rel_error: 0.1}}\ntimeout_s: 9\ndevices_per_case: 2\n"
    )
    items = json.loads(json.dumps(queue_items(made), allow_nan=False))
    case = made.cases[0]
    assert list(items) == [c.case_id for c in made.cases]
    assert items[case.case_id] == {
        "case_id": case.case_id,
        "label": "m=16",
        "payload": "gemm",
        "params": {"m": 16},
        "backends": ["torch", "numpy"],
        "measure": {
            "cache": "cold", "timer": "auto", "min_time_ms": 50, "max_time_ms": 2000, "target_rel_error": 0.005,
            "rounds": 5, "retries": 1, "lock_clocks": False,
        },
        "accuracy": {"min_cosine": 0.5, "max_rel_error": 0.1},
        "timeout_s": 9,
        "compile_timeout_s": 600,
        "devices_per_case": 2,
        "done": [],
    }  # fmt: skip


def test_a_job_says_what_the_host_has_to_do(plan: MakePlan) -> None:
    host = HostSpec(
        name="one", address="x", python="/opt/python", activate=". env.sh", devices=CpuSlots(cpu=2),
        env={"A": "1", "TOKEN": FromEnvironment(from_env="T")},
    )  # fmt: skip
    job = build_job(plan(f"{SWEEP}placement: replicate_devices\n"), host, "run-1", "n0nce").job
    assert json.loads(json.dumps(job)) == {
        "schema_version": 1,
        "run_id": "run-1",
        "host": "one",
        "nonce": "n0nce",
        "python": "/opt/python",
        "activate": ". env.sh",
        "env": {"A": "1"},
        "devices": {"cpu": 2},
        "replicate_devices": True,
        "replicate_models": False,
        "wait_for_devices": True,
        "jit_cache": "shared",
        "payloads": {"gemm": {"kind": "template", "script": "scripts/gemm.py"}},
    }


@pytest.mark.parametrize(("devices", "expected"), [("all", "all"), ((0, "GPU-1"), [0, "GPU-1"])])
def test_the_devices_of_a_job(plan: MakePlan, devices: Any, expected: Any) -> None:
    host = HostSpec(name="one", address="x", devices=devices)
    assert build_job(plan(), host, "r", "n").job["devices"] == expected


def test_a_rendered_script_comes_with_the_harness_and_stands_alone(plan: MakePlan) -> None:
    made = plan()
    tree = build_job(made, HOSTS[0], "r", "n").tree
    names: dict[str, Any] = {}
    exec(compile(tree["scripts/gemm.py"], "gemm", "exec"), names)
    assert names["CASES"] == list(queue_items(made).values())
    assert "scripts/harness/__init__.py" in tree
    assert build_job(made, HOSTS[1], "r", "n").tree == tree


def test_a_program_travels_with_its_files_byte_for_byte(plan: MakePlan, tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/bench.py").write_bytes(b"print('\xff')\r\n")
    (tmp_path / "data.bin").write_bytes(bytes(range(256)))
    made = plan(
        "payload:\n  script: tools/bench.py\n  args: [--m, '{{ m }}', '{{ backend }}']\n  files: [data.bin]\n"
        "  collect: ['*.csv']\n  results: csv\n  keys: [m]\nbackends: [x, y]\nmatrix: {m: [16]}\n"
    )
    made_job = build_job(made, HOSTS[0], "r", "n")
    assert made_job.tree == {
        "scripts/bench/bench.py": b"print('\xff')\r\n",
        "scripts/bench/data.bin": bytes(range(256)),
    }
    assert made_job.job["payloads"] == {
        "bench": {
            "kind": "script",
            "files": {"bench.py": "scripts/bench/bench.py", "data.bin": "scripts/bench/data.bin"},
            "python": True,
            "collect": ["*.csv"],
            "results": {"from": "stdout", "format": "csv"},
            "keys": ["m"],
        }
    }
    (item,) = queue_items(made).values()
    assert item["commands"] == {
        "x": ["bench.py", "--m", "16", "x"],
        "y": ["bench.py", "--m", "16", "y"],
    }


def test_a_command_of_the_host_is_its_own_first_word(plan: MakePlan) -> None:
    made = plan("payload: {command: [nvbench, --json], args: ['{{ m }}'], name: nv}\nmatrix: {m: [1]}\n")
    (item,) = queue_items(made).values()
    assert item["commands"] == {"nv": ["nvbench", "--json", "1"]}
    assert item["backends"] == ["nv"]
    assert build_job(made, HOSTS[0], "r", "n").job["payloads"]["nv"]["python"] is False


def test_a_shell_script_with_dos_line_ends_is_refused_before_it_travels(
    plan: MakePlan, tmp_path: Path
) -> None:
    (tmp_path / "run.sh").write_bytes(b"#!/bin/sh\r\necho 1\r\n")
    with pytest.raises(FileError, match="its first line ends in CR LF"):
        plan("payload: {script: run.sh}\n")


# -- what is shipped --------------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def test_the_examples_are_there() -> None:
    assert {path.name for path in EXAMPLES} >= {"demo.yaml", "fp4-gemm-glm5.yaml", "script.yaml"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_every_example_loads_plans_and_renders(path: Path) -> None:
    sweep = load_sweep(path)
    assert sweep.warnings == ()
    made = make_plan(sweep, HOSTS, catalogue=Catalogue.default(ROOT))
    job = build_job(made, HOSTS[0], "r", "n")
    assert set(job.job["payloads"]) == {case.payload for case in made.cases}
    assert all(made.part_of(case).baseline in (None, *made.backends_of(case)) for case in made.cases)


def test_the_fp4_example_compares_what_it_says() -> None:
    sweep = load_sweep(ROOT / "examples/fp4-gemm-glm5.yaml")
    assert {(c.params["n"], c.params["m"]) for c in sweep.cases} == {
        (n, m) for n in (2048, 768) for m in (16, 64, 256, 512, 1024)
    }
    assert {c.params["k"] for c in sweep.cases} == {6144}
    assert sweep.cases[0].label == "Expert batch=16 N=2048 (decode)"
    assert sweep.parts[0].baseline == "flashinfer:cutlass"
    assert sweep.hosts.tags == ("gpu",)
