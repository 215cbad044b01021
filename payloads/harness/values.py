"""Arrays as the numbers that they stand for, to be compared with others."""

from __future__ import annotations

import sys
from typing import Any, Iterator, List

from . import arrays


def row_chunks(value: Any, elements: int = 1 << 24) -> Iterator[Any]:
    """`value` as float64 slices of about `elements` elements along its first axis; complex numbers as pairs."""
    value = _real(plain(value))
    flat = value.reshape(1, -1) if value.ndim < 2 else value
    per_row = max(1, arrays.count(flat) // max(1, flat.shape[0]))
    step = max(1, elements // per_row)
    for start in range(0, flat.shape[0], step):
        part = flat[start : start + step]
        yield part.double() if arrays.is_tensor(part) else part.astype("float64")


def plain(value: Any) -> Any:
    """A numpy matrix as the array it is: its products are other ones."""
    numpy = sys.modules.get("numpy")
    matrix = getattr(numpy, "matrix", None)
    return numpy.asarray(value) if numpy and matrix and isinstance(value, matrix) else value


def holds_numbers(value: Any) -> bool:
    """Whether an array can be compared as numbers: not where it has fields, text or dates."""
    return arrays.is_tensor(value) or not (value.dtype.names or value.dtype.kind in "SUmM")


def is_whole(value: Any) -> bool:
    """Whether an array holds integers (or booleans)."""
    if arrays.is_tensor(value):
        return not (value.is_floating_point() or value.is_complex() or value.is_quantized)
    return value.dtype.kind in "iub"


def is_complex(value: Any) -> bool:
    """Whether it holds complex numbers."""
    return bool(value.is_complex()) if arrays.is_tensor(value) else value.dtype.kind == "c"


def _real(value: Any) -> Any:
    if arrays.is_tensor(value):
        import torch

        return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
    if value.dtype.kind != "c":
        return value
    import numpy as np

    return np.stack([value.real, value.imag], axis=-1)


def whole(value: Any) -> Any:
    """A number as an array without dimensions; anything else as it is."""
    numpy = sys.modules.get("numpy")
    scalar = isinstance(value, (int, float, complex)) or (
        numpy is not None and isinstance(value, numpy.generic)
    )
    if not scalar:
        return value
    import numpy as np

    return np.asarray(value)


def sizes(value: Any) -> List[int]:
    """The shape as a list of ints."""
    return [int(n) for n in value.shape]


def like(value: Any, other: Any) -> Any:
    """`value` as the kind of array that `other` is, on the same device."""
    if arrays.is_tensor(other):
        import torch

        return (value if arrays.is_tensor(value) else torch.from_numpy(value)).to(other.device)
    if arrays.is_tensor(value):
        value = value.detach()
        if not value.is_complex():  # numpy knows neither bfloat16 nor 8-bit floats
            value = value.double() if value.element_size() > 2 else value.float()
        return value.resolve_conj().cpu().numpy()
    return value
