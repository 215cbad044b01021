"""Parts of the agent by themselves, where a whole run would hide what they do."""

from __future__ import annotations

import io
import json
import math
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent.attempt import Attempt
from orchestrator.agent.exits import describe
from orchestrator.agent.journal import Journal, last_event, read_events
from orchestrator.agent.logs import LogFile, Redactor, printable
from orchestrator.agent.paths import RunPaths, add_numbered
from orchestrator.agent.queueing import CaseQueue, Entry
from orchestrator.agent.records import complete
from orchestrator.agent.script_results import JsonLineFilter, read_rows
from orchestrator.agent.starts import StartFailures
from orchestrator.agent.wire import Lines, finite
from orchestrator.model import Measurement

FACTS = {
    "run_id": "r", "host": "h", "device": None, "case_id": "c", "label": "", "payload": "p", "params": {}, "attempt": 1,
    "started_at": None, "duration_s": 1.0, "environment_id": None,
}  # fmt: skip
OK = {
    "backend": "torch", "status": "ok", "verdict": "valid", "reasons": [],
    "timing": {"timer": "graph", "median_us": 2.0}, "samples_us": [1, 2.0],
}  # fmt: skip


def record(sent: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A completed record, which must be one that the controller accepts."""
    made = complete({**OK, **sent}, FACTS, Redactor(more.pop("secrets", ())), **more)
    Measurement.model_validate_json(json.dumps(made, allow_nan=False))
    return made


def test_telemetry_makes_a_valid_result_suspect_and_no_better_one_of_an_invalid_one() -> None:
    suspect = record({}, telemetry={"sm_clock_mhz": 900.0}, telemetry_reasons=["throttled"])
    assert (suspect["verdict"], suspect["reasons"]) == ("suspect", ["throttled"])
    invalid = record({"verdict": "invalid", "reasons": ["noisy"]}, telemetry_reasons=["contended"])
    assert (invalid["verdict"], invalid["reasons"]) == ("invalid", ["noisy", "contended"])


@pytest.mark.parametrize(
    ("sent", "status", "reason"),
    [
        ({"timing": {"timer": "x", "median_us": math.inf}}, "error", "timing.median_us is infinity"),
        (
            {"timing": {"timer": "x", "median_us": -1}},
            "error",
            "timing.median_us is -1: a time must be positive",
        ),
        ({"timing": {"timer": "x"}}, "error", "timing.median_us is no number"),
        ({"timing": [1]}, "error", "timing is no object"),
        ({"samples_us": [1, math.nan]}, "error", "samples_us holds 1 values that are no finite numbers"),
        ({"samples_us": "many"}, "error", "samples_us is no list of numbers"),
        ({"status": "great"}, "error", "the payload reported an unknown status: 'great'"),
        ({"status": None}, "error", "the payload reported an unknown status: None"),
        ({"accuracy": {"cosine": math.nan}}, "incorrect", "accuracy.cosine is NaN"),
    ],
)
def test_a_result_that_cannot_be_one_says_why(sent: dict[str, Any], status: str, reason: str) -> None:
    made = record(sent)
    assert (made["status"], made["verdict"]) == (status, None)
    assert made["reason"].startswith(reason)


def test_odd_values_from_a_payload_become_what_json_can_hold() -> None:
    made = record(
        {"metrics": {"a": math.nan, "b": 10**400, "c": "x", "d": True, "e": 2}, "extra": {"\ud800": "\udfff"}}
    )
    assert made["metrics"] == {"a": None, "e": 2}
    assert made["extra"] == {"\ufffd\ufffd\ufffd": "\ufffd\ufffd\ufffd", "b": 10**400, "c": "x", "d": True}
    assert finite({1: (float("-inf"), Path("x"))}, "v") == ({"1": [None, "x"]}, ["v.1[0] is -infinity"])


def test_secrets_vanish_from_records_and_failures_keep_their_tail() -> None:
    made = record({"status": "error", "reason": "bad hunter22", "extra": {"hunter22": ["x hunter22"]}},
                  secrets=["hunter22", "abc"], log_tail="abc hunter22")  # fmt: skip
    assert (made["reason"], made["extra"], made["log_tail"]) == ("bad ***", {"***": ["x ***"]}, "abc ***")
    assert record({}, log_tail="chatter")["log_tail"] is None


def test_a_secret_is_found_wherever_the_stream_is_cut() -> None:
    secret = "aab-é-aabc"
    whole = f"x aab-é {secret}{secret} aab-é-aab".encode()
    for cut in range(len(whole)):
        for second in range(cut, len(whole)):
            stream = Redactor([secret]).stream()
            out = stream.feed(whole[:cut]) + stream.feed(whole[cut:second]) + stream.feed(whole[second:])
            assert out + stream.flush() == "x aab-é ****** aab-é-aab".encode()


def test_a_secret_that_one_worker_has_half_printed_is_found_whatever_another_prints(tmp_path: Path) -> None:
    redactor = Redactor(["hf_SECRETTOKEN"])
    first, second = (LogFile(str(tmp_path / name), redactor) for name in ("a", "b"))
    first.write(b"token is hf_SEC")
    second.write(b"as usual\n")
    first.write(b"RETTOKEN\n")
    first.close()
    second.close()
    assert (tmp_path / "a").read_text() == "token is ***\n"
    assert (tmp_path / "b").read_text() == "as usual\n"


@pytest.mark.parametrize(
    "written",
    [
        str,
        repr,
        ascii,
        json.dumps,
        lambda s: json.dumps(s, ensure_ascii=False),
        lambda s: json.dumps(repr(s)),
    ],
)
def test_a_secret_is_known_as_json_and_as_tracebacks_write_it(written: Callable[[str], str]) -> None:
    secret = "sé\"cr\\et'\n9f3a"
    redactor = Redactor([secret])
    told = f"KeyError: {written(secret)} ends"
    stream = redactor.stream()
    for known in ((stream.feed(told.encode()) + stream.flush()).decode(), redactor.text(told)):
        assert re.sub("[\"'\\\\]", "", known) == "KeyError: *** ends"


def test_a_log_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    log = LogFile(str(tmp_path / "w.log"), Redactor([]), cap=1000)
    for number in range(1000):
        log.write(b"%09d\n" % number)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1000
    log.close()
    text = (tmp_path / "w.log").read_text()
    assert text.startswith("000000000\n000000001\n")
    assert text.endswith("000000998\n000000999\n")
    left_out = int(text.split("[... ")[1].split()[0])
    assert len(text) - len(f"\n[... {left_out} bytes left out ...]\n") + left_out == 10_000
    assert [path.name for path in tmp_path.iterdir()] == ["w.log"]


def test_a_tail_is_fit_for_a_terminal() -> None:
    noise = (
        b"\x1b[31mred\x1b[0m \x1b]0;title\x07ok\r\n 10%\r 50%\r100%\nnul\0 \xff \x1b(B\x9b1m \xe2\x80\xae\n"
    )
    assert printable(noise) == "red ok\n100%\nnul\ufffd \ufffd \ufffd1m \ufffd"
    assert printable("é".encode() * 5000) == "é" * 2048


def test_clocks_of_interleaved_backends_run_only_in_turn() -> None:
    attempt = Attempt({"case_id": "c", "timeout_s": 10, "compile_timeout_s": 100}, ["a", "b"], 1, now=0.0)
    assert attempt.deadline() == 100
    attempt.phase("a", "compile", 1.0)
    attempt.phase("a", "check", 50.0)
    attempt.phase("b", "compile", 52.0)
    attempt.phase("a", "measure", 60.0)
    assert attempt.deadline() == 68.0
    attempt.phase("b", "measure", 65.0)
    assert (attempt.in_flight, attempt.deadline()) == ("b", 75.0)
    attempt.phase("a", "measure", 70.0)
    assert attempt.overdue(72.9) is None
    assert attempt.overdue(73.1) == "check and measure took longer than timeout_s = 10 s"
    attempt.reported("a", 71.0)
    assert attempt.spent_s("a", 71.0) == 50 + 2 + 5 + 1
    assert (attempt.in_flight, attempt.remaining) == ("b", ["b"])


def test_a_queue_groups_payloads_in_order_and_releases_only_what_is_untouched() -> None:
    queue = CaseQueue()
    for case_id, payload in (("1", "x"), ("2", "y"), ("3", "x"), ("4", "y"), ("5", "y")):
        queue.add(Entry({"case_id": case_id, "payload": payload, "backends": ["a"]}, None, (), 1))
    assert [group.payload for group in queue.groups()] == ["x", "y"]
    first = next(queue.groups())
    taken = [queue.take(first, [None]) for _ in range(3)]
    assert [entry and entry.case_id for entry in taken] == ["1", "3", None]
    assert taken[1] is not None
    queue.put_back(taken[1])
    assert queue.release(["1", "2", "3", "9"], "another model") == {}
    assert queue.release(["1", "2", "3", "9"]) == {None: ["2"]}
    assert queue.release_all() == {None: ["3", "4", "5"]}
    assert len(queue) == 0


def test_a_device_that_never_gets_ready_is_retired_while_others_go_on() -> None:
    starts = StartFailures()
    for _ in range(3):
        starts.note("p", ["good"], ready=True)
        starts.note("p", ["bad"], ready=False)
    assert starts.retired("p", "bad")
    assert not starts.retired("p", "good")
    assert not starts.given_up("p", ["good", "bad"])
    for _ in range(3):
        starts.note("p", ["good"], ready=False)
    assert starts.given_up("p", ["good", "bad"])


def test_a_batch_delivered_twice_is_one_file(tmp_path: Path) -> None:
    assert add_numbered(str(tmp_path), b"[1]", once=True) == "000001.json"
    assert add_numbered(str(tmp_path), b"[2]", once=True) == "000002.json"
    assert add_numbered(str(tmp_path), b"[1]", once=True) == "000001.json"
    assert add_numbered(str(tmp_path), b"[1]") == "000003.json"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000001.json", "000002.json", "000003.json"]


@pytest.mark.parametrize("run_id", ["", "..", "a/b", ".hidden", "a\0b", "é", "x" * 200])
def test_a_run_id_is_a_plain_name(run_id: str) -> None:
    with pytest.raises(ValueError, match="not a run id"):
        RunPaths("/w", run_id)


def test_a_journal_skips_what_is_torn_and_finds_its_last_event(tmp_path: Path) -> None:
    paths = RunPaths(str(tmp_path), "r")
    paths.make()
    Path(paths.journal).write_bytes(b'{"type": "a"}\n{"type": "b", "x": "\xe2\x82')
    journal = Journal(paths)
    assert Path(paths.reserve).stat().st_blocks * 512 >= 1 << 20
    journal.append("c", text="x\u2028y")
    journal.close()
    assert [event["type"] for event in read_events(paths.journal)] == ["a", "c"]
    assert last_event(paths.journal)["text"] == "x\u2028y"
    assert not Path(paths.reserve).exists()


def test_only_lines_that_may_be_results_are_kept() -> None:
    kept = JsonLineFilter()
    out = b"".join(
        kept.feed(piece) for piece in (b"noi", b'se {\n  {"a"', b": 1}\r\n\n", b"x" * 100, b'\n{"b": 2}')
    )
    assert out + kept.flush() == b'  {"a": 1}\r\n{"b": 2}\n'
    assert read_rows(io.BytesIO(b'{"a": 1\n{"b": 2}\n[3]\n' + b"[" * 100_000 + b"\n"), "json_lines") == [
        {"b": 2}
    ]


def test_an_end_is_described_in_words() -> None:
    assert describe(-signal.SIGKILL) == "killed by signal 9 (SIGKILL)"
    assert describe(-35) == "killed by signal 35"
    assert describe(2) == "exit code 2"


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_lines_come_whole_whatever_pieces_they_come_in(size: int) -> None:
    stream = b"first\n\nthird is longer\nhalf"
    lines, found = Lines(b"> "), []
    for start in range(0, len(stream), size):
        lines.feed(stream[start : start + size])
        found += lines.whole()
    assert found == [b"> first", b"", b"third is longer"]
    assert len(lines) == len(b"half")
    lines.clear()
    lines.feed(b"x\n")
    assert list(lines.whole()) == [b"x"]
