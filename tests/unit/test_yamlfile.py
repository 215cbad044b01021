"""What a YAML file says, and at which line it is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict

from orchestrator import yamlfile
from orchestrator.errors import FileError
from orchestrator.yamlfile import Document


def value(text: str) -> Any:
    return Document("f.yaml", f"x: {text}\n").data["x"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e6", 1e6),
        ("1.0e6", 1e6),
        ("0o17", 15),
        ("0x1F", 31),
        ("0755", 755),
        ("+5", 5),
        (".5", 0.5),
        ("3.10", 3.1),
        ("9007199254740993", 9007199254740993),
        ("123456789012345678901234567890", 123456789012345678901234567890),
        ("12:30:45", "12:30:45"),
        ("no", "no"),
        ("on", "on"),
        ("y", "y"),
        ("1_000", "1_000"),
        ("2001-01-01", "2001-01-01"),
        ("2001-12-14t21:59:43.10-05:00", "2001-12-14t21:59:43.10-05:00"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("'1'", "1"),
        ('"3.10"', "3.10"),
        ("!!str 12", "12"),
        ("!!float 3", 3.0),
        ('!!int "3"', 3),
        ("=", "="),
        ("<<", "<<"),
        (r'"\ud83d\ude00"', "\U0001f600"),
        ('"a\u2028b\x85c"', "a\u2028b\x85c"),
        ("a\x85b", "a\x85b"),
    ],
)
def test_scalars_follow_the_core_schema_of_yaml_1_2(text: str, expected: object) -> None:
    found = value(text)
    assert found == expected
    assert type(found) is type(expected)


def test_a_yaml_1_1_directive_changes_nothing() -> None:
    assert Document("f.yaml", "%YAML 1.1\n---\nx: no\n").data == {"x": "no"}


def test_keys_are_text_as_written() -> None:
    assert Document("f.yaml", "on: 1\ntrue: 2\n3: {4.50: 5}\n").data == {"on": 1, "true": 2, "3": {"4.50": 5}}


def test_only_plain_python_types_come_out() -> None:
    data = Document("f.yaml", "a: [1, 2.5, 's', true]\n").data
    assert [type(v) for v in data["a"]] == [int, float, str, bool]
    assert type(data) is dict
    assert type(data["a"]) is list
    assert all(type(key) is str for key in data)


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        ("0755", "f.yaml:1: 0755 is the decimal number 755"),
        ("3.10", "f.yaml:1: 3.10 is the number 3.1"),
        ("12:30:45", "f.yaml:1: 12:30:45 is text"),
        ("no", "f.yaml:1: no is text"),
        ("1_000", "f.yaml:1: 1_000 is text"),
    ],
)
def test_what_surprises_is_warned_of(text: str, warned: str) -> None:
    (warning,) = Document("f.yaml", f"x: {text}\n").warnings()
    assert warning.startswith(warned)


@pytest.mark.parametrize("text", ["1.0", "2.5", "10", "0", "'no'", '"0755"', "0.001", "1e6", "-0.5"])
def test_the_ordinary_is_not_warned_of(text: str) -> None:
    assert Document("f.yaml", f"x: {text}\n").warnings() == []


def test_warnings_can_be_asked_of_some_keys_only() -> None:
    document = Document("f.yaml", "measure: {target: 0.50}\nmatrix:\n  v: [3.10]\n")
    assert document.warnings(below=("matrix",)) == ["f.yaml:3: 3.10 is the number 3.1 (quote it for text)"]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "duplicate key 'a', first given on line 1"),
        ("m:\n  batch: [1]\n  other: 1\n  batch: [2]\n", 4, "duplicate key 'batch', first given on line 2"),
        ("x: {a: 1, 'a': 2}\n", 1, "duplicate key 'a'"),
        ("<<: {a: 1}\n<<: {b: 1}\n", 2, "duplicate key '<<'"),
        ("a: 1\nb: .nan\n", 2, ".nan is no value here"),
        ("a: -.inf\n", 1, "-.inf is no value here"),
        ("a: 1e999\n", 1, "too large"),
        (f"a: {'9' * 5000}\n", 1, "too many digits"),
        ("a:\n\t- 1\n", 2, "a tab where YAML wants spaces"),
        ("a: 1\n---\nb: 2\n", 2, "a second document"),
        ("a: [1, 2\n", 2, "expected ',' or ']'"),
        ("a: *nope\n", 1, "undefined alias"),
        ("a: 1\nb: &x [*x]\n", 2, "contains itself"),
        ("a: &x {<<: *x}\n", 1, "contains itself"),
        ("a: !custom 1\n", 1, "unknown tag !custom"),
        ("a: !!bool 3\n", 1, "'3' is no bool"),
        ("? [a]\n: 1\n", 1, "a key is text"),
        ("a: 1\nb: {<<: [1]}\n", 2, "merges a mapping"),
        ('a: 1\nb: "\\ud800"\n', 2, "half of a surrogate pair"),
        ("a: 1\nb: \x01\n", 2, "U+0001"),
        ("[" * 200 + "]" * 200, 1, "nested too deeply"),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(text: str, line: int, message: str) -> None:
    with pytest.raises(FileError) as caught:
        Document("f.yaml", text)
    assert str(caught.value).startswith(f"f.yaml:{line}: ")
    assert message in str(caught.value)
    assert caught.value.exit_code == 2


def test_anchors_that_explode_are_refused() -> None:
    levels = ["a0: &a0 [1,1,1,1,1,1,1,1,1,1]"]
    levels += [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(FileError, match="anchors that repeat"):
        Document("f.yaml", "\n".join(levels))


def test_merged_keys_give_way_to_own_ones_and_come_first() -> None:
    text = "base: &b {x: 1, y: 2}\nmore: &m {y: 3, z: 4}\nuse:\n  <<: [*b, *m]\n  x: 5\n  w: 6\n"
    use = Document("f.yaml", text).data["use"]
    assert list(use.items()) == [("y", 2), ("z", 4), ("x", 5), ("w", 6)]


def test_a_duplicate_inside_of_what_is_merged_is_still_one() -> None:
    with pytest.raises(FileError, match=r"f\.yaml:1: duplicate key 'x'"):
        Document("f.yaml", "base: &b {x: 1, x: 2}\nuse: {<<: *b}\n")


def test_lines_are_those_of_keys_and_list_items() -> None:
    document = Document("f.yaml", "# one\na:\n  b:\n    - 1\n    - {c: 2,\n       d: 3}\n")
    assert document.line("a", "b") == 3
    assert document.line("a", "b", 1) == 5
    assert document.line("a", "b", 1, "d") == 6
    assert document.line("a", "unknown", 7) == 2
    assert document.source("a", "b", 0) == "1"


def test_line_separators_inside_of_text_do_not_shift_lines() -> None:
    document = Document("f.yaml", 'a: "x\u2028y\x85z"\nb: 1\n')
    assert document.line("b") == 2


def test_dos_line_ends_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: |\r\n  x\r\n  y\r\nc: 3\r\n")
    document = yamlfile.load(path)
    assert document.data == {"a": 1, "b": "x\ny\n", "c": 3}
    assert document.line("c") == 5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: 1\nb: caf\xe9\n", ":2: is not UTF-8 (byte 0xe9)"),
        ("a: 1\n".encode("utf-16"), ":1: is not UTF-8"),
    ],
)
def test_another_encoding_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(content)
    with pytest.raises(FileError) as caught:
        yamlfile.load(path)
    assert str(caught.value).startswith(f"{path}{message}")


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError) as missing:
        yamlfile.load(tmp_path / "f.yaml", "sweep file")
    assert str(missing.value) == f"{tmp_path / 'f.yaml'}: no such sweep file"
    with pytest.raises(FileError, match="is a folder, not a sweep file"):
        yamlfile.load(tmp_path, "sweep file")


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n"])
def test_an_empty_file_is_no_mapping(text: str) -> None:
    with pytest.raises(FileError, match=r"f\.yaml: is empty"):
        Document("f.yaml", text).mapping("a sweep")


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    rounds: int = 3
    cache: Literal["cold", "hot"] = "cold"


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    payload: str
    backends: list[str] = []
    measure: Inner = Inner()
    more: list[Inner] = []


def test_every_fault_is_told_at_its_line_in_the_files_order() -> None:
    text = "backend: [a]\nmeasure:\n  rounds: three\n  cach: hot\nbackends: [a, 3]\nmore:\n  - {rounds: 1}\n  - {cache: warm}\n"
    document = Document("f.yaml", text)
    with pytest.raises(FileError) as caught:
        yamlfile.validate(Outer, document.data, document)
    assert str(caught.value).splitlines() == [
        "f.yaml:1: payload is missing",
        "f.yaml:1: unknown key 'backend' (did you mean 'backends'?)",
        "f.yaml:3: measure.rounds: should be a valid integer, not 'three'",
        "f.yaml:4: unknown key 'cach' in measure (did you mean 'cache'?)",
        "f.yaml:5: backends.1: should be a valid string, not 3",
        "f.yaml:8: more.1.cache: should be 'cold' or 'hot', not 'warm'",
    ]
    assert caught.value.line == 1


def test_a_key_like_no_other_lists_those_there_are() -> None:
    document = Document("f.yaml", "payload: p\nmeasure: {zzz: 1}\n")
    with pytest.raises(FileError, match=r"unknown key 'zzz' in measure; known are rounds, cache"):
        yamlfile.validate(Outer, document.data, document)
