"""The main job, as a user does it: the command, a real sshd, two CPU slots, a table."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

from tests.e2e.conftest import Laptop
from tests.e2e.templates import ECHO
from tests.support.sshd import Sshd

HOSTILE = [
    'it\'s "quoted" `touch {pwned}` $(touch {pwned}) ; touch {pwned}',
    "{{ 7*7 }} {% raw %} {# no #} ''' \"\"\" {x!r} %s",
    "back\\slash \\n \\\\ tab\there\nnew line\r\nend",
    "é€漢 \u2028 \u2029 \u0085 \x01 \x7f",
    "!history * ? [a-z] ~ $HOME && || > < | & #",
    "",
    "-rf --help",
    "\\u0027); import os; os.system('touch {pwned}') #",
]


def sweep(pwned: Path, payload: object, **more: object) -> str:
    axis = [
        {"text": t.replace("{pwned}", str(pwned)), "i": i, "label": f"case {i} [bs={i}]"}
        for i, t in enumerate(HOSTILE)
    ]
    document = {
        "name": "hostile",
        "payload": payload,
        "matrix": {"case": axis},
        "backends": ["one", "two"],
        **more,
    }
    return json.dumps(document)


def test_eight_shapes_times_two_backends_with_hostile_values_and_noise(
    laptop: Laptop, host: Sshd, tmp_path: Path
) -> None:
    pwned = tmp_path / "pwned"
    laptop.hosts(host, devices={"cpu": 2})
    laptop.write("payloads/echo.py.j2", ECHO)
    laptop.write("sweep.yaml", sweep(pwned, "echo"))

    done = laptop.farbench("run", "sweep.yaml", "--json")

    assert done.code == 0, done.stderr
    document = done.json()
    assert document["state"] == "finished"
    assert document["counts"] == {"ok": 16}
    assert document["hosts"] == {"h1": {"state": "ok", "error": None}}
    assert done.stderr.splitlines()[0] == document["run_id"]
    measured = laptop.measurements()
    assert len(measured) == 16
    for i, text in enumerate(HOSTILE):
        want = text.replace("{pwned}", str(pwned))
        mine = [m for m in measured if m["params"]["i"] == i]
        assert sorted(m["backend"] for m in mine) == ["one", "two"]
        for m in mine:
            assert m["params"]["text"] == want
            assert m["extra"]["echo"]["text"] == want
            assert m["label"] == f"case {i} [bs={i}]"
            assert m["timing"]["median_us"] == 5.0
    assert {m["device"]["uuid"] for m in measured} == {"cpu-0", "cpu-1"}
    assert not pwned.exists()


def test_the_same_values_as_arguments_of_an_existing_program(
    laptop: Laptop, host: Sshd, tmp_path: Path
) -> None:
    pwned = tmp_path / "pwned"
    laptop.hosts(host, devices={"cpu": 2})
    laptop.write(
        "bench.py",
        "import json, sys\nprint('noise', file=sys.stderr)\n"
        "print(json.dumps({'time_us': 3.5, 'argv': sys.argv[1:]}))\n",
    )
    payload = {"script": "bench.py", "args": ["{{ text }}", "--i={{ i }}", "{{ backend }}"]}
    laptop.write("sweep.yaml", sweep(pwned, payload))

    done = laptop.farbench("run", "sweep.yaml", "--json")

    assert done.code == 0, done.stderr
    assert done.json()["counts"] == {"ok": 16}
    for m in laptop.measurements():
        want = HOSTILE[m["params"]["i"]].replace("{pwned}", str(pwned))
        assert m["extra"]["argv"] == [want, f"--i={m['params']['i']}", m["backend"]]
        assert m["timing"]["median_us"] == 3.5
    assert not pwned.exists()


def test_a_second_run_uploads_nothing_that_is_there(laptop: Laptop, host: Sshd) -> None:
    laptop.hosts(host, devices={"cpu": 2})
    laptop.write("payloads/echo.py.j2", ECHO)
    laptop.write(
        "sweep.yaml", json.dumps({"name": "s", "payload": "echo", "matrix": {"i": [1]}, "backends": ["one"]})
    )

    def cache() -> dict[str, int]:
        folder = host.home / "farbench" / "cache"
        return {p.name: p.stat().st_ino for p in folder.iterdir()}  # a file that came again has another inode

    assert laptop.farbench("run", "sweep.yaml").code == 0
    before = cache()
    assert laptop.farbench("run", "sweep.yaml").code == 0
    assert cache() == before
    for folder in (host.home / "farbench", host.home / "farbench" / "cache", host.home / "farbench" / "runs"):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_what_a_run_leaves_can_be_listed_reported_and_queried(laptop: Laptop, host: Sshd) -> None:
    laptop.hosts(host, devices={"cpu": 2})
    laptop.write("payloads/echo.py.j2", ECHO)
    big = 2**60 + 1
    laptop.write(
        "sweep.yaml",
        json.dumps(
            {
                "name": "s",
                "payload": "echo",
                "matrix": {"i": [1, big]},
                "backends": ["one", "two"],
                "baseline": "one",
            }
        ),
    )
    done = laptop.farbench("run", "sweep.yaml")
    assert done.code == 0, done.stderr
    run_id = done.stdout.splitlines()[0]
    assert f"i={big}" in done.stdout

    listed = laptop.farbench("runs", "--json").json()["runs"]
    assert [(r["run_id"], r["sweep"], r["state"], r["counts"]) for r in listed] == [
        (run_id, "s", "finished", {"ok": 4})
    ]

    rows = list(csv.DictReader(io.StringIO(laptop.farbench("report", run_id[:-3], "--format", "csv").stdout)))
    assert {(r["case_id"], r["backend"]) for r in rows} == {
        (m["case_id"], m["backend"]) for m in laptop.measurements()
    }

    markdown = laptop.farbench("report", "latest", "--format", "markdown", "-o", "table.md")
    assert markdown.code == 0
    assert f"i={big}" in (laptop.folder / "table.md").read_text()

    sql = "select backend, params->>'i' as i, timing.median_us as us from results order by all"
    answer = laptop.farbench("query", sql, "--format", "json").json()
    assert answer["rows"][0] == {"backend": "one", "i": "1", "us": 5.0}
    assert {r["i"] for r in answer["rows"]} == {"1", str(big)}

    folder = laptop.folder / "archive" / "runs" / run_id
    assert {p.name for p in folder.iterdir()} >= {
        "run.json",
        "scripts",
        "results.jsonl",
        "results.parquet",
        "hosts",
    }
    assert len((folder / "results.jsonl").read_text().splitlines()) == 4


def test_the_mission_sweep_renders_to_a_script_that_stands_alone(laptop: Laptop) -> None:
    repository = Path(__file__).resolve().parents[2]
    done = laptop.farbench("render", str(repository / "examples" / "fp4-gemm-glm5.yaml"), "-o", "scripts")
    assert done.code == 0, done.stderr
    script = laptop.folder / "scripts" / "gemm_fp4.py"
    compile(script.read_text(encoding="utf-8"), str(script), "exec")
    plan = laptop.farbench("plan", str(repository / "examples" / "fp4-gemm-glm5.yaml"), "--host", "local", "--json",
                           "--hosts-file", str(repository / "hosts.yaml"))  # fmt: skip
    cases = plan.json()["cases"]
    shapes = {(c["params"]["m"], c["params"]["n"], c["params"]["k"]) for c in cases}
    assert shapes == {(m, n, 6144) for m in (16, 64, 256, 512, 1024) for n in (2048, 768)}
    assert {"flashinfer:cutlass", "sgl_kernel"} <= set(plan.json()["backends"])


def test_the_embedded_host_takes_the_same_path(laptop: Laptop) -> None:
    laptop.write("hosts.yaml", "hosts:\n  local: {embedded: true, devices: {cpu: 2}}\n")
    laptop.write("payloads/echo.py.j2", ECHO)
    laptop.write(
        "sweep.yaml",
        json.dumps({"name": "s", "payload": "echo", "matrix": {"i": [1, 2]}, "backends": ["one"]}),
    )
    done = laptop.farbench(
        "run", "sweep.yaml", "--json", XDG_CACHE_HOME="", TMPDIR=os.environ.get("TMPDIR", "/tmp")
    )
    assert done.code == 0, done.stderr
    assert done.json()["counts"] == {"ok": 2}
    assert (laptop.home / ".cache" / "farbench" / "runs" / done.json()["run_id"]).is_dir()
