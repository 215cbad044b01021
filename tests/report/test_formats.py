"""Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json

import pytest

from orchestrator.archive import Archive
from orchestrator.errors import UsageError
from orchestrator.model import Measurement
from orchestrator.report import build, render
from orchestrator.report.markdown import escaped
from orchestrator.wording import number, ratio, share, visible

EVIL = "</script><img src=x onerror=alert(1)> [bs=8] a|b \x1b[31m `c`"


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_markdown_shows_the_same_table(report, ok, bad):
    text = render(
        report(
            ok("c1", "torch", 2.0),
            ok("c1", "flashinfer:cutlass", 4.0),
            bad("c2", "torch", "oom", "needs | 80 GB"),
        ),
        "markdown",
    )
    assert "| case | flashinfer:cutlass (baseline), µs | torch, µs |" in text
    assert "| Expert batch=16 (decode) | 4.000 | 2.000 2.00× |" in text
    assert "| Expert batch=256 | – | oom [1] |" in text
    assert "- [1] oom: needs \\| 80 GB" in text


def test_markdown_is_inert(report, ok):
    text = render(report(ok("c1", "torch", 1.0, label=EVIL), sweep={"name": EVIL}), "markdown")
    assert "<" not in text
    assert "\x1b" not in text
    (row,) = [line for line in text.split("\n") if line.startswith("| &lt;/script")]
    assert row.replace("\\|", "").count("|") == 3
    assert "[bs=8]" in row


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("sgl_kernel", "sgl_kernel"),
        ("[bs=8]", "[bs=8]"),
        ("_x_ a_ _b", r"\_x\_ a\_ \_b"),
        ("*b* ~s~ `c` $m$", r"\*b\* \~s\~ \`c\` \$m\$"),
        ("[a](http://x) ![i](y) [r][s] [^1]", r"[a\](http://x) \![i\](y) [r\][s] \[^1]"),
        ("a\\|b & <i>", r"a\\\|b &amp; &lt;i&gt;"),
        ("one\ntwo", r"one\\ntwo"),
        (
            "@me @a-b/c me@host #1 x/y#22 GH-3 #x",
            "@&#8203;me @&#8203;a-b/c me@host #&#8203;1 x/y#&#8203;22 GH-&#8203;3 #x",
        ),
        ("# head", r"\# head"),
        ("- item", r"\- item"),
        ("12. item", r"12\. item"),
        ("[x] done", r"\[x] done"),
        ("---", r"\---"),
        ("-1 1.5 -dash #x", "-1 1.5 -dash #x"),
    ],
)
def test_markdown_escapes_what_would_act(text, source):
    assert escaped(text) == source


def test_csv_has_a_line_a_measurement_with_its_speedup(report, ok, bad):
    text = render(
        report(
            ok("c1", "torch", 2.0, metrics={"tflops": 1.5}, row={"k": 3}),
            ok("c1", "flashinfer:cutlass", 4.0, row={"k": 3}),
            bad("c2", "torch", "error", 'says "no", twice'),
            ok("c2", "sgl_kernel", 1.0),
        ),
        "csv",
    )
    first, base, failed, alone = rows_of(text)
    assert (first["median_us"], first["speedup"], first["param.m"], first["row.k"], first["metric.tflops"]) == (
        "2.0", "2.0", "16", "3", "1.5",
    )  # fmt: skip
    assert base["speedup"] == ""
    assert (failed["status"], failed["reason"], failed["median_us"]) == ("error", 'says "no", twice', "")
    assert alone["speedup_note"] == "the baseline has no time"


def test_csv_is_no_formula_and_numbers_stay_numbers(report, ok):
    text = render(
        report(
            ok("c1", "torch", 1.0, label="=HYPERLINK(1)", params={"a": "-1+1", "n": -5, "@x": "+1", "big": 2**53 + 1, "b": True}),
            ok("c2", "torch", 1.0, label=EVIL + "\n,;", params={"a": " =1", "l": [1, "x"]}),
        ),
        "csv",
    )  # fmt: skip
    first, second = rows_of(text)
    assert first["label"] == "'=HYPERLINK(1)"
    assert (first["param.a"], first["param.n"], first["param.@x"]) == ("'-1+1", "-5", "'+1")
    assert (first["param.big"], first["param.b"]) == (str(2**53 + 1), "true")
    assert second["param.a"] == "' =1"
    assert second["param.l"] == '[1, "x"]'
    assert "\x1b" not in text
    assert text.count("\n") == 3


def test_csv_without_measurements_has_its_head(report):
    assert render(report(), "csv").startswith("run_id,host,device_index")


def test_json_is_the_run_and_its_measurements(report, ok, bad):
    made = report(
        ok("c1", "torch", 2.0, params={"m": 2**53 + 1, "s": "x\u2028\x1b"}), bad("c2", "torch", "error")
    )
    text = render(made, "json")
    assert text.isascii()
    document = json.loads(text)
    assert document.keys() == {"run", "measurements"}
    assert document["run"]["state"] == "finished"
    assert document["run"]["counts"] == {"ok": 1, "error": 1}
    assert [Measurement.model_validate(m) for m in document["measurements"]] == list(made.measurements)
    assert json.loads(render(report(), "json"))["measurements"] == []


def test_an_unknown_format(report):
    with pytest.raises(UsageError, match="no format 'pdf'"):
        render(report(), "pdf")


def test_a_report_is_the_same_before_and_after_the_commit(archive: Archive, document, ok, bad):
    measured = [ok("c2", "torch", 2.0), ok("c1", "torch", 3.0), bad("c1", "sgl_kernel", "error", "x")]
    run = archive.create("20250102T030405Z-abcdef", document(), {})
    events = [{"t": 1, "type": "devices", "devices": [measured[0].device.model_dump()]}]
    events += [{"t": 2, "type": "measurement", "measurement": m.model_dump(mode="json")} for m in measured]
    run.append_events("blackwell", 0, b"".join(json.dumps(event).encode() + b"\n" for event in events))
    before = build(archive, run.folder)
    assert before.state == "running"
    assert [(m.case_id, m.backend) for m in before.measurements] == [
        ("c1", "sgl_kernel"),
        ("c1", "torch"),
        ("c2", "torch"),
    ]

    from orchestrator.archive import fold_run

    stale = run.folder
    run.commit(
        run.measurements(fold_run(run.folder, run.document())), "finished", ended_at="2025-01-02T04:00:00Z"
    )
    after = build(archive, stale)  # found at its new place
    assert after.state == "finished"
    assert after.measurements == before.measurements
    assert after.tables[0].rows[0].cells[0].pending is False


def test_numbers_keep_three_or_four_digits():
    assert [number(x) for x in (0, 12.3456, 1234.56, 0.0123456, 123456.7, 9.99996, 1.5e-7)] == [
        "0", "12.35", "1235", "0.01235", "123457", "10.00", "1.500e-07",
    ]  # fmt: skip
    assert [ratio(x) for x in (1.449, 12.34, 123.4, 0.5, 0.0871)] == [
        "1.45×",
        "12.3×",
        "123×",
        "0.50×",
        "0.0871×",
    ]
    assert [share(x) for x in (0.412, 0.041)] == ["41%", "4.1%"]


def test_visible_leaves_ordinary_text_alone():
    assert visible("é 😀 µs × 中文 [b]") == "é 😀 µs × 中文 [b]"
    assert visible("a\tb\x9b\u2029\ud800") == r"a\tb\x9b\u2029\ud800"
    assert visible("abcdef", 4) == "abc…"
