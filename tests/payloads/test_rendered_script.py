"""A rendered payload as a process: on its own, and under an agent's private pipes."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from payload_helpers import PAYLOADS, QUICK, make_item

SMALL = {"m": 16, "n": 64, "k": 128}

NOISY = """
import json
import os
import sys

from harness import Call, Needs, Payload, Reported, main

CASES = json.loads({{ cases | literal }})
payload = Payload(json.loads({{ payload | literal }}), prepare=lambda params, device: params)


@payload.backend("loud")
def loud(params):
    print('{"backend": "loud", "status": "ok", "forged": true}')
    os.write(1, b'{"type": "measurement"}\\n' + b"x" * 5_000_000 + b"\\n")
    os.system("echo from a child")
    return Reported(metrics={"value": params["value"]}, samples_us=(1.0,) * 8)


@payload.backend("closes_stdout")
def closes_stdout(params):
    os.close(1)
    return Reported(metrics={"value": 2})


@payload.backend("closes_everything")
def closes_everything(params):
    os.closerange(3, 256)
    fd = os.open(os.environ["SOMEWHERE"], os.O_CREAT | os.O_RDWR)
    for _ in range(8):
        os.dup(fd)
    return Reported(metrics={"value": 3})


@payload.backend("exits")
def exits(params):
    os._exit(7)


@payload.backend("forks")
def forks(params):
    if os.fork() == 0:
        return Reported(metrics={"value": -1})  # a child that comes back into our code
    os.wait()
    return Reported(metrics={"value": 4})


@payload.backend("environment")
def environment(params):
    return Reported(extra={"names": sorted(n for n in os.environ if n.startswith("FARBENCH_WORKER_"))})


main(payload, CASES)
"""


def run(path, *arguments, **more):
    return subprocess.run(
        [sys.executable, str(path), *arguments],
        capture_output=True,
        timeout=110,
        stdin=subprocess.DEVNULL,
        **more,
    )


def lines(output):
    return [json.loads(line, parse_constant=pytest.fail) for line in output.decode("ascii").splitlines()]


class Agent:
    """The other end of a worker's pipes."""

    def __init__(self, path, log, env=None):
        to_worker, self._requests = os.pipe()
        self._results, from_worker = os.pipe()
        variables = {"FARBENCH_WORKER_IN": str(to_worker), "FARBENCH_WORKER_OUT": str(from_worker)}
        self.process = subprocess.Popen(
            [sys.executable, str(path)],
            env={**os.environ, **variables, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(to_worker, from_worker),
        )
        os.close(to_worker)
        os.close(from_worker)
        self.reader = os.fdopen(self._results, "rb")

    def send(self, message):
        os.write(self._requests, json.dumps(message).encode() + b"\n")

    def receive(self):
        line = self.reader.readline()
        return json.loads(line, parse_constant=pytest.fail) if line else None

    def measure(self, item):
        """Everything the worker says about a case, to its end or the worker's."""
        self.send({"type": "case", "case": item, "attempt": 1})
        messages = []
        while True:
            message = self.receive()
            messages.append(message)
            if message is None or message["type"] == "case_done":
                return messages

    def close(self):
        os.close(self._requests)
        code = self.process.wait(60)
        self.reader.close()
        return code


@pytest.fixture
def agent(tmp_path):
    started = []
    with (tmp_path / "log").open("wb") as log:

        def start(path, env=None):
            started.append(Agent(path, log, env))
            return started[-1]

        yield start
        for each in started:
            if each.process.poll() is None:
                each.process.kill()
                each.process.wait()


def test_it_stands_alone_and_prints_one_line_a_measurement(script):
    path = script(
        [
            make_item(SMALL, ["numpy", "flashinfer:cutlass"], label="first"),
            make_item(SMALL, ["torch"], label="second"),
        ]
    )
    done = run(path)
    records = lines(done.stdout)
    assert done.returncode == 0, done.stderr.decode()
    assert [(r["label"], r["backend"], r["status"]) for r in records] == [
        ("first", "flashinfer:cutlass", "unsupported"),
        ("first", "numpy", "ok"),
        ("second", "torch", "ok"),
    ]
    assert records[1]["params"] == SMALL
    assert records[1]["case_id"] == "0123456789abcdef"


def test_cases_and_backends_can_be_listed_and_chosen(script):
    items = [
        make_item(SMALL, ["numpy", "torch"], label="first"),
        make_item(SMALL, ["numpy"], label="second", case_id="f" * 16),
    ]
    path = script(items)
    listed = run(path, "--list").stdout.decode().splitlines()
    assert listed == ["0123456789abcdef  first  [numpy, torch]", "ffffffffffffffff  second  [numpy]"]
    chosen = lines(run(path, "--case", "sec*", "--case", "0123", "--backend", "numpy").stdout)
    assert [(r["label"], r["backend"]) for r in chosen] == [("first", "numpy"), ("second", "numpy")]


def test_a_reader_that_has_seen_enough_of_the_list_gets_no_traceback(script):
    path = script([make_item(SMALL, ["numpy"], label="first")])
    gone, end = os.pipe()
    os.close(gone)  # as `| head` does once it has its lines
    done = subprocess.run([sys.executable, path, "--list"], stdout=end, stderr=subprocess.PIPE, text=True)
    os.close(end)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["--backend", "nump"], "--backend 'nump' is none of the script's: there are numpy, torch"),
        (["--backend", "numpy", "--backend", "x"], "--backend 'x' is none of the script's: there are numpy, torch"),
        (["--case", "second", "--backend", "torch"], "--backend 'torch' is none of the chosen cases': there are numpy"),
        (
            ["--case", "first", "--case", "third"],
            "--case 'third' fits no case; there are:\n"
            "  0123456789abcdef  first  [numpy, torch]\n  ffffffffffffffff  second  [numpy]",
        ),
        (["--case", "1234", "--list"], "--case '1234' fits no case; there are:\n  0123456789abcdef"),
    ],
)  # fmt: skip
def test_a_choice_that_fits_nothing_says_what_there_is(script, asked, told):
    items = [
        make_item(SMALL, ["numpy", "torch"], label="first"),
        make_item(SMALL, ["numpy"], label="second", case_id="f" * 16),
    ]
    done = run(script(items), *asked)
    assert (done.returncode, done.stdout) == (2, b"")
    assert told in done.stderr.decode()


def test_without_a_standard_output_it_says_where_results_go(script):
    path = script([make_item(SMALL, ["numpy"])])
    done = subprocess.run(
        ["sh", "-c", f'exec "{sys.executable}" "{path}" >&-'],
        stderr=subprocess.PIPE, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "farbench: standard output is closed, and results go there: give it a file\n"


def test_only_the_libraries_asked_for_are_imported(script):
    path = script([make_item(SMALL, ["numpy", "flashinfer:cutlass"])])
    watched = (
        "import atexit, runpy, sys\n"
        "script = sys.argv.pop()\n"
        "sys.path.insert(0, script.rpartition('/')[0])\n"
        "atexit.register(lambda: print('loaded:', *sorted(sys.modules), file=sys.stderr))\n"
        "runpy.run_path(script, run_name='__main__')\n"
    )
    numpy_alone = script([make_item(SMALL, ["numpy"])])
    for each, expected in ((path, {"numpy", "torch"}), (numpy_alone, {"numpy"})):
        done = subprocess.run([sys.executable, "-c", watched, str(each)], capture_output=True, timeout=110)
        loaded = set(done.stderr.decode().rpartition("loaded:")[2].split())
        assert loaded & {"numpy", "torch", "flashinfer", "sgl_kernel"} == expected


def test_a_failed_measurement_makes_the_exit_code_one(script):
    done = run(script([make_item({"m": 16, "n": 64, "k": 100}, ["numpy"])]))
    assert done.returncode == 1
    assert lines(done.stdout)[0]["status"] == "error"


@pytest.mark.parametrize("backend", ["loud", "closes_stdout", "forks"])
def test_alone_noise_never_reaches_the_results(script, backend):
    done = run(script([make_item({"value": 1}, [backend], payload="noisy")], "noisy", NOISY))
    records = lines(done.stdout)
    assert [(r["backend"], r["status"]) for r in records] == [(backend, "ok")]
    assert done.returncode == 0
    if backend == "loud":
        assert len(done.stderr) > 5_000_000
        assert b"from a child" in done.stderr


def test_under_an_agent_cases_are_served_one_after_another(script, agent):
    worker = agent(script([make_item(SMALL, ["numpy"])]))
    ready = worker.receive()
    assert ready["type"] == "ready"
    assert ready["import_s"] > 0
    assert ready["environment"]["packages"]["numpy"]
    for label in ("first", "second"):
        messages = worker.measure(make_item(SMALL, ["numpy", "sgl_kernel"], label=label))
        assert messages[-1] == {"type": "case_done", "healthy": True}
        records = {
            m["measurement"]["backend"]: m["measurement"] for m in messages if m["type"] == "measurement"
        }
        assert records["numpy"]["status"] == "ok"
        assert records["sgl_kernel"]["status"] == "unsupported"
        phases = [(m["backend"], m["phase"]) for m in messages if m["type"] == "phase"]
        assert phases[:2] == [("numpy", "prepare"), ("numpy", "compile")]
        assert phases[-1] == ("numpy", "measure")
        assert set(records["numpy"]) == {
            "backend", "resolved_backend", "status", "reason", "verdict", "reasons", "row", "timing", "samples_us",
            "metrics", "extra", "accuracy",
        }  # fmt: skip
    worker.send({"type": "exit"})
    assert worker.receive() is None
    assert worker.close() == 0


def test_end_of_file_ends_a_worker(script, agent):
    worker = agent(script([make_item({}, ["environment"], payload="noisy")], "noisy", NOISY))
    assert worker.receive()["type"] == "ready"
    assert worker.close() == 0


def test_the_descriptors_are_in_no_childs_environment(script, agent):
    item = make_item({}, ["environment"], payload="noisy")
    worker = agent(script([item], "noisy", NOISY))
    worker.receive()
    record = worker.measure(item)[-2]["measurement"]
    assert record["status"] == "ok"
    assert record["extra"] == {"names": []}


def test_under_an_agent_noise_and_forks_change_nothing(script, agent, tmp_path):
    item = make_item({"value": 41}, ["loud", "closes_stdout", "forks"], payload="noisy")
    worker = agent(script([item], "noisy", NOISY))
    worker.receive()
    messages = worker.measure(item)
    values = [m["measurement"]["metrics"]["value"] for m in messages if m["type"] == "measurement"]
    assert values == [41, 2, 4]
    assert messages[-1] == {"type": "case_done", "healthy": True}
    assert worker.close() == 0
    assert (tmp_path / "log").stat().st_size > 5_000_000


def test_a_library_that_exits_is_known_by_the_last_phase_and_the_exit_code(script, agent):
    item = make_item({}, ["exits"], payload="noisy")
    worker = agent(script([item], "noisy", NOISY))
    worker.receive()
    messages = worker.measure(item)
    assert messages[-1] is None
    assert messages[-2] == {"type": "phase", "backend": "exits", "phase": "compile"}
    assert worker.close() == 7


def test_results_are_never_written_into_a_file_that_took_the_descriptors_place(script, agent, tmp_path):
    item = make_item({}, ["closes_everything"], payload="noisy")
    somewhere = tmp_path / "somewhere"
    worker = agent(script([item], "noisy", NOISY), {"SOMEWHERE": str(somewhere)})
    worker.receive()
    assert worker.measure(item)[-1] is None
    assert worker.close() == 74
    assert somewhere.read_bytes() == b""


def test_values_of_every_kind_arrive_in_the_script_as_they_were(script, agent):
    odd = {
        "t": True,
        "n": None,
        "s": "it's \"$HOME\" $(touch x) {{ 7*7 }} {% ''' \u2028 \\",
        "items": [1.5, {"a": []}],
    }
    source = NOISY.replace('extra={"names"', 'extra={"params": params, "names"')
    path = script([make_item(odd, ["environment"], payload="noisy")], "noisy", source)
    assert lines(run(path).stdout)[0]["extra"]["params"] == odd


def test_the_rendered_script_is_clean_for_old_pythons_and_for_ruff(script):
    path = script([make_item({"m": 16, "label": "x\u2028'''"}, ["numpy"], measure=QUICK)])
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
    checked = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", str(path)], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("path", sorted((PAYLOADS / "harness").glob("*.py")), ids=lambda path: path.name)
def test_the_harness_parses_as_python_3_8(path: Path):
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
