"""Reading tensors out of a `.safetensors` file, with numpy alone.

The format: eight bytes with the header's length, little-endian; the header, JSON of name → dtype, shape and offsets;
the bytes. (https://huggingface.co/docs/safetensors, "Format".)
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Optional

from . import e4m3

MAX_HEADER_BYTES = 100_000_000

# What the bytes of each dtype are read as; bfloat16 and float8 have no numpy type and are widened by hand.
_STORED = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "F8_E4M3": "u1"}


def read(path: str, name: str) -> Optional[Any]:
    """The tensor `name` as float32, or None when the file has no such tensor.

    Raises OSError for a file that cannot be read, ValueError for one that is not what it should be.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        header = _header(file, size, path)
        if name not in header:
            return None
        entry = header[name]
        dtype, shape, (start, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        if dtype not in _STORED:
            raise ValueError("{}: {} is {}; known are {}".format(path, name, dtype, ", ".join(_STORED)))
        file.seek(start, os.SEEK_CUR)
        return _widened(file.read(end - start), dtype, shape, "{}: {}".format(path, name))


def _header(file: Any, size: int, path: str) -> Dict[str, Any]:
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
        raise ValueError("{} is no safetensors file".format(path))
    try:
        header: Dict[str, Any] = json.loads(file.read(length).decode("utf-8"))
    except ValueError:
        raise ValueError("{} is no safetensors file: its header is no JSON".format(path)) from None
    return header


def _widened(data: bytes, dtype: str, shape: Any, what: str) -> Any:
    import numpy as np

    count = int(np.prod(shape, dtype=np.int64))
    if len(data) != count * np.dtype(_STORED[dtype]).itemsize:
        raise ValueError("{} is cut short".format(what))
    stored = np.frombuffer(data, _STORED[dtype])
    if dtype == "BF16":
        values = (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    elif dtype == "F8_E4M3":
        values = e4m3.decode(stored)
    else:
        values = stored.astype(np.float32)
    return values.reshape(shape)
