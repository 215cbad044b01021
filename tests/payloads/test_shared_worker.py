"""One worker serves the payloads of several scripts: torch is imported once, and a script that fails is told of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HARNESS = Path(__file__).resolve().parents[2] / "payloads"

SCRIPT = """
import json
import os
from harness import Needs, Payload, Reported, Library, main

{body}
payload = Payload({name!r}, prepare=lambda params, device: (params, device))


@payload.backend("one", Needs(libraries={libraries}))
def one(problem):
    params, device = problem
    import sys
    torch = sys.modules.get("torch")
    threads = torch and torch.get_num_threads()
    return Reported(
        samples_us=(1.0,) * 8,
        extra={{"pid": os.getpid(), "torch": torch is not None, "payload": {name!r}, "threads": threads,
               "dtype": torch and str(torch.get_default_dtype())}},
    )


if __name__ == "__main__":
    main(payload, [])
"""


SETS = "import torch\ntorch.set_num_threads(1)\ntorch.set_default_dtype(torch.float64)"


@pytest.fixture
def talk(tmp_path: Path, request: pytest.FixtureRequest):
    """Start the script `first`, and ask about cases of any script."""
    for name, libraries, body in (
        ("first", "()", getattr(request, "param", "")),
        ("second", '(Library("torch"),)', ""),
        ("broken", "()", "raise ValueError('told to')"),
        ("sets", '(Library("torch"),)', SETS),
    ):
        text = SCRIPT.format(name=name, libraries=libraries, body=body)
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "no_main.py").write_text("x = 1\n")
    (tmp_path / "harness").symlink_to(HARNESS / "harness")
    to_worker, requests = os.pipe()
    results, from_worker = os.pipe()
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "first.py")],
        env={**os.environ, "FARBENCH_WORKER_IN": str(to_worker), "FARBENCH_WORKER_OUT": str(from_worker)},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=(to_worker, from_worker),
    )  # fmt: skip
    os.close(to_worker)
    os.close(from_worker)
    reader = os.fdopen(results, "rb")
    assert json.loads(reader.readline())["type"] == "ready"

    def ask(script: str | None):
        item = {"case_id": "c", "label": "c", "payload": script or "first", "params": {}, "backends": ["one"],
                "measure": {"min_time_ms": 1}, "accuracy": {}}  # fmt: skip
        message = {"type": "case", "case": item, "attempt": 1}
        if script is not None:
            message["script"] = f"scripts/{script}.py"
        os.write(requests, json.dumps(message).encode() + b"\n")
        records = []
        while True:
            said = json.loads(reader.readline())
            if said["type"] == "measurement":
                records.append(said["measurement"])
            if said["type"] == "case_done":
                assert said["healthy"] is True
                return records

    yield ask
    os.close(requests)
    assert process.wait(60) == 0
    reader.close()


def test_cases_of_several_scripts_are_measured_in_one_process(talk) -> None:
    (own,) = talk(None)
    (named,) = talk("first")
    (other,) = talk("second")
    (again,) = talk("first")
    assert [r["status"] for r in (own, named, other, again)] == ["ok"] * 4
    assert len({r["extra"]["pid"] for r in (own, named, other, again)}) == 1
    assert [r["extra"]["payload"] for r in (own, other, again)] == ["first", "second", "first"]
    assert own["extra"]["torch"] is False
    assert other["extra"]["torch"] is True


@pytest.mark.parametrize("talk", ["", SETS], indirect=True, ids=["plain", "sets too"])
def test_what_a_script_sets_as_it_is_loaded_holds_in_its_own_cases_only(talk, request) -> None:
    sets_too = request.node.callspec.id == "sets too"
    (own,) = talk("first")
    (sets,) = talk("sets")
    (other,) = talk("second")
    (again,) = talk("first")
    (sets_again,) = talk("sets")
    changed = {"threads": 1, "dtype": "torch.float64"}
    for record in (sets, sets_again, *((own, again) if sets_too else ())):
        assert {name: record["extra"][name] for name in changed} == changed
    assert other["extra"]["dtype"] == "torch.float32"
    assert other["extra"]["threads"] == torch.get_num_threads()
    assert again["extra"]["threads"] == (1 if sets_too else torch.get_num_threads())


def test_a_script_that_does_not_load_costs_only_its_own_cases(talk) -> None:
    (broken,) = talk("broken")
    assert (broken["backend"], broken["status"]) == ("one", "error")
    assert "told to" in broken["reason"]
    (silent,) = talk("no_main")
    assert silent["status"] == "error"
    assert "main" in silent["reason"]
    (fine,) = talk("first")
    assert fine["status"] == "ok"
