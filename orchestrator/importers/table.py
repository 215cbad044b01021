"""Comma-separated tables, read with the line of every row."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from orchestrator.importers.source import Source


def header(source: Source) -> list[str]:
    """The names in the first line; none where it is no such line."""
    if b"\0" in source.content[:4096]:
        return []
    first = source.text[:65536].split("\n", 1)[0]
    try:
        return [name.strip() for name in next(csv.reader([first], strict=True), [])]
    except csv.Error:
        return []


def rows(source: Source, width: int, *, rest_in_last: bool = False) -> Iterator[tuple[int, list[str]]]:
    """(line, fields) of every row below the header; blank lines are passed over.

    With `rest_in_last`, fields too many belong to the last column, for tools that do not quote it. Raises `FileError`
    for a row of another width."""
    reader = csv.reader(io.StringIO(source.text, newline=""), strict=True)
    try:
        next(reader, None)
        before = reader.line_num
        for fields in reader:
            line, before = before + 1, reader.line_num
            if not fields or (len(fields) == 1 and not fields[0].strip()):
                continue
            if rest_in_last and len(fields) > width:
                fields = [*fields[: width - 1], ",".join(fields[width - 1 :])]
            if len(fields) != width:
                cut = " (was it cut off?)" if len(fields) < width and line >= len(source.lines) else ""
                raise source.wrong(f"has {len(fields)} fields where the header has {width}{cut}", line)
            yield line, fields
    except csv.Error as error:
        raise source.wrong(f"is no table: {error}", reader.line_num) from None
