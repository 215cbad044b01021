"""The argument lists of script payloads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import FileError
from orchestrator.model import Case
from orchestrator.rendering import arguments
from orchestrator.sweep import Argument


def render(text: str, backend: str = "b", label: str = "L", **params: Any) -> str:
    (out,) = arguments([Argument(text, Path("s.yaml"), 7)], Case("0123", label, "p", params), backend)
    return out


@pytest.mark.parametrize(
    ("text", "params", "expected"),
    [
        ("--m", {}, "--m"),
        ("{{ m }}", {"m": 16}, "16"),
        ("--m={{ m }}", {"m": 16}, "--m=16"),
        ("{{ m * 2 }}", {"m": 16}, "32"),
        ("{{ v }}", {"v": 1e6}, "1000000.0"),
        ("{{ v }}", {"v": True}, "true"),
        ("{{ v }}", {"v": None}, "null"),
        ("{{ v }}", {"v": "text with 'quotes' and $(x)"}, "text with 'quotes' and $(x)"),
        ("{{ v }}", {"v": "2001-01-01"}, "2001-01-01"),
        ("{{ v }}", {"v": ""}, ""),
        ("{{ v }}", {"v": "{{ 7*7 }}{% x"}, "{{ 7*7 }}{% x"),
        ("{{ v }}", {"v": "é\u2028"}, "é\u2028"),
        ("{{ v }}", {"v": 9007199254740993}, "9007199254740993"),
        (
            "{{ items }} {{ keys }} {{ name }} {{ class }}",
            {"items": 1, "keys": 2, "name": 3, "class": 4},
            "1 2 3 4",
        ),
        ("{{ cfg.items }} {{ cfg.values }}", {"cfg": {"items": 1, "values": "x"}}, "1 x"),
        ("{{ params['a-b'] }}", {"a-b": 5}, "5"),
        ("{{ backend }} {{ label }} {{ case_id }}", {}, "b L 0123"),
        ("{{ label }} {{ case_id }} {{ backend }}", {"label": 1, "case_id": 2, "backend": 3}, "1 2 3"),
        ("{% if m > 8 %}--big{% endif %}", {"m": 16}, "--big"),
        ("a\r\nb", {}, "a\r\nb"),
        ("two\n", {}, "two\n"),
        ("{", {}, "{"),
        ('{"a": 1}', {}, '{"a": 1}'),
    ],
)
def test_text_stays_as_it_is_and_everything_else_is_json(
    text: str, params: dict[str, Any], expected: str
) -> None:
    assert render(text, **params) == expected


@pytest.mark.parametrize("value", [[1, "a", None, 1.5], {"a": [True], "é": {"b": 1}}])
def test_lists_and_mappings_are_json(value: Any) -> None:
    assert json.loads(render("{{ v }}", v=value)) == value


@given(st.text().filter(lambda t: "\0" not in t))
def test_any_text_arrives_byte_for_byte(text: str) -> None:
    assert render("{{ v }}", v=text) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ mm }}", "'mm' is undefined (did you mean 'm'?); there are: backend, label, case_id, params, m"),
        ("{{ cfg.missing }}", "has no attribute 'missing'"),
        ("{{ cfg.update }}", "has no attribute 'update'"),
        ("{{ m", "unexpected end of template"),
        ("{{ m.__class__ }}", "unsafe"),
        ("{{ m / 0 }}", "ZeroDivisionError"),
        ("{{ m | nofilter }}", "No filter named"),
    ],
)
def test_a_mistake_is_told_with_the_sweeps_line(text: str, message: str) -> None:
    with pytest.raises(FileError) as caught:
        render(text, m=1, cfg={"a": 1})
    assert str(caught.value).startswith("s.yaml:7: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(("text", "params"), [("a\0b", {}), ("{{ v }}", {"v": "a\0b"})])
def test_no_argument_can_hold_a_nul(text: str, params: dict[str, Any]) -> None:
    with pytest.raises(FileError, match=r"s\.yaml:7: an argument cannot hold a NUL"):
        render(text, **params)
