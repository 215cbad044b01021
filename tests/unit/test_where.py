"""The language of `where:`."""

from __future__ import annotations

import pytest

from orchestrator.sweep.where import Where, WhereError

PARAMS = {
    "m": 16, "n": 2048, "x": 0.5, "dtype": "fp8", "flag": True, "nothing": None,
    "class": 3, "items": 7, "shape": [1, 2], "in": 5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("m <= 64", True),
        ("m > 64 and n == 2048", False),
        ("m > 64 or n == 2048", True),
        ("not m == 16", False),
        ("1 < m < 32 < n", True),
        ("32 < m < 64", False),
        ('dtype == "fp8"', True),
        ("dtype in ['fp8', 'fp4']", True),
        ("dtype not in ('bf16',)", True),
        ("'fp' in dtype", True),
        ("m * n % 128 == 0", True),
        ("m ** 2 // 3 == 85", True),
        ("-m + n / 2 == 1008", True),
        ("min(m, n) == 16 and max(m, n, 3) == 2048", True),
        ("abs(-3) == 3 and len(dtype) == 3 and len(shape) == 2", True),
        ("flag == true", True),
        ("flag", True),
        ("nothing == null", True),
        ("nothing == None", True),
        ("class == 3", True),
        ("class == 3 and dtype in ['fp8']", True),
        ("items > 6", True),
        ("  m == 16  ", True),
        ("2 in shape", True),
        ("'class' == 'class'", True),
    ],
)
def test_what_an_expression_says(text: str, expected: bool) -> None:
    assert Where(text, PARAMS).holds(PARAMS) is expected


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "m.__class__",
        "[x for x in shape]",
        "lambda: 1",
        "(lambda: 1)()",
        "shape[0]",
        "f'{m}'",
        "m if flag else n",
        "m := 3",
        "open('x')",
        "len(*shape)",
        "max(key=m)",
        "b'x' == m",
        "1j == m",
        "m @ n",
        "m << 200",
        "m is n",
        "...",
        "{1: 2}",
        "{m}",
        "await m",
    ],
)
def test_nothing_else_of_python_is_understood(text: str) -> None:
    with pytest.raises(WhereError):
        Where(text, PARAMS)


@pytest.mark.parametrize(
    "text", ["", "m ==", "m = 3", "m 16", "(" * 500 + "m" + ")" * 500, "m\x00", "m == 1" * 2000]
)
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(WhereError):
        Where(text, PARAMS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing < 3", "null < 3 has no value"),
        ("dtype > 3", "'fp8' > 3 has no value"),
        ("dtype * 3 == 1", "'fp8' is no number"),
        ("flag + 1 == 2", "true is no number"),
        ("m / 0 == 1", "divides by zero"),
        ("m in n", "16 in 2048 has no value"),
        ("len(m) == 1", "len(…) has no value"),
        ("min(m, dtype) == 1", "min(…) has no value"),
        ("9 ** 9 ** 9 > 1", "too large a number"),
        ("1e308 * 10 ** 308 > x ** -9999", "too large"),
        ("'a' + 'b' == 'ab'", "'a' is no number"),
        ("(-8) ** 0.5 == 1", "is no number"),
    ],
)
def test_what_has_no_value_is_refused(text: str, message: str) -> None:
    where = Where(text, PARAMS)
    with pytest.raises(WhereError) as caught:
        where.holds(PARAMS)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "(((9**99)**99)**99)**99 > 1",
        "(" * 60 + "m" + " ** 9)" * 60 + " > 1",
        "(" * 30 + "m" + " * 9**99)" * 30 + " > 1",
    ],
)
def test_no_expression_can_run_away(text: str) -> None:
    with pytest.raises(WhereError, match="too large"):
        Where(text, PARAMS).holds(PARAMS)


def test_an_unknown_name_is_refused_with_the_one_probably_meant() -> None:
    with pytest.raises(WhereError) as caught:
        Where("dtyp == 'fp8'", PARAMS)
    assert "no parameter 'dtyp' (did you mean 'dtype'?); there are: m, n, x, dtype" in str(caught.value)


def test_a_parameter_that_the_case_lacks_is_null() -> None:
    assert Where("dtype == null", PARAMS).holds({"m": 1})


def test_parameters_win_over_words_of_the_language() -> None:
    assert Where("null == 4", ["null"]).holds({"null": 4})
