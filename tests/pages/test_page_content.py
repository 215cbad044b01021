"""What a page holds, without a browser."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from orchestrator.archive import Archive, RunFolder, read_document
from orchestrator.report import build
from orchestrator.report.families import families
from orchestrator.report.html import Cell, Chart, Column, Figure, Page, Section, Table, plain, to_html
from orchestrator.report.html.curves import sections as curve_sections
from orchestrator.report.html.page import embedded
from orchestrator.report.html.run import page
from orchestrator.report.html.spread import shared
from orchestrator.report.html.timeline import spans
from tests.pages.made_runs import BACKENDS, EVIL, devices, failed, measurement, write_run

CASE = {"id": "c" * 16, "label": "m=64", "payload": "gemm_fp4", "params": {"m": 64, "n": 2048, "k": 6144}}


class Elements(HTMLParser):
    """Every element of a document."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)


def page_json(run: RunFolder) -> dict[str, Any]:
    return page(build(Archive(run.path.parent.parent), run), run).as_json()


def section(document: dict[str, Any], title: str) -> dict[str, Any]:
    found: dict[str, Any] = next(s for s in document["sections"] if s["title"] == title)
    return found


def test_text_cannot_end_the_block_that_holds_it() -> None:
    value = {"text": f"{EVIL}<!--<script>\u2028\u2029&amp;", "exact": str(2**63 - 1)}
    text = embedded(value)
    assert not set(text) & set("<>&\u2028\u2029")
    assert json.loads(text) == value


def test_a_document_has_no_element_but_its_own() -> None:
    table = Table(EVIL, [Column(EVIL)], [[EVIL], [Cell(EVIL)]])
    text = to_html(Page(EVIL, [EVIL], [Section(EVIL, [table])]))
    tags = Elements(text).tags
    assert tags.count("script") == 3
    assert "img" not in tags
    assert re.search(r"<title>&lt;/script&gt;&lt;img", text)
    assert "default-src 'none'" in text


def test_nan_never_reaches_a_page() -> None:
    chart = Chart("t", "s", {"": Figure([{"y": [float("nan")]}])})
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_html(Page("t", [], [Section("s", [chart])]))


def test_the_page_has_every_part(made_run: RunFolder) -> None:
    document = page_json(made_run)
    assert [s["title"] for s in document["sections"]] == [
        "In short", "Comparison", "Speed-ups", "Statuses", "Curves", "Roofline", "Devices", "Timeline", "Telemetry", "Provenance", "Repeat",
    ]  # fmt: skip
    table = section(document, "Comparison")["blocks"][0]
    assert len(table["rows"]) == 96


def test_the_page_begins_with_what_each_backend_is_worth(made_run: RunFolder) -> None:
    (table,) = section(page_json(made_run), "In short")["blocks"]
    assert table["caption"] == "gemm_fp4 on NVIDIA RTX PRO 6000 Blackwell: speed-up over flashinfer:cutlass"
    titles = [c["title"] for c in table["columns"]]
    assert titles == [
        "Backend",
        "Speed-up",
        "From – to",
        "Fastest in",
        "Measured",
        "The others",
    ]
    base, sgl, torch = [
        [cell[0] if isinstance(cell, list) else cell for cell in row] for row in table["rows"]
    ]
    assert base == ["flashinfer:cutlass (baseline)", None, None, "8 of 32", "32 of 32", None]
    assert sgl[0] == "sgl_kernel"
    assert sgl[1] == "1.35×"
    assert sgl[3:] == ["24 of 32", "24 of 32", "8 crashed"]
    assert torch[1] == "0.45×?", "some of its times are suspect"
    assert torch[3:] == ["0 of 32", "32 of 32", None]


def test_the_marks_of_a_time_are_those_of_the_terminal(tmp_path: Path) -> None:
    device = devices("gpu-a", 1)[0]
    records = [
        measurement("gpu-a", device, CASE, backend, 5.0) | told
        for backend, told in (
            ("torch", {}),
            ("sgl_kernel", {"verdict": "suspect", "reasons": ["noisy"]}),
            ("flashinfer:cutlass", {"verdict": "invalid", "reasons": ["contended"]}),
        )
    ]
    run = write_run(tmp_path, [CASE], records, ("gpu-a",), replicate="replicate")
    table = section(page_json(run), "Comparison")["blocks"][0]
    titles = [column["title"] for column in table["columns"]]
    shown = {
        row[1]: (row[titles.index("Median, µs")][0], row[titles.index("Status")]) for row in table["rows"]
    }
    assert shown == {
        "torch": ("5.000", ["ok", None, "good"]),
        "sgl_kernel": ("5.000?", ["ok, suspect", None, "suspect"]),
        "flashinfer:cutlass": ("5.000!", ["ok, invalid", None, "invalid"]),
    }


def test_one_backend_alone_is_worth_no_table(tmp_path: Path) -> None:
    record = measurement("gpu-a", devices("gpu-a", 1)[0], CASE, "torch", 5.0)
    run = write_run(tmp_path, [CASE], [record], ("gpu-a",), replicate="replicate")
    assert page_json(run)["sections"][0]["title"] == "Comparison"


def test_every_case_has_the_command_that_repeats_it(made_run: RunFolder) -> None:
    rows = section(page_json(made_run), "Repeat")["blocks"][1]["rows"]
    assert len(rows) == 8 * len(BACKENDS)
    assert rows[3][-1] == (
        "farbench repro 20250102T030405Z-abcdef 0000000000000001 --backend flashinfer:cutlass --run"
    )


def test_exact_integers_line_separators_and_brackets_are_shown(tmp_path: Path) -> None:
    case = {**CASE, "label": "[bs=8] x\u2028y", "params": {"m": 64, "seed": 2**63 - 1}}
    record = {
        **measurement("gpu-a", devices("gpu-a", 1)[0], {**CASE}, "torch", 5.0),
        "params": case["params"],
    }
    run = write_run(tmp_path, [case], [{**record, "label": case["label"]}], ("gpu-a",), replicate="replicate")
    table = section(page_json(run), "Comparison")["blocks"][0]
    titles = [c["title"] for c in table["columns"]]
    assert table["rows"][0][0] == "[bs=8] x\\u2028y"
    assert table["rows"][0][titles.index("Parameters")] == "m=64 seed=9223372036854775807"


def test_a_megabyte_of_log_is_cut_to_its_end(tmp_path: Path) -> None:
    record = measurement("gpu-a", devices("gpu-a", 1)[0], CASE, "torch", 5.0)
    record = failed(record, "error", "boom", "x" * 1_000_000 + "\nthe end")
    run = write_run(tmp_path, [CASE], [record], ("gpu-a",), replicate="replicate")
    table = section(page_json(run), "Statuses")["blocks"][0]
    log = table["rows"][0][-1]
    assert log.endswith("\nthe end")
    assert len(log) < 20_000


def test_the_timeline_is_not_fooled_by_a_clock_that_is_set(made_run: RunFolder) -> None:
    """The wall clocks of these hosts went back by an hour in the middle of the run."""
    found = spans(made_run, read_document(made_run.run_json))
    assert {s.kind for s in found} == {"waiting", "starting", "compiling", "checking", "measuring"}
    begin, end = min(s.start for s in found), max(s.end for s in found)
    assert 0 < end - begin < 120
    waited = [s for s in found if s.kind == "waiting"]
    assert len(waited) == 4
    assert all(abs(s.end - s.start - 2.0) < 1e-6 for s in waited)
    assert waited[0].what == f"for {EVIL}"


def test_a_journal_that_makes_no_sense_is_left_out(made_run: RunFolder) -> None:
    whole = made_run.events("gpu-a").read_bytes()
    torn = b'{"type": "phase", "t": "x"}\n[]\n\xff\n' + whole[: len(whole) // 2]
    made_run.events("gpu-a").write_bytes(torn)
    try:
        found = spans(made_run, read_document(made_run.run_json))
    finally:
        made_run.events("gpu-a").write_bytes(whole)
    assert {s.host for s in found} == {"gpu-a", "gpu-b"}


def test_families_share_all_but_m(made_run: RunFolder) -> None:
    report = build(Archive(made_run.path.parent.parent), made_run)
    found = families(report)
    assert [f.name for f in found] == ["n=2048 k=6144", "n=768 k=6144"]
    points = found[0].curves["flashinfer:cutlass"]
    assert [p.x for p in points] == [16, 64, 256, 1024]
    assert points[0].devices == 4
    assert points[0].low < points[0].value < points[0].high
    assert [p.x for p in found[0].curves["sgl_kernel"]] == [16, 64, 256]  # it crashed at 1024
    assert [p.doubtful for p in found[0].curves["torch"]] == [True, False, False, False]


def test_the_spread_over_devices_is_the_devices_own(made_run: RunFolder) -> None:
    report = build(Archive(made_run.path.parent.parent), made_run)
    found = shared(report)
    assert len(found) == 22
    for one in found:
        times = {device: m.timing.median_us for device, m in one.times.items() if m.timing}
        a = [t for (host, _), t in times.items() if host == "gpu-a"]
        assert len(times) == 4
        assert (one.within() or 0) >= (max(a) - min(a)) / (sum(a) / 2) - 1e-12
        assert 0 <= (one.across() or 0) < 0.02


def test_ceilings_are_measured_where_a_copy_and_a_large_product_are_in_the_run(tmp_path: Path) -> None:
    device = devices("gpu-a", 1)[0]
    large = {**CASE, "id": "d" * 16, "label": "large", "params": {"m": 8192, "n": 8192, "k": 8192}}
    copy = {
        **measurement("gpu-a", device, {**CASE, "label": "copy"}, "torch", 10.0),
        "payload": "copy",
        "case_id": "e" * 16,
    }
    copy["metrics"] = {"gbps": 1500.0}
    records = [
        measurement("gpu-a", device, CASE, "torch", 9.0),
        measurement("gpu-a", device, large, "torch", 900.0),
        copy,
    ]
    run = write_run(tmp_path, [CASE, large], records, ("gpu-a",), replicate="replicate")
    made = curve_sections(build(Archive(tmp_path), run))
    figure = next(s for s in made if s.title == "Roofline").blocks[0].figures[devices("gpu-a", 1)[0]["name"]]
    lines = {t["name"]: t["line"]["dash"] for t in figure.traces if t["mode"] == "lines"}
    assert lines["measured: 1500 GB/s (torch, copy)"] == "solid"
    assert lines["measured: 1222 TFLOP/s (torch, large)"] == "solid"
    assert lines["specification: 2015 TFLOP/s (gemm_fp4)"] == "dash"


def test_each_precision_has_its_own_ceiling(tmp_path: Path) -> None:
    device = devices("gpu-a", 1)[0]
    large = {**CASE, "id": "d" * 16, "label": "large", "params": {"m": 8192, "n": 8192, "k": 8192}}
    other = {**large, "id": "f" * 16}
    records = [
        {**measurement("gpu-a", device, large, "torch", 900.0), "extra": {"precision": "fp8"}},
        {**measurement("gpu-a", device, other, "torch", 1800.0), "extra": {"precision": "bf16"}},
    ]
    run = write_run(tmp_path, [large, other], records, ("gpu-a",), replicate="replicate")
    made = curve_sections(build(Archive(tmp_path), run))
    figure = next(s for s in made if s.title == "Roofline").blocks[0].figures[devices("gpu-a", 1)[0]["name"]]
    lines = {t["name"] for t in figure.traces if t["mode"] == "lines" and t["line"]["dash"] == "solid"}
    assert lines == {
        "measured: 1222 TFLOP/s fp8 (torch, large)",
        "measured: 611 TFLOP/s bf16 (torch, large)",
    }


def test_plotly_is_given_no_markup() -> None:
    assert (
        plain("<b>x</b> & <a href='javascript:1'>")
        == "&lt;b&gt;x&lt;/b&gt; &amp; &lt;a href='javascript:1'&gt;"
    )


def test_a_run_without_results_still_has_a_page(tmp_path: Path) -> None:
    run = write_run(tmp_path, [CASE], [], ("gpu-a",), replicate="shard")
    document = page_json(run)
    assert section(document, "Comparison")["blocks"][0]["rows"] == []
    assert Elements(to_html(page(build(Archive(tmp_path), run), run))).tags.count("script") == 3
