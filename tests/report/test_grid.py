"""A table in terminals of any width: every value is there, and no word is broken that has room."""

from __future__ import annotations

import pytest
from rich.text import Text

from orchestrator.report import Grid, to_text

HEADS = ("case", "id", "parameters", "µs")
ROWS = (
    ("decode, 16 rows", "99499d4ee5693753", "size_bytes=2097152 hidden=4096", "12.5"),
    ("prefill", "64b4b3ecb72f8b6d", "size_bytes=8192 hidden=4096", "1234.5"),
)
RIGHT = frozenset({3})


def shown(width: int, below: dict[int, str] | None = None) -> str:
    rows = [[Text(cell) for cell in row] for row in ROWS]
    return to_text(Grid(HEADS, rows, right=RIGHT, below=below or {}), width=width)


@pytest.mark.parametrize("below", [{}, {2: ""}, {1: "id ", 2: ""}])
@pytest.mark.parametrize("width", [200, 80, 66, 60, 50, 40, 32])
def test_every_word_is_whole_at_any_width(width: int, below: dict[int, str]) -> None:
    text = shown(width, below)
    assert max(map(len, text.splitlines())) <= width
    for row in ROWS:
        for cell in row:
            assert all(word in text.split() for word in cell.split()), (width, cell)
    assert not any(line != line.rstrip() for line in text.splitlines())


def test_what_fits_is_a_table() -> None:
    head, rule, *rows = shown(80).splitlines()
    assert head.split() == list(HEADS)
    assert set(rule) == {"─"}
    assert len(rows) == 2
    assert [row.rindex("5") for row in rows] == [len(head) - 1] * 2


def test_a_column_may_go_below_its_row() -> None:
    assert shown(50, {2: "with "}).splitlines()[2:] == [
        "decode, 16 rows  99499d4ee5693753    12.5",
        "    with size_bytes=2097152 hidden=4096",
        "prefill          64b4b3ecb72f8b6d  1234.5",
        "    with size_bytes=8192 hidden=4096",
    ]


def test_what_does_not_fit_is_written_field_by_field() -> None:
    assert shown(40).splitlines()[:6] == [
        "case        decode, 16 rows",
        "id          99499d4ee5693753",
        "parameters  size_bytes=2097152",
        "            hidden=4096",
        "µs          12.5",
        "",
    ]


def test_a_table_without_rows_has_its_heads() -> None:
    assert to_text(Grid(HEADS, []), width=80).split()[:4] == list(HEADS)
    assert to_text(Grid([f"column_{n}" for n in range(31)], []), width=80).count("column_") == 31
