"""The schema part of a Parquet file's footer as bytes: files that agree in it have the same columns and types.

DuckDB needs a millisecond to describe a file; two thousand files are told apart by these bytes in a tenth of a second.
A footer is a Thrift struct in the compact protocol (apache/parquet-format, `FileMetaData`): field 1 is the version,
field 2 the list of schema elements, which ends the part that is returned here.
"""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.archive import files

_MAGIC = b"PAR1"
_TAIL = 8
_MOST = 1 << 20
_GUESS = 16 * 1024
_STRUCT, _LIST, _SET, _MAP, _BINARY, _DOUBLE, _BYTE, _TRUE, _FALSE = 12, 9, 10, 11, 8, 7, 3, 1, 2
_DEPTH = 8


class NoParquet(ValueError):
    """The file does not end as a Parquet file does."""


def schema_bytes(path: Path, known: set[bytes]) -> bytes:
    """The schema part of a file's footer; one of `known`, where the footer begins with it.

    Raises `NoParquet`, `OSError`."""
    footer = _footer(path)
    for part in known:
        if footer.startswith(part):
            return part
    try:
        return footer[: _end_of_schema(footer)]
    except (IndexError, RecursionError):
        raise NoParquet("its footer is damaged") from None


def _footer(path: Path) -> bytes:
    with files.open_plain(path) as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        tail = os.pread(descriptor, _GUESS, max(0, size - _GUESS))
        if size < 2 * _TAIL or tail[-4:] != _MAGIC:
            raise NoParquet("it does not end as a Parquet file does")
        length = int.from_bytes(tail[-_TAIL:-4], "little")
        if length > size - _TAIL:
            raise NoParquet("its footer is longer than the file")
        start = size - _TAIL - length
        if length + _TAIL <= len(tail):
            return tail[-_TAIL - length : -_TAIL]
        return os.pread(descriptor, min(length, _MOST), start)  # the schema comes first


def _end_of_schema(footer: bytes) -> int:
    position, field = 0, 0
    while True:
        kind, field, position = _field(footer, position, field)
        if kind == 0:
            raise NoParquet("its footer holds no schema")
        position = _skip(footer, position, kind, 0)
        if field == 2:
            return position


def _field(data: bytes, position: int, before: int) -> tuple[int, int, int]:
    """(type, id, position of the value) of the field that begins at `position`; type 0 ends a struct."""
    head = data[position]
    if head == 0:
        return 0, before, position + 1
    if head >> 4:
        return head & 15, before + (head >> 4), position + 1
    number, position = _varint(data, position + 1)
    return head & 15, (number >> 1) ^ -(number & 1), position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7


def _skip(data: bytes, position: int, kind: int, depth: int) -> int:
    """The position behind a value."""
    if depth > _DEPTH:
        raise NoParquet("its footer is damaged")
    if kind in (_TRUE, _FALSE):
        return position
    if kind == _BYTE:
        return position + 1
    if kind == _DOUBLE:
        return position + 8
    if kind == _BINARY:
        length, position = _varint(data, position)
        return position + length
    if kind == _STRUCT:
        field = 0
        while True:
            inner, field, position = _field(data, position, field)
            if inner == 0:
                return position
            position = _skip(data, position, inner, depth + 1)
    if kind in (_LIST, _SET):
        head = data[position]
        position += 1
        count = head >> 4
        if count == 15:
            count, position = _varint(data, position)
        for _ in range(count):
            element = head & 15
            position = (
                position + 1 if element in (_TRUE, _FALSE) else _skip(data, position, element, depth + 1)
            )
            if position > len(data):
                raise NoParquet("its footer is damaged")
        return position
    if kind == _MAP:
        raise NoParquet("its footer is none that farbench writes")
    return _varint(data, position)[1]
