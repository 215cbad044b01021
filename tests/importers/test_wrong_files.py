"""A wrong file gives one message that begins with the file, and the line where one is known."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from orchestrator.errors import FileError, UsageError
from orchestrator.importers import formats
from orchestrator.importers.source import Source
from tests.importers.conftest import DATA, FORMAT_OF, read

JSON_FILES = [name for name in FORMAT_OF if name.endswith(".json") and "appended" not in name]


@pytest.mark.parametrize("name", [n for n in FORMAT_OF if n not in ("softmax.csv", "add-ms.csv")])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.97])
def test_a_file_that_was_cut_off(name: str, share: float, tmp_path: Path):
    content = (DATA / name).read_bytes()
    length = int(len(content) * share)
    if name == "all_reduce.txt":
        length = min(length, content.index(b"# Avg"))  # what follows that line says nothing
    while content[length - 1 : length] == b"\n" or content[length : length + 1] == b"\n":
        length -= 1  # between two lines nobody can tell
    file = tmp_path / name
    file.write_bytes(content[:length])
    with pytest.raises(FileError) as caught:
        read(file, FORMAT_OF[name])
    assert re.match(rf"{re.escape(str(file))}:\d+: ", str(caught.value))
    last = content[:length].count(b"\n") + 1
    assert 1 <= caught.value.line <= last
    if name.endswith((".json", ".jsonl", ".csv")):
        assert caught.value.line == last


@pytest.mark.parametrize("name", JSON_FILES)
def test_detection_says_where_json_is_damaged(name: str, tmp_path: Path):
    content = (DATA / name).read_text()
    (tmp_path / name).write_text(content[: len(content) // 2])
    with pytest.raises(
        FileError, match=rf":{content[: len(content) // 2].count(chr(10)) + 1}: ends in the middle of JSON"
    ):
        read(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"\x89PNG\r\n\x1a\n\0\0\0", "is no text in UTF-8"),
        (b"PAR1" + bytes(100) + b"PAR1", "none of the formats known"),
        (b"hello\nworld\n", "none of the formats known"),
        (b"name: x\npayload: gemm_fp4\n", "none of the formats known"),
        (b"{}", "none of the formats known"),
        (b"[1, 2]", "none of the formats known"),
        (b"null", "none of the formats known"),
        (b"a,b,c\n1,2,3\n", "none of the formats known"),
        (b'{"a": 1}\n{"a": 2}\n', "none of the formats known|is no JSON"),
        (b"[" * 100_000, "nested too deeply|ends in the middle"),
        (b'{"context": {}, "benchmarks": []}', "holds no result that google-benchmark knows"),
        (b'{"version": "1.0", "benchmarks": []}', "holds no result that pyperf knows"),
        (b'{"devices": null, "benchmarks": []}', "holds no result that nvbench knows"),
        (b'{"benchmarks": ' + b"9" * 5000 + b"}", "a whole number that is too long"),
        (b"n,A (ms)\n\n", "has no row below its header"),
        (b'{"definition": "x", "workload": {"axes": {}, "uuid": "u"}}\n', "holds no result"),
    ],
)
def test_what_is_no_result_of_a_benchmark(tmp_path: Path, content: bytes, told: str):
    file = tmp_path / "x"
    file.write_bytes(content)
    with pytest.raises(FileError, match=told) as caught:
        read(file)
    assert str(caught.value).startswith(f"{file}:")


@pytest.mark.parametrize("format", formats.FORMATS)
@pytest.mark.parametrize("name", FORMAT_OF)
def test_a_format_that_the_file_is_not(name: str, format: str):
    if FORMAT_OF[name] == format:
        assert read(DATA / name, format)
    elif {FORMAT_OF[name], format} == {"flashinfer-csv", "triton-csv"}:
        with pytest.raises(FileError):
            read(DATA / name, format)
    else:
        with pytest.raises(FileError, match=re.escape(name)):
            read(DATA / name, format)


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


@pytest.mark.parametrize(
    ("name", "old", "new", "told"),
    [
        (
            "nvbench.json",
            '"value": "9007199254740993"',
            '"value": "many"',
            "axis Elements: 'many' is no int64",
        ),
        (
            "nvbench.json",
            '"name": "copy_kernel"',
            '"name": 7',
            r"benchmarks\.0\.name: Input should be a valid string",
        ),
        (
            "nvbench.json",
            '"is_skipped": true',
            '"is_skipped": "perhaps"',
            r"benchmarks\.0\.states\.2\.is_skipped",
        ),
        (
            "google-benchmark.json",
            '"time_unit": "ms"',
            '"time_unit": "fortnights"',
            "'fortnights' is no unit of time",
        ),
        ("google-benchmark.json", '"run_type": "iteration"', '"run_type": 5', r"benchmarks\.0\.run_type"),
        ("pyperf.json", '"name": "join', '"title": "join', r"benchmarks\.1 has no name"),
        ("vllm-latency.json", '"avg_latency": 1.23875', '"avg_latency": null', "avg_latency"),
    ],
)
def test_the_line_of_what_is_wrong_in_json(tmp_path: Path, name: str, old: str, new: str, told: str):
    before = (DATA / name).read_text()
    assert old in before
    (tmp_path / name).write_text(before.replace(old, new, 1))
    with pytest.raises(FileError, match=told) as caught:
        read(tmp_path / name)
    expected = line_of(before, old)
    assert caught.value.line is not None
    assert expected - 8 <= caught.value.line <= expected  # the innermost thing that is there


@pytest.mark.parametrize(
    ("name", "line", "new", "told"),
    [
        ("flashinfer.csv", 3, "mm_fp4,fast,0,0,0,cutlass" + "," * 24, "median_time is 'fast'"),
        ("flashinfer.csv", 3, "mm_fp4,0.1", "has 2 fields where the header has 30"),
        ("flashinfer.csv", 3, "," * 29, "routine is missing"),
        ("trace.jsonl", 3, "{", "ends in the middle of JSON"),
        ("trace.jsonl", 3, "[]", "the document: Input should be"),
        ("trace.jsonl", 2, '{"definition": "d", "solution": "s", "workload": {"axes": {"m": "x"}, "uuid": "u"}}', r"workload\.axes\.m"),
        ("trace.jsonl", 2, json.dumps({"definition": "d", "solution": "s", "workload": {"axes": {}, "uuid": "u"}, "evaluation": {"status": 5}}), r"evaluation\.status"),
        ("trace.jsonl", 2, json.dumps({"definition": "d", "solution": "s", "workload": {"axes": {}, "uuid": "u"}, "evaluation": {"status": "PASSED"}}), "performance is missing"),
        ("all_reduce.txt", 12, "    8    2   float  sum", "has 4 fields"),
        ("all_reduce.txt", 12, "    8    2   float  sum  -1  slow  0 0 0 slow 0 0 0", "time is 'slow'"),
        ("add-ms.csv", 3, "16,fast,0.1", "Triton: 'fast' is no number"),
        ("add-ms.csv", 3, "16,0.1", "has 2 fields"),
        ("add-ms.csv", 3, '16,"0.1,0.2', "is no table|fields"),
        ("vllm-serve-appended.json", 2, '{"x": 1}', "no result of vllm bench"),
    ],
)  # fmt: skip
def test_the_line_of_what_is_wrong_in_a_table(tmp_path: Path, name: str, line: int, new: str, told: str):
    lines = (DATA / name).read_text().split("\n")
    lines[line - 1] = new
    (tmp_path / name).write_text("\n".join(lines))
    with pytest.raises(FileError, match=told) as caught:
        read(tmp_path / name)
    assert (
        caught.value.line in (line, len(lines), len(lines) - 1)
        if '"0.1' in new
        else caught.value.line == line
    )


def test_a_unit_that_is_missing_is_asked_for():
    with pytest.raises(
        FileError, match=r"old-style.csv:1: column 'Triton' does not say its unit: give --unit"
    ):
        read(DATA / "old-style.csv", "triton-csv")
    with pytest.raises(FileError, match=r"has no column M \(--keys\)"):
        read(DATA / "old-style.csv", "triton-csv", unit="ms", keys=("M",))


def test_a_format_that_does_not_exist():
    with pytest.raises(UsageError, match="there are auto, nvbench, "):
        read(DATA / "add-ms.csv", "xml")


def test_nonsense_numbers_become_words(tmp_path: Path):
    """Zero, negative, missing and infinite times: an error with a reason, never a time."""
    rows = ["0", "-1", "inf", "-inf", "nan", "", "1e400", "1e-400"]
    (tmp_path / "x.csv").write_text("n,A (us)\n" + "".join(f"{i},{row}\n" for i, row in enumerate(rows)))
    found = read(tmp_path / "x.csv")
    assert [(m.status.value, m.timing) for m in found] == [("error", None)] * len(rows)
    assert all(m.reason for m in found)


def test_json_that_only_python_writes(tmp_path: Path):
    report = json.loads((DATA / "google-benchmark.json").read_text())
    report["benchmarks"] = report["benchmarks"][:1]
    report["benchmarks"][0] |= {"rate": float("nan"), "other": float("inf"), "label": "\ud800 x"}
    (tmp_path / "x.json").write_text(json.dumps(report))
    (only,) = read(tmp_path / "x.json")
    assert (only.metrics["rate"], only.metrics["other"], only.extra["label"]) == (None, None, "\ufffd x")


def test_the_place_of_a_value_is_found_among_others(tmp_path: Path):
    source = Source(tmp_path, b'{"a": [1,\n {"b": "}]",\n "\\u0062b": [true, null,\n -1e5]}],\n "c": {}}')
    assert [source.line_of(p) for p in (["a"], ["a", 1], ["a", 1, "b"], ["a", 1, "bb", 2], ["c"], ["d"], ["a", 9], ["c", 0])] == [
        1, 2, 2, 4, 5, 1, 1, 5,
    ]  # fmt: skip
