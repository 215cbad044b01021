"""`farbench repro` with real runs on a real sshd: the folder works by hand, and --run says what came of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Laptop
from tests.support.sshd import Sshd

STEADY = """{#- farbench
summary: reports the time that a file on the host names
backends: {one: the first, two: the second}
-#}
import json
import os
import pathlib

from harness import Needs, Payload, Reported, main

CASES = json.loads({{ cases | literal }})

payload = Payload("steady", prepare=lambda params, device: params)


def build(params):
    us = float(pathlib.Path(params["dial"]).read_text())
    return Reported(samples_us=[us * (1 + 0.001 * (i % 5)) for i in range(40)], extra={"seen": os.environ.get("SHOWN")})


for name in ("one", "two"):
    payload.backend(name, Needs(device="any"))(build)

if __name__ == "__main__":
    main(payload, CASES)
"""

PROGRAM = """import json, pathlib, sys
text = pathlib.Path("words.txt").read_text()
us = float(pathlib.Path(sys.argv[1]).read_text())
for key in (1, 2):
    print(json.dumps({"median_us": us * key, "part": key, "said": [sys.argv[2], text]}))
"""


@pytest.fixture
def dial(tmp_path: Path) -> Path:
    """What the payloads say they took, in µs."""
    path = tmp_path / 'dial\'s "own" file'
    path.write_text("100")
    return path


@pytest.fixture
def steady(laptop: Laptop, host: Sshd, dial: Path) -> Laptop:
    """A run of a template with two cases and two backends."""
    laptop.hosts(host, env={"SHOWN": "it's $HOME", "TOKEN": {"from_env": "MY_TOKEN"}})
    laptop.write("payloads/steady.py.j2", STEADY)
    cases = [{"i": i, "dial": str(dial), "label": f"case {i} [bs={i}]"} for i in range(2)]
    sweep = {"name": "steady", "payload": "steady", "matrix": {"case": cases}, "backends": ["one", "two"]}
    laptop.write("sweep.yaml", json.dumps(sweep))
    laptop.environ["MY_TOKEN"] = "sesame-8471"
    done = laptop.farbench("run", "sweep.yaml")
    assert done.code == 0, done.stderr
    return laptop


def run_by_hand(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("FARBENCH")}
    return subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_the_folder_repeats_the_measurement_without_farbench(steady: Laptop, dial: Path) -> None:
    done = steady.farbench("repro", "latest", "case 1 [bs=1]", "--backend", "two", "-o", "again")
    assert done.code == 0, done.stderr
    folder = steady.folder / "again"
    dial.write_text("250")
    by_hand = run_by_hand(done.stdout.strip(), folder)
    assert by_hand.returncode == 0, by_hand.stderr
    (line,) = by_hand.stdout.splitlines()
    measured = json.loads(line)
    assert (measured["label"], measured["backend"]) == ("case 1 [bs=1]", "two")
    assert measured["timing"]["median_us"] == pytest.approx(250, rel=0.01)
    assert measured["extra"]["seen"] == "it's $HOME"


def test_the_folder_tells_how_it_was_measured_and_holds_no_secret(steady: Laptop) -> None:
    before = next(m for m in steady.measurements() if m["backend"] == "one")
    done = steady.farbench(
        "repro", "latest", before["case_id"][:8], "--backend", "one", "-o", "again", "--json"
    )
    document = done.json()
    assert document["case_id"] == before["case_id"]
    folder = steady.folder / document["folder"]
    assert json.loads((folder / "case.json").read_text())["params"] == before["params"]
    assert json.loads((folder / "measured.json").read_text())["timing"] == before["timing"]
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["python_executable"] == sys.executable
    assert f"numpy=={environment['packages']['numpy']}\n" in (folder / "requirements.txt").read_text()
    readme = (folder / "README.txt").read_text()
    assert document["command"] in readme
    assert "Set TOKEN there first" in readme
    assert before["device"]["uuid"] in readme
    content = b"".join(p.read_bytes() for p in folder.rglob("*") if p.is_file())
    assert b"sesame" not in content
    assert folder.stat().st_mode & 0o777 == 0o700


def test_run_says_that_the_number_came_back_and_when_it_did_not(steady: Laptop, dial: Path) -> None:
    same = steady.farbench("repro", "latest", "case 0 [bs=0]", "--backend", "one", "--run", "--json")
    assert same.code == 0, same.stderr
    assert same.json()["came_back"] is True
    assert same.json()["now"]["timing"]["median_us"] == pytest.approx(100, rel=0.01)
    assert same.json()["now"]["timing"]["timer"] == same.json()["before"]["timing"]["timer"]
    dial.write_text("300")
    slower = steady.farbench("repro", "latest", "case 0 [bs=0]", "--backend", "one", "--run")
    assert slower.code == 1
    assert slower.stdout.startswith(
        "did not come back: case 0 [bs=0], one on h1: 100.2 µs then, 300.6 µs now (+200."
    )
    dial.unlink()
    broken = steady.farbench("repro", "latest", "case 0 [bs=0]", "--backend", "one", "--run")
    assert broken.code == 1
    assert "it was ok, and is now error" in broken.stdout
    assert "No such file" in broken.stdout


def test_a_program_of_the_user_is_repeated_row_by_row(laptop: Laptop, host: Sshd, dial: Path) -> None:
    laptop.hosts(host)
    laptop.write("bench.py", PROGRAM)
    laptop.write("words.txt", "é'\"$HOME")
    payload = {
        "script": "bench.py",
        "args": [str(dial), "{{ text }}"],
        "files": ["words.txt"],
        "keys": ["part"],
    }
    sweep = {"name": "mine", "payload": payload, "matrix": {"text": ["a 'b' $(c)"]}}
    laptop.write("sweep.yaml", json.dumps(sweep))
    ran = laptop.farbench("run", "sweep.yaml")
    assert ran.code == 0, ran.stderr
    (case,) = {m["case_id"] for m in laptop.measurements()}
    made = laptop.farbench("repro", "latest", case, "-o", "again")
    assert made.code == 0, made.stderr
    by_hand = run_by_hand(made.stdout.strip(), laptop.folder / "again")
    rows = [json.loads(line) for line in by_hand.stdout.splitlines()]
    assert [row["said"] for row in rows] == [["a 'b' $(c)", "é'\"$HOME"]] * 2
    again = laptop.farbench("repro", "latest", case, "--run", "--json")
    assert again.json()["now"]["row"] == again.json()["before"]["row"] == {"part": 1}
    assert again.json()["now"]["timing"]["median_us"] == 100


def test_what_is_not_there_is_said_with_what_is(steady: Laptop) -> None:
    unknown = steady.farbench("repro", "latest", "nothing", "--backend", "one")
    assert (unknown.code, "case 1 [bs=1]" in unknown.stderr) == (2, True)
    several = steady.farbench("repro", "latest", "case 0 [bs=0]")
    assert (several.code, "--backend: one, two" in several.stderr) == (2, True)
    other = steady.farbench("repro", "latest", "case 0 [bs=0]", "--backend", "three")
    assert (other.code, "has no backend 'three'" in other.stderr) == (2, True)
    steady.write("full/file", "mine")
    full = steady.farbench("repro", "latest", "case 0 [bs=0]", "--backend", "one", "-o", "full")
    assert (full.code, "not empty" in full.stderr) == (2, True)
    assert (steady.folder / "full" / "file").read_text() == "mine"
