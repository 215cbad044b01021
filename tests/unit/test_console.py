"""What the command prints as JSON is strict, readable, and moves nothing in a terminal or an editor."""

from __future__ import annotations

import json

from orchestrator.cli.console import json_text


def test_json_is_readable_but_holds_nothing_that_acts() -> None:
    value = {"é 😀": "a\u2028b\u2029c\x85d\u202ee\ufefff\x9bg\x1bh", "big": 2**53 + 1}
    text = json_text(value)
    assert json.loads(text) == value
    assert "é 😀" in text
    assert len(text.splitlines()) == 4
    assert not any(character in text for character in "\u2028\u2029\x85\u202e\ufeff\x9b\x1b")
    assert text.splitlines()[2] == f'  "big": {2**53 + 1}'


def test_bytes_of_a_command_line_that_are_no_text_can_be_printed() -> None:
    text = json_text(["\udcff"])
    assert text.encode("utf-8")
    assert json.loads(text) == ["\udcff"]
