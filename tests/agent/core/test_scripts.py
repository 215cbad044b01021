"""Script payloads: any program as a benchmark, through the real agent."""

from __future__ import annotations

import json
import os
import signal
import textwrap
from typing import Any

import pytest

from orchestrator.model import Measurement
from tests.support.waiting import wait_for

from .conftest import Call, Host, item, runs

HOSTILE = [
    'it\'s "$HOME" $(touch pwned) `touch pwned`; touch pwned',
    "{{ 7*7 }} {% raw %} {x!r} %s \\n",
    "two\nlines\tand a tab\r",
    "é€漢 \u2028\u0085 \U0001f600",
    "",
    "-rf",
    "*",
    "a" * 100_000,
]


def script(host: Host, source: str, *, name: str = "bench.py", **config: Any) -> None:
    """Make payload `bench` of a program's source."""
    host.tree = {f"scripts/bench/{name}": textwrap.dedent(source).encode()}
    host.job["payloads"] = {
        "bench": {
            "kind": "script", "files": {name: f"scripts/bench/{name}"}, "python": name.endswith(".py"),
            "collect": [], "results": {"from": "stdout", "format": "json_lines"}, "keys": [], **config,
        }
    }  # fmt: skip


def case(
    case_id: str = "c1", args: tuple[str, ...] = (), name: str = "bench.py", **more: Any
) -> dict[str, Any]:
    """A case that runs the program once."""
    return item(case_id, ("bench",), payload="bench", commands={"bench": [name, *args]}, **more)


def measured(call: Call) -> list[dict[str, Any]]:
    """Follow to the end: the records in order, each a valid measurement."""
    assert call.expect("end")["state"] == "finished"
    records = [event["measurement"] for event in call.events("measurement")]
    for record in records:
        Measurement.model_validate_json(json.dumps(record))
    return records


def only(host: Host, *items: dict[str, Any]) -> dict[str, Any]:
    """The one record of a run."""
    (record,) = measured(host.launch(list(items or [case()])))
    return record


def test_arguments_arrive_byte_for_byte_and_nothing_is_executed(host: Host) -> None:
    script(
        host,
        """
        import json, os, sys
        print(json.dumps({"time_us": 3, "argv": [os.fsencode(a).hex() for a in sys.argv[1:]], "here": sorted(os.listdir("."))}))
        """,
    )
    record = only(host, case(args=tuple(HOSTILE)))
    assert [bytes.fromhex(text).decode() for text in record["extra"]["argv"]] == HOSTILE
    assert record["extra"]["here"] == ["bench.py"]
    assert record["timing"]["median_us"] == 3


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ('import sys; print("ready"); sys.exit("my message: bad shape 3")', "exit code 1; it last printed: my message: bad shape 3"),
        ("def f(:\n  pass", "exit code 1; it last printed: SyntaxError: invalid syntax"),
        ("import no_such_module", "exit code 1; it last printed: ModuleNotFoundError: No module named 'no_such_module'"),
        ("{}['k']", "exit code 1; it last printed: KeyError: 'k'"),
        ('print("usage: bench M"); raise SystemExit(2)', "exit code 2; it last printed: usage: bench M"),
        ('print("skipped: too large")', "it ended without a result; it last printed: skipped: too large"),
        ('import os; os.write(2, b"\\x1b[31mfree(): invalid pointer\\n"); os.abort()',
         "killed by signal 6 (SIGABRT); it last printed: free(): invalid pointer"),
        ("pass", "it ended without a result"),
        ("raise SystemExit(3)", "exit code 3"),
    ],
)  # fmt: skip
def test_a_program_that_fails_says_why_in_its_own_words(host: Host, source: str, reason: str) -> None:
    script(host, source)
    assert only(host)["reason"] == reason


def test_the_last_words_are_of_the_case_that_failed(host: Host) -> None:
    script(
        host,
        """
        import sys
        if sys.argv[1] == "talks":
            print('{"time_us": 3}'); print("a warning", file=sys.stderr)
        else:
            sys.exit(4)
        """,
    )
    _, second = measured(host.launch([case("c1", ("talks",)), case("c2", ("is_silent",))]))
    assert second["reason"] == "exit code 4"


def test_a_row_that_was_printed_before_the_end_is_no_last_word(host: Host) -> None:
    script(host, """print('{"time_us": 3}'); raise SystemExit(5)""")
    assert only(host)["reason"] == "exit code 5"


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0"}])
def test_a_host_without_a_utf8_locale_gives_the_same(host: Host, locale: dict[str, str]) -> None:
    host.env.update(locale)
    script(
        host, 'import json, sys; print(json.dumps({"time_us": 3, "arg": sys.argv[1]}, ensure_ascii=False))'
    )
    record = only(host, case(args=("é€漢",), params={"text": "é€漢"}))
    assert record["extra"] == {"arg": "é€漢"}
    assert record["params"] == {"text": "é€漢"}


def test_a_row_is_taken_apart_as_designed(host: Host) -> None:
    script(
        host,
        """
        print("some noise {not json}")
        print('{"backend": "mine", "time_ms": 1.5, "tflops": 2, "bad": Infinity, "name": "x", "flag": true, "list": [1, NaN]}')
        """,
    )
    record = only(host)
    assert record["backend"] == "mine"
    assert record["timing"]["median_us"] == 1500
    assert record["metrics"] == {"tflops": 2, "bad": None}
    assert record["extra"] == {"name": "x", "flag": True, "list": [1, None]}
    assert record["reason"] == "bad is infinity; list[1] is NaN"
    assert (record["status"], record["verdict"]) == ("ok", "valid")


def test_samples_give_the_median_and_no_time_is_fine(host: Host) -> None:
    script(
        host,
        """
        print('{"m": 1, "samples_us": [3, 1, 2, 10]}')
        print('{"m": 2, "count": 7}')
        """,
        keys=["m"],
    )
    first, second = measured(host.launch([case()]))
    assert (first["row"], first["timing"]["median_us"], first["samples_us"]) == ({"m": 1}, 2.5, [3, 1, 2, 10])
    assert (second["row"], second["status"], second["timing"]) == ({"m": 2}, "ok", None)
    assert second["metrics"] == {"count": 7}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('{"time_us": NaN}', "time_us is NaN"),
        ('{"latency_ms": -Infinity}', "latency_ms is -infinity"),
        ('{"median_us": 0}', "median_us is 0: a time must be positive"),
        ('{"time_us": "fast"}', "time_us is no number: 'fast'"),
        ('{"samples_us": [1, NaN]}', "samples_us holds 1 values that are no positive, finite times"),
        (
            '{"samples_us": [1, 1%s]}' % ("0" * 400),
            "samples_us holds 1 values that are no positive, finite times",
        ),
        ('{"time_us": 1%s}' % ("0" * 400), "time_us is infinity"),
        (
            '{"median_us": 5, "samples_us": [100, 106, 102, 103, 104, 105, 101]}',
            "median_us is 5, which its 7 samples contradict: the median is 103 µs, from 100 to 106 µs",
        ),
        (
            '{"median_us": 100.0, "samples_us": [100, 200, 201, 202, 203, 204]}',
            "median_us is 100, which its 6 samples contradict: the median is 201.5 µs, from 100 to 204 µs",
        ),
        (
            '{"time_ms": 77.5, "samples_us": [5]}',
            "time_ms is 77.5, which its one sample contradicts: the median is 5 µs, from 5 to 5 µs",
        ),
        ("no object at all", "it ended without a result; it last printed: no object at all"),
    ],
)
def test_what_is_no_time_is_an_error(host: Host, row: str, reason: str) -> None:
    script(host, f"print({row!r})")
    record = only(host)
    assert (record["status"], record["reason"], record["timing"]) == ("error", reason, None)


@pytest.mark.parametrize(
    "row",
    [
        '{"median_us": 103.1, "samples_us": [100, 101, 102, 103, 104, 105, 106]}',
        '{"median_us": 1, "samples_us": [1, 2]}',
        '{"time_us": 100, "samples_us": [100, 200, 201, 202, 203, 204]}',
        '{"latency_ms": 0.01, "samples_us": [12.3, 12.4, 12.5]}',
        '{"median_us": 12, "samples_us": [12.31, 12.32, 12.4]}',
    ],
    ids=["median", "of two", "the best", "rounded ms", "rounded us"],
)
def test_a_time_stands_beside_samples_that_it_may_be_of(host: Host, row: str) -> None:
    script(host, f"print({row!r})")
    record = only(host)
    assert (record["status"], record["verdict"], record["reason"]) == ("ok", "valid", None)


@pytest.mark.parametrize(
    ("row", "target", "error", "reasons"),
    [
        ('{"samples_us": [1, 100, 1, 100, 1, 100, 1, 100, 2, 50]}', 0.005, 49.5 / 26, ["noisy"]),
        ('{"samples_us": [1.0, 1.0, 1.0, 1.05, 1.05, 1.05, 1.05]}', 0.005, 0.025 / 1.05, ["noisy"]),
        ('{"samples_us": [1.0, 1.0, 1.0, 1.05, 1.05, 1.05, 1.05]}', 0.01, 0.025 / 1.05, []),
        ('{"samples_us": [5.0]}', 0.005, None, ["few_samples"]),
        ('{"samples_us": [5, 5, 5, 5, 5, 5]}', 0.005, 0.0, []),
        ('{"median_us": 5.0}', 0.005, None, []),
        ('{"samples_us": [5e-324, 5e-324, 5e-324, 1e308, 5e-324, 1e308]}', 0.005, 1e300, ["noisy"]),
    ],
    ids=["bimodal", "above the limit", "the sweep asks for less", "one", "all one", "no samples", "absurd"],
)
def test_what_samples_say_against_their_time_is_told_and_the_verdict_is_the_hosts(
    host: Host, row: str, target: float, error: float | None, reasons: list[str]
) -> None:
    script(host, f"print({row!r})")
    record = only(host, case(measure={"target_rel_error": target}))
    assert record["timing"]["rel_error"] == (None if error is None else pytest.approx(error))
    assert (record["verdict"], record["reasons"]) == ("valid", reasons)


def test_rows_that_the_keys_do_not_tell_apart_are_an_error(host: Host) -> None:
    script(
        host,
        """
        for m, n in ((1, 1), (1, 2), (2, 1)):
            print('{"m": %d, "n": %d, "time_us": 5}' % (m, n))
        """,
        keys=["m"],
    )
    twice, once = measured(host.launch([case()]))
    assert (twice["row"], twice["status"]) == ({"m": 1}, "error")
    assert twice["reason"] == "2 rows, and `keys: [m]` does not tell them apart"
    assert (once["row"], once["status"]) == ({"m": 2}, "ok")


@pytest.mark.parametrize(
    ("end", "status", "reason"),
    [
        ("sys.exit(3)", "error", "exit code 3; it last printed: oh dear"),
        ("os.kill(os.getpid(), 11)", "crashed", "killed by signal 11 (SIGSEGV); it last printed: oh dear"),
        ("time.sleep(600)", "timeout", "it ran longer than timeout_s = 3 s"),
    ],
)
def test_a_bad_end_keeps_what_was_printed(host: Host, end: str, status: str, reason: str) -> None:
    source = f"""
        import os, sys, time
        print('{{"time_us": 5, "tflops": 2}}')
        print("oh dear", file=sys.stderr)
        {end}
        """
    script(host, source)
    record = only(host, case(timeout_s=3))
    assert (record["status"], record["reason"]) == (status, reason)
    assert record["metrics"] == {"tflops": 2, "median_us": 5}
    assert "oh dear" in record["log_tail"]


def test_rows_with_keys_stand_when_the_program_crashes_later(host: Host) -> None:
    script(host, """import os; print('{"m": 1, "time_us": 5}', flush=True); os.abort()""", keys=["m"])
    row, end = measured(host.launch([case()]))
    assert (row["row"], row["status"], row["timing"]["median_us"]) == ({"m": 1}, "ok", 5)
    assert (end["row"], end["status"], end["reason"]) == (None, "crashed", "killed by signal 6 (SIGABRT)")


def test_csv_from_stdout(host: Host) -> None:
    source = r"""print('m,backend,time_us,note,"tf lops"\r\n1,a,2.5,"x,\ny",nan\r\n0x10,b,1e3,0755,\r\n')"""
    script(host, source, results={"from": "stdout", "format": "csv"}, keys=["m"])
    first, second = measured(host.launch([case()]))
    assert (first["row"], first["backend"], first["timing"]["median_us"]) == ({"m": 1}, "a", 2.5)
    assert (first["extra"], first["metrics"]) == ({"note": "x,\ny"}, {"tf lops": None})
    assert first["reason"] == "tf lops is NaN"
    assert (second["row"], second["timing"]["median_us"]) == ({"m": "0x10"}, 1000)


@pytest.mark.parametrize(
    ("form", "content"),
    [("json", '[{"time_us": 7}]'), ("json_lines", 'x\n{"time_us": 7}'), ("csv", "time_us\n7\n")],
)
def test_results_from_a_file(host: Host, form: str, content: str) -> None:
    script(
        host,
        f"""print('{{"time_us": 1}}'); open("out.x", "w").write({content!r})""",
        results={"from": "out.x", "format": form},
    )
    assert only(host)["timing"]["median_us"] == 7


def test_a_results_file_that_is_missing_or_broken_is_an_error(host: Host) -> None:
    script(host, "import sys; open('out.json', 'w').write('{') if sys.argv[1] == 'broken' else 0",
           results={"from": "out.json", "format": "json"})  # fmt: skip
    missing, broken = measured(host.launch([case("c1", ("missing",)), case("c2", ("broken",))]))
    assert missing["reason"] == "it wrote no out.json"
    assert broken["reason"].startswith("the results are no JSON")


def test_files_are_collected_and_every_case_has_a_folder_of_its_own(host: Host) -> None:
    script(
        host,
        """
        import os, sys
        assert sorted(os.listdir(".")) == ["bench.py"]
        os.mkdir("deep")
        for name in ("a.csv", "deep/b.csv", "c.txt"):
            open(name, "w").write(sys.argv[1])
        os.symlink("/etc/passwd", "d.csv")
        print('{"time_us": 1}')
        """,
        collect=["**/*.csv", "bench.py"],
    )
    records = measured(host.launch([case("c1", ("one",)), case("c2", ("two",))]))
    assert [record["status"] for record in records] == ["ok", "ok"]
    collected = {
        str(path.relative_to(host.run_dir / "collected")): path.read_text()
        for path in (host.run_dir / "collected").rglob("*")
        if path.is_file()
    }
    assert collected == {
        "c1/bench/a.csv": "one", "c1/bench/deep/b.csv": "one", "c2/bench/a.csv": "two", "c2/bench/deep/b.csv": "two",
    }  # fmt: skip
    listed = host.call({"name": "list", "run_id": host.run_id}).expect("files")["files"]
    assert ["collected/c1/bench/a.csv", 3] in listed


def test_a_result_with_more_beside_its_time_than_can_be_kept_is_not_lost(host: Host) -> None:
    script(
        host,
        """
        import sys
        samples = ",".join(["1.5000001", "1.5000003"] * 600_000)
        print({
            "samples": '{"median_us": 1.5, "samples_us": [' + samples + ']}',
            "text": '{"median_us": 1.5, "log": "' + "x" * 9_000_000 + '", "kept": 1}',
            "too long": '{"median_us": 1.5, "log": "' + "x" * 17_000_000 + '"}',
        }[sys.argv[1]])
        if len(sys.argv) > 2:
            print('{"median_us": 2.5}')
        """,
    )
    call = host.launch(
        [
            case("c1", ("samples",)),
            case("c2", ("text",)),
            case("c3", ("too long",)),
            case("c4", ("too long", "two")),
        ]
    )
    samples, text, too_long, other = measured(call)
    assert (samples["status"], samples["timing"]["samples"]) == ("ok", 1_200_000)
    assert (len(samples["samples_us"]), samples["extra"]) == (100_000, {"samples_kept": 100_000})
    assert (text["status"], text["timing"]["median_us"], text["metrics"]) == ("ok", 1.5, {"kept": 1})
    assert text["reason"] == "extra.log is left out: it has 9000002 bytes"
    left_out = "lines of more than 16 MiB that began like results were left out: 1"
    assert too_long["reason"].startswith(f"it ended without a result; {left_out}")
    assert other["timing"]["median_us"] == 2.5
    assert [event["message"] for event in call.events("problem")] == [f"label of c4, bench: {left_out}"]


def test_files_that_cannot_be_kept_are_told_and_cost_no_result(host: Host) -> None:
    """Here because something lies where they would go; a container may have left what is not ours to move."""
    script(
        host,
        """
        import os, sys
        for n in range(5):
            open(f"{n}.csv", "w").close()
        if sys.argv[1] == "in the way":
            os.makedirs(os.environ["KEPT"], exist_ok=True)
            open(os.path.join(os.environ["KEPT"], "c1"), "w").close()
        print('{"time_us": 1.5}')
        """,
        collect=["*.csv"],
    )
    host.job["env"]["KEPT"] = str(host.run_dir / "collected")
    call = host.launch([case("c1", ("in the way",)), case("c2", ("fine",))])
    records = measured(call)
    assert [(record["status"], record["timing"]["median_us"]) for record in records] == [("ok", 1.5)] * 2
    (problem,) = (event["message"] for event in call.events("problem"))
    files = "; ".join(f"{n}.csv is not kept: Not a directory" for n in range(3))
    assert problem == f"label of c1, bench: {files}; 2 more"
    assert len(list((host.run_dir / "collected" / "c2").rglob("*.csv"))) == 5


def test_what_is_no_python_is_executed_and_a_command_is_looked_up(host: Host) -> None:
    script(host, '#!/bin/sh\necho "{\\"time_us\\": $1}"\n', name="bench.sh")
    assert only(host, case(args=("4",), name="bench.sh"))["timing"]["median_us"] == 4


@pytest.mark.parametrize(
    ("program", "status"), [("printf", "ok"), ("no-such-program", "error"), ("/etc/passwd", "error")]
)
def test_a_command_of_the_host(host: Host, program: str, status: str) -> None:
    script(host, "", python=False, files={})
    record = only(host, case(args=('{"time_us": 4}\n',), name=program))
    assert record["status"] == status
    assert status == "ok" or program in record["reason"]


def test_each_backend_is_an_execution_and_activation_applies_to_it(host: Host) -> None:
    host.job["activate"] = "GREETING=hello; export GREETING"
    script(
        host,
        'import json, os, sys; print(json.dumps({"time_us": 1, "said": [sys.argv[1], os.environ["GREETING"]]}))',
    )
    two = item("c1", ("a", "b"), payload="bench", commands={"a": ["bench.py", "A"], "b": ["bench.py", "B"]})
    first, second = measured(host.launch([two]))
    assert (first["backend"], first["extra"]) == ("a", {"said": ["A", "hello"]})
    assert (second["backend"], second["extra"]) == ("b", {"said": ["B", "hello"]})


def test_output_of_any_size_never_fills_memory_and_results_are_found_in_it(host: Host) -> None:
    script(
        host,
        r"""
        import sys
        sys.stderr.write("e" * 6_000_000 + "\n")
        sys.stdout.write("o" * 100_000_000 + "\n")
        sys.stdout.buffer.write(b'{"time_us": 5, "text": "\xff\xfe ' + "é€".encode() * 1000 + b'"}\n')
        """,
    )
    record = only(host)
    assert record["timing"]["median_us"] == 5
    assert record["extra"]["text"] == "\ufffd\ufffd " + "é€" * 1000
    logs = list((host.run_dir / "logs").glob("cpu0-*.log*"))
    assert sum(path.stat().st_size for path in logs) < (64 << 20) + 100


def test_leftovers_of_a_script_are_ended_and_do_not_hold_it_up(host: Host) -> None:
    script(
        host,
        """
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        print('{"time_us": 5, "pid": %d}' % child.pid)
        """,
    )
    record = only(host)
    assert record["status"] == "ok"
    assert not runs(int(record["metrics"]["pid"]))


@pytest.mark.parametrize("end", ["pass", "time.sleep(600)"], ids=["ends", "is late"])
def test_leftovers_that_have_nothing_of_us_in_their_environment_are_ended_too(host: Host, end: str) -> None:
    script(host, f"""
        import os, subprocess, time
        # A daemon: twice forked, in a session of its own, with an empty environment.
        subprocess.run(["/bin/sh", "-c", 'setsid sleep 600 & echo $! > "$0"', os.environ["TRACES"] + "/pid"], env={{}})
        print('{{"time_us": 5}}', flush=True)
        {end}
        """)  # fmt: skip
    host.run([{**case(), "timeout_s": 1.0}])
    assert not runs(int(host.trace("pid")[0]))


def test_cancelling_ends_a_running_script(host: Host) -> None:
    script(host, """
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open(os.environ["TRACES"] + "/pid", "w").write(str(os.getpid()) + "\\n")
        time.sleep(600)
        """)  # fmt: skip
    call = host.launch([case()])
    wait_for(lambda: host.trace("pid"))
    host.call({"name": "cancel", "run_id": host.run_id}).expect("cancelled")
    assert not runs(int(host.trace("pid")[0]))
    assert call.expect("end")["state"] == "cancelled"


def test_a_killed_agent_takes_its_script_along_and_the_successor_does_not_repeat_rows(host: Host) -> None:
    script(host, """
        import os, sys, time
        open(os.environ["TRACES"] + "/pid", "a").write(str(os.getpid()) + "\\n")
        print('{"backend": "own-name", "time_us": 1}')
        while sys.argv[1] == "wait" and not os.path.exists(os.environ["TRACES"] + "/open"):
            time.sleep(0.01)
        """)  # fmt: skip
    cases = [case("c1", ("go",)), case("c2", ("wait",))]
    call = host.launch(cases)
    call.wait_for("measurement")
    wait_for(lambda: len(host.trace("pid")) == 2)
    os.kill(host.agent_pid(), signal.SIGKILL)
    assert call.expect("end")["state"] == "dead"
    wait_for(lambda: not runs(int(host.trace("pid")[1])))
    (host.traces / "open").touch()
    host.launch(cases).expect("end")
    assert [(m["case_id"], m["backend"]) for m in host.measurements()] == [
        ("c1", "own-name"),
        ("c2", "own-name"),
    ]


def both(host: Host, source: str, **config: Any) -> list[tuple[Any, ...]]:
    """Backend, status, time and reason of everything that comes of a program run for `fast` and for `slow`."""
    script(host, source, **config)
    commands = {name: ["bench.py", name] for name in ("fast", "slow")}
    records = measured(host.launch([item("c1", ("fast", "slow"), payload="bench", commands=commands)]))
    return [(r["backend"], r["status"], (r["timing"] or {}).get("median_us"), r["reason"]) for r in records]


def test_two_executions_that_print_one_name_are_told_apart(host: Host) -> None:
    first, second = both(host, """
        import sys; print('{"backend": "torch", "median_us": %d}' % (5 if sys.argv[1] == "fast" else 9))
        """)  # fmt: skip
    assert first == ("torch", "ok", 5, None)
    assert second[:3] == ("slow", "error", None)
    assert second[3] == (
        "it printed a result of 'torch', and so did the execution for 'fast': print the backend that is asked for, or none"
    )
    assert host.measurements()[1]["metrics"] == {"median_us": 9}


def test_a_result_in_another_executions_name_is_an_error_of_the_backend_that_was_asked_for(
    host: Host,
) -> None:
    first, second = both(host, """
        import sys; print('{"backend": "%s", "median_us": 5}' % ("slow" if sys.argv[1] == "fast" else "fast"))
        """)  # fmt: skip
    assert (first[:3], second[:3]) == (("fast", "error", None), ("slow", "error", None))
    assert "it printed a result of 'slow', for which the program is run by itself" in first[3]
    assert "it printed a result of 'fast', for which the program is run by itself" in second[3]


def test_rows_of_two_executions_under_one_name_stand_where_the_keys_tell_them_apart(host: Host) -> None:
    found = both(host, """
        import sys
        for m in (1, 2) if sys.argv[1] == "fast" else (2, 3):
            print('{"backend": "torch", "m": %d, "median_us": %d}' % (m, m))
        """, keys=["m"])  # fmt: skip
    assert [(name, status, time) for name, status, time, _ in found] == [
        ("torch", "ok", 1), ("torch", "ok", 2), ("slow", "error", None), ("torch", "ok", 3),
    ]  # fmt: skip


def test_a_name_that_was_reported_is_remembered_by_an_agent_that_goes_on(host: Host) -> None:
    script(host, """
        import os, sys, time
        open(os.environ["TRACES"] + "/pid", "a").write(str(os.getpid()) + "\\n")
        while sys.argv[1] == "slow" and not os.path.exists(os.environ["TRACES"] + "/open"):
            time.sleep(0.01)
        print('{"backend": "torch", "time_us": 1}')
        """)  # fmt: skip
    commands = {name: ["bench.py", name] for name in ("fast", "slow")}
    cases = [item("c1", ("fast", "slow"), payload="bench", commands=commands)]
    call = host.launch(cases)
    call.wait_for("measurement")
    wait_for(lambda: len(host.trace("pid")) == 2)
    os.kill(host.agent_pid(), signal.SIGKILL)
    assert call.expect("end")["state"] == "dead"
    wait_for(lambda: not runs(int(host.trace("pid")[1])))
    (host.traces / "open").touch()
    host.launch(cases).expect("end")
    assert [(m["backend"], m["status"]) for m in host.measurements()] == [("torch", "ok"), ("slow", "error")]


def test_a_name_that_was_reported_is_remembered_by_the_worker_that_goes_on(host: Host) -> None:
    script(host, """
        import os, signal, sys
        if sys.argv[1] == "fatal":
            os.kill(os.getppid(), signal.SIGKILL)
        print('{"backend": "torch", "time_us": 1}')
        """)  # fmt: skip
    commands = {name: ["bench.py", name] for name in ("fast", "fatal", "slow")}
    records = measured(host.launch([item("c1", tuple(commands), payload="bench", commands=commands)]))
    assert [(r["backend"], r["status"], r["attempt"]) for r in records] == [
        ("torch", "ok", 1), ("fatal", "crashed", 1), ("slow", "error", 2),
    ]  # fmt: skip
