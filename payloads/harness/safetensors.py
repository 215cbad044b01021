"""Reading tensors out of a `.safetensors` file, with numpy alone.

The format: eight bytes with the header's length, little-endian; the header, JSON of name → dtype, shape and offsets;
the bytes. (https://huggingface.co/docs/safetensors, "Format".)
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Optional, Tuple

from . import e4m3

MAX_HEADER_BYTES = 100_000_000

# What the bytes of each dtype are read as; bfloat16 and float8 have no numpy type and are widened by hand.
_STORED = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "F8_E4M3": "u1"}
_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1}


def read(path: str, name: str) -> Optional[Any]:
    """The tensor `name` as float32, or None when the file has no such tensor.

    Raises OSError for a file that cannot be read, ValueError for one that is not what it should be.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        header = _header(file, size, path)
        if name not in header:
            return None
        what = "{}: {}".format(path, name)
        dtype, shape, start, end = _entry(header[name], size - file.tell(), what)
        if dtype not in _STORED:
            raise ValueError("{} is {}; known are {}".format(what, dtype, ", ".join(_STORED)))
        if _bytes(dtype, shape) != end - start:
            raise ValueError(
                "{} has {} bytes, its shape says {}".format(what, end - start, _bytes(dtype, shape))
            )
        file.seek(start, os.SEEK_CUR)
        return _widened(file.read(end - start), dtype, shape, what)


def _entry(entry: Any, room: int, what: str) -> Tuple[str, List[int], int, int]:
    """(dtype, shape, first byte, last byte + 1) of a tensor in the `room` bytes after the header. Raises ValueError."""
    found = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (found.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not (
        isinstance(dtype, str)
        and isinstance(shape, list)
        and isinstance(offsets, list)
        and len(offsets) == 2
        and all(type(number) is int and number >= 0 for number in shape + offsets)
        and offsets[0] <= offsets[1]
    ):
        raise ValueError("{} is not described as a tensor is".format(what))
    if offsets[1] > room:
        raise ValueError("{} is cut short".format(what))
    return dtype, shape, offsets[0], offsets[1]


def _bytes(dtype: str, shape: List[int]) -> int:
    count = _ITEM_BYTES[dtype]
    for length in shape:
        count *= length
    return count


def _header(file: Any, size: int, path: str) -> Dict[str, Any]:
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
        raise ValueError("{} is no safetensors file".format(path))
    try:
        header = json.loads(file.read(length).decode("utf-8"))
    except (ValueError, RecursionError):
        raise ValueError("{} is no safetensors file: its header is no JSON".format(path)) from None
    if not isinstance(header, dict):
        raise ValueError("{} is no safetensors file: its header is no JSON object".format(path))
    return header


def _widened(data: bytes, dtype: str, shape: Any, what: str) -> Any:
    import numpy as np

    if len(data) != _bytes(dtype, shape):
        raise ValueError("{} is cut short".format(what))
    stored = np.frombuffer(data, _STORED[dtype])
    if dtype == "BF16":
        values = (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    elif dtype == "F8_E4M3":
        values = e4m3.decode(stored)
    else:
        values = stored.astype(np.float32)
    return values.reshape(shape)
