"""Templates: data reaches a script as literals only, and every mistake has its line."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import FileError, UsageError
from orchestrator.rendering import Catalogue, Header, Template, harness_files, render, script_name
from orchestrator.rendering.scripts import literal

HEADER = """\
{#- farbench
summary: a test
parameters:
  m: {type: int, help: rows}
  out: {type: str, default: x, choices: [x, y]}
backends:
  one: the first
  "many:*": any of many
accuracy: {min_cosine: 0.9}
-#}
"""
BODY = "import json\nCASES = json.loads({{ cases | literal }})\nNAME = json.loads({{ payload | literal }})\n"


def template(folder: Path, source: str, name: str = "t") -> Template:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py.j2").write_bytes(source.encode())
    return Catalogue([folder]).find(name)


def run(script: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(script, "script", "exec"), names)
    return names


# -- the literal ------------------------------------------------------------------------------------------

awkward = st.sampled_from(
    ["'", '"', "'''", '"""', "\\", "\\'", "{{ 7*7 }}", "{%", "{#", "#}", "\n", "\r\n", "\0", "\u2028", "\x85", "\x7f",
     "\ud800", "\U0001f600", "</script>", "$(touch /tmp/x)", "\\N{DIGIT ONE}", "%s", "\\u0041"]
)  # fmt: skip
texts = st.lists(st.one_of(awkward, st.text(max_size=5))).map("".join)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts
)
values = st.recursive(
    scalars, lambda inner: st.one_of(st.lists(inner), st.dictionaries(texts, inner)), max_leaves=20
)


def same(a: object, b: object) -> bool:
    """Equal with equal types, so that 1, 1.0 and true are told apart."""
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and repr(a) == repr(b)


@given(values)
def test_any_json_value_comes_out_of_its_literal_unchanged(value: object) -> None:
    text = literal(value)
    assert text.isascii()
    assert "\n" not in text
    assert isinstance(ast.parse(text, mode="eval").body, ast.Constant)
    assert same(json.loads(ast.literal_eval(text)), value)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), {1: 2}, {"a": {None: 1}}, {1, 2}, object(), b"x"]
)
def test_what_is_not_json_has_no_literal(value: object) -> None:
    with pytest.raises(jinja2.TemplateRuntimeError, match="literal: "):
        literal(value)


@given(values)
def test_cases_reach_the_script_as_they_are(value: object) -> None:
    made = Template("t", Path("t.py.j2"), HEADER + BODY, Header())
    script = render(made, [{"params": {"value": value}}])
    assert same(run(script)["CASES"], [{"params": {"value": value}}])


# -- templates --------------------------------------------------------------------------------------------


def test_a_script_knows_its_cases_and_its_name(tmp_path: Path) -> None:
    made = template(tmp_path / "p", HEADER + BODY)
    script = render(made, [{"case_id": "x"}])
    assert script.startswith("import json\n")
    assert script.endswith("\n")
    assert run(script)["CASES"] == [{"case_id": "x"}]
    assert run(script)["NAME"] == "t"


def test_blocks_leave_no_blank_lines(tmp_path: Path) -> None:
    made = template(
        tmp_path / "p",
        "x = 0\n{% for case in cases %}\n    {% if case.a %}\nx += 1\n    {% endif %}\n{% endfor %}\n",
    )
    assert render(made, [{"a": True}, {"a": False}, {"a": True}]) == "x = 0\nx += 1\nx += 1\n"


def test_dos_line_ends_and_a_byte_order_mark_are_normalised(tmp_path: Path) -> None:
    made = template(tmp_path / "p", "\ufeff" + (HEADER + BODY).replace("\n", "\r\n"))
    assert made.header.summary == "a test"
    script = render(made, [])
    assert "\r" not in script
    assert script.startswith("import json\n")


@pytest.mark.parametrize(
    ("body", "line", "message"),
    [
        ("x = 1\ny = json.loads({{ casess | literal }})\n", 2, "'casess' is undefined"),
        ("x = 1\n{% for c in casess %}\n{% endfor %}\n", 2, "'casess' is undefined"),
        ("{% if nothing %}\nx = 1\n{% endif %}\n", 1, "'nothing' is undefined"),
        ("x = {{ cases[0].mm | literal }}\n", 1, "no attribute 'mm'"),
        ("\n\nx = {{ payload }}\n", 3, "through the filter `literal` only"),
        ("x = {{ 'text' }}\n", 1, "through the filter `literal` only"),
        ("x = {{ (payload | literal) ~ 'more' }}\n", 1, "through the filter `literal` only"),
        ("x = {{ payload | literal | upper }}\n", 1, "through the filter `literal` only"),
        ("x = {{ cases | tojson }}\n", 1, "through the filter `literal` only"),
        ("x = {{ payload | literal | safe }}\n", 1, "through the filter `literal` only"),
        ("x = 1\n{% if %}\n", 2, "Expected an expression"),
        ("x = 1\n\n{% for x in y %}\n", 3, "Unexpected end of template"),
        ("x = {{ payload | nofilter }}\n", 1, "No filter named 'nofilter'"),
        ("x = 1\ny = {{ (1 // 0) | literal }}\n", 2, "ZeroDivisionError"),
        ("x = {{ payload.__class__ | literal }}\n", 1, "unsafe"),
        ("{% include 'gone' %}\n", 1, "no template 'gone' beside it"),
    ],
)
def test_a_mistake_in_a_template_is_told_with_its_line(
    tmp_path: Path, body: str, line: int, message: str
) -> None:
    made = template(tmp_path / "p", body)
    with pytest.raises(FileError) as caught:
        render(made, [{"m": 1}])
    assert str(caught.value).startswith(f"{made.path}:{line}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("body", "script", "line"),
    [
        ("x = = 1\n", 2, 6),
        ("if True:\nx = 1\n", 3, 7),
        ("x = '\n", 2, 6),
        ("x = (\n", 2, 6),
        ("return 1\n", 2, 6),
        ("{% for case in cases %}\nz = 1\n{% endfor %}\nreturn 1\n", 4, 9),
        ("{% for case in cases %}\n{{ case | literal }} = 1\n{% endfor %}\n", 2, None),
    ],
)
def test_a_script_that_is_no_python_is_refused_with_its_lines_and_the_templates(
    tmp_path: Path, body: str, script: int, line: int | None
) -> None:
    made = template(tmp_path / "p", "{#- farbench\nsummary: a template\nparameters:\n-#}\ny = 1\n" + body)
    with pytest.raises(FileError) as caught:
        render(made, [{"m": 1}, {"m": 2}])
    told, *around = str(caught.value).split("\n")
    assert told.startswith(f"{made.path}:{line}: " if line else f"{made.path}: renders to no Python: ")
    assert told.endswith(f", line {script} of the script:")
    assert around[0].split(" | ") == ["  1", "y = 1"] or script > 3
    (marked,) = (text for text in around if text.startswith(">"))
    number, text = marked.split(" | ")
    assert number == f"> {script}"
    # the line that the user wrote, where it is one
    expected = made.source.split("\n")[line - 1] if line else """'{"m": 1}' = 1"""
    assert text == expected


def test_templates_share_through_include(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    (folder / "common.j2").write_text("X = {{ payload | literal }}\n")
    assert render(template(folder, "{% include 'common.j2' %}\n"), []) == "X = '\"t\"'\n"


# -- the header -------------------------------------------------------------------------------------------


def test_a_header_says_what_a_template_takes(tmp_path: Path) -> None:
    made = template(tmp_path / "p", HEADER + BODY)
    described = made.describe()
    assert described == {
        "name": "t",
        "path": str(made.path),
        "builtin": False,
        "summary": "a test",
        "parameters": {
            "m": {"type": "int", "help": "rows", "required": True},
            "out": {"type": "str", "default": "x", "choices": ["x", "y"], "required": False},
        },
        "backends": {"one": "the first", "many:*": "any of many"},
        "accuracy": {"min_cosine": 0.9},
    }
    assert made.header.knows_backend("many:7")
    assert not made.header.knows_backend("two")
    assert made.header.default_backends == ("one",)


def test_without_a_header_nothing_is_known_and_everything_goes(tmp_path: Path) -> None:
    header = template(tmp_path / "p", "{# a comment #}\n" + BODY).header
    assert header.parameters is None
    assert header.knows_backend("anything")


@pytest.mark.parametrize(
    ("header", "line", "message"),
    [
        (
            "{#- farbench\nsummary: x\nbackend: {}\n-#}\n",
            3,
            "unknown key 'backend' (did you mean 'backends'?)",
        ),
        ("{#- farbench\nparameters:\n  m: {type: integer}\n-#}\n", 3, "parameters.m.type"),
        ("\n{#- farbench\nsummary: x\nsummary: y\n-#}\n", 4, "duplicate key 'summary'"),
    ],
)
def test_a_mistake_in_a_header_is_told_with_the_templates_line(
    tmp_path: Path, header: str, line: int, message: str
) -> None:
    with pytest.raises(FileError) as caught:
        template(tmp_path / "p", header + BODY)
    assert str(caught.value).startswith(f"{tmp_path / 'p' / 't.py.j2'}:{line}: ")
    assert message in str(caught.value)


# -- the catalogue ----------------------------------------------------------------------------------------


def test_ones_own_template_wins_over_a_built_in_one(tmp_path: Path) -> None:
    built_in = Catalogue.default(tmp_path).find("gemm_fp4")
    assert built_in.builtin
    own = template(tmp_path / "payloads", "x = 1\n", "gemm_fp4")
    found = Catalogue.default(tmp_path).find("gemm_fp4")
    assert (found.path, found.builtin) == (own.path, False)
    assert [t.name for t in Catalogue.default(tmp_path).all()].count("gemm_fp4") == 1


@pytest.mark.parametrize("name", ["gem_fp4", "gemm_fp4.py.j2", "../payloads/gemm_fp4", "/etc/passwd", ""])
def test_an_unknown_payload_is_refused_with_those_there_are(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        Catalogue.default(tmp_path).find(name)
    assert f"no payload {name!r}" in str(caught.value)
    assert "gemm_fp4" in str(caught.value).split("there are:")[1]


def test_the_harness_travels_as_python_files() -> None:
    files = harness_files()
    assert "harness/__init__.py" in files
    assert all(name.startswith("harness/") and name.endswith(".py") for name in files)


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ("gemm_fp4", "gemm_fp4.py"),
        ("my-own.v2", "my-own.v2.py"),
        ("copy", "copy_payload.py"),
        ("random", "random_payload.py"),
        ("torch", "torch_payload.py"),
    ],
)
def test_a_script_never_hides_a_module_that_others_import(payload: str, expected: str) -> None:
    assert script_name(payload) == expected
