"""What a comparison looks like: to a person, to a CI system, to a program. Labels are hostile throughout."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from xml.etree import ElementTree as ET

import pytest
from markdown_it import MarkdownIt

from orchestrator.compare import Comparison, compare_measurements, render
from orchestrator.compare.phrases import percent
from orchestrator.compare.table import bars
from orchestrator.errors import UsageError
from orchestrator.model import Measurement
from orchestrator.report import to_text

EVIL = '</script><img src=x onerror=alert(1)> "&]]> [bs=8] | `x` \x1b[31m\u2028\x00\ufffe *b*'


@pytest.fixture
def comparison(measured: Callable[..., Measurement], failed: Callable[..., Measurement]) -> Comparison:
    a = [measured("c1", 100, label=EVIL), measured("c2", 50), measured("c3", 10), measured("c4", label=EVIL)]
    b = [
        measured("c1", 130, label=EVIL, verdict="suspect", reasons=["noisy"]),
        measured("c2", 50.01),
        measured("c3", 7),
        failed("c4", "crashed", EVIL, label=EVIL),
    ]
    return compare_measurements(a, b)


def test_the_table_says_all_in_words(comparison: Comparison) -> None:
    text = to_text(render(comparison), width=200)
    assert "3 compared: 1 slower, 1 faster, 0 unclear, 1 same" in text
    assert re.search(r"torch +100\.0 +130\.0 +\+30\.0% .*slower \[1\]", text)
    assert re.search(r"m=256 n=2048 +torch +50\.00 +50\.01 +\+0\.02% .* same", text)
    assert re.search(r"c3 +torch +10\.00 +7\.000 +-30\.0% .* faster", text)
    assert "[1] B suspect: noisy" in text
    assert "left out (1)" in text
    assert "[bs=8]" in text
    assert "\x1b" not in text
    assert "nan" not in text.lower()
    assert "inf" not in text.lower().replace("info", "")


def test_a_narrow_table_keeps_change_floor_and_verdict(comparison: Comparison) -> None:
    text = to_text(render(comparison), width=80)
    assert re.search(r"50\.00 +50\.01 +\+0\.02% +\d+\.\d+% +same", text)
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("width", [40, 60, 72])
def test_in_a_tiny_terminal_every_row_still_says_what_it_is_of(comparison: Comparison, width: int) -> None:
    text = to_text(render(comparison), width=width)
    first = next(pair for pair in comparison.pairs)
    assert first.match.label[:6] in text
    assert "change" in text
    assert ("A, µs" in text) == (width >= 72)


def test_markdown_renders_as_tables_in_which_nothing_acts(comparison: Comparison) -> None:
    text = str(render(comparison, "markdown"))
    assert text.startswith("### 🔴 1 of 3 slower\n")
    html = MarkdownIt("commonmark").enable("table").render(text)
    assert html.count("<table>") == 2
    assert "<img" not in html
    assert "<script" not in html
    assert "<em>" not in html
    assert "<code>" not in html
    assert html.count("<details") == html.count("</details>") == 2
    cells = re.findall(r"<td[^>]*>(.*?)</td>", html)
    assert len(cells) == 3 * 8, "a bar in a label splits no cell"


def test_markdown_says_when_nothing_is_slower(measured: Callable[..., Measurement]) -> None:
    fine = compare_measurements([measured("c1")], [measured("c1")])
    assert str(render(fine, "markdown")).startswith("### Nothing slower in 1\n")
    nothing = compare_measurements([measured("c1")], [measured("c2")])
    assert str(render(nothing, "markdown")).startswith("### Nothing could be compared\n")


def test_junit_is_well_formed_and_counts_what_it_holds(comparison: Comparison) -> None:
    root = ET.fromstring(str(render(comparison, "junit")))
    assert root.tag == "testsuites"
    assert (root.get("tests"), root.get("failures"), root.get("skipped")) == ("4", "1", "1")
    for suite in root:
        assert suite.get("tests") == str(len(suite.findall("testcase")))
    (failure,) = root.iter("failure")
    assert str(failure.get("message")).startswith("+30.0% (floor ")
    assert "verdict: slower" in str(failure.text)
    (skipped,) = root.iter("skipped")
    assert str(skipped.get("message")).startswith("B: crashed: </script><img")
    names = [case.get("name") for case in root.iter("testcase")]
    assert len(names) == 4
    assert all(name and "\\x1b[31m\\u2028\\x00\\ufffe" in name for name in (names[0], names[-1]))


def test_rows_of_several_devices_say_where(measured: Callable[..., Measurement]) -> None:
    runs = [
        measured("c1", 100, device={"uuid": f"GPU-{i}", "index": i, "name": "H200"}, host="gpu7")
        for i in range(2)
    ]
    found = compare_measurements(runs, runs)
    names = [case.get("name") for case in ET.fromstring(str(render(found, "junit"))).iter("testcase")]
    assert names == ["m=16 n=2048 @ gpu7 GPU-0 · torch", "m=16 n=2048 @ gpu7 GPU-1 · torch"]
    assert "@ gpu7 GPU-1" in to_text(render(found), width=160)
    assert "@ gpu7 GPU-1" in str(render(found, "markdown"))


def test_json_is_strict_and_complete(comparison: Comparison) -> None:
    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is no JSON")

    text = str(render(comparison, "json"))
    found = json.loads(text, parse_constant=refuse)
    assert text.isascii()
    assert found["counts"] == {"same": 1, "faster": 1, "slower": 1, "unclear": 0}
    first = found["pairs"][0]
    assert first["label"] == EVIL
    assert first["verdict"] == "slower"
    assert first["change_percent"] == pytest.approx(30.0)
    low, high = first["interval_percent"]
    assert low < 30 < high
    assert first["noise"] == {"from": "samples", "runs": 0, "freaks": False}
    assert (first["a"]["median_us"], first["b"]["reasons"]) == (100.0, ["noisy"])
    assert found["left_out"][0]["case_id"] == "c4"


def test_what_is_unknown_is_null_in_json_and_empty_in_tables(measured: Callable[..., Measurement]) -> None:
    one = {"samples_us": [100.0]}
    unknown = compare_measurements([measured("c1", 100, **one)], [measured("c1", 100, **one)])
    (pair,) = json.loads(str(render(unknown, "json")))["pairs"]
    assert (pair["verdict"], pair["interval_percent"], pair["floor_percent"]) == ("unclear", None, None)
    assert "nothing says how noisy this is" in to_text(render(unknown))


def test_a_format_that_does_not_exist_is_refused(comparison: Comparison) -> None:
    with pytest.raises(UsageError, match="table, markdown, json, junit"):
        render(comparison, "pdf")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0123, "+1.23%"), (-0.2, "-20.0%"), (0.0, "0.00%"), (-1e-7, "0.00%"), (2.5, "+250%"), (99.0, "100×"),
        (1e12, "1.00e+12×"), (None, ""),
    ],
)  # fmt: skip
def test_fractions_are_said_with_three_digits(value: float | None, text: str) -> None:
    assert percent(value) == text


def test_bars_stand_for_values() -> None:
    assert bars([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]) == "▁▂▃▄▅▆▇█"
    assert bars([5.0, 5.0]) == "▁▁"
