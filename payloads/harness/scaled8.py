"""Eight-bit operands with float32 scales, x ≈ code · scale: e4m3 and int8, in numpy and torch alike.

A scale is shared by a group of (rows, columns): the whole matrix, a row, 128 elements along k, or a block of 128×128.
It is the group's largest magnitude over the format's, so that this one becomes the largest code; 1 for a group of zeros.
The functions take arrays and tensors, and give the same numbers for both, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Tuple

from . import arrays, e4m3, nvfp4_torch

E4M3 = "e4m3"
INT8 = "int8"
LARGEST = {E4M3: e4m3.MAX, INT8: 127.0}

Group = Tuple[Optional[int], Optional[int]]
WHOLE: Group = (None, None)
ROW: Group = (1, None)
SEGMENT: Group = (1, 128)
BLOCK: Group = (128, 128)


@dataclass(frozen=True)
class Scaled:
    """`codes` (rows, k): uint8 or float8_e4m3fn of e4m3, or int8; `scales` float32, one for each `group`, in rows."""

    codes: Any
    scales: Any
    group: Group


def quantise(x: Any, form: str, group: Group) -> Scaled:
    """Quantise (rows, k), float32 or a tensor of any float dtype. `form` is `e4m3` or `int8`; groups at the right and the
    lower edge may be cut off."""
    grouped = _grouped(x.float() if arrays.is_tensor(x) else x, group)
    largest = abs(grouped).max(3).max(1) if not arrays.is_tensor(x) else grouped.abs().amax(dim=(1, 3))
    scales = _scales(largest, LARGEST[form])
    codes = _encode(grouped / scales[:, None, :, None], form)
    return Scaled(_cropped(codes, x.shape), scales, group)


def dequantise(q: Scaled) -> Any:
    """The values that `q` stands for, (rows, k) float32."""
    grouped = _grouped(decode(q.codes), q.group)
    return _cropped(grouped * q.scales[:, None, :, None], q.codes.shape)


def decode(codes: Any) -> Any:
    """Codes to float32, exactly, without their scales."""
    if arrays.is_tensor(codes):
        return codes.float()
    return e4m3.decode(codes) if codes.dtype == "uint8" else codes.astype("float32")


def _grouped(x: Any, group: Group) -> Any:
    """(groups along rows, rows of a group, groups along k, columns of a group), padded with zeros to whole groups."""
    rows, k = x.shape
    height, width = group[0] or rows, group[1] or k
    down, across = -(-rows // height), -(-k // width)
    if (rows, k) != (down * height, across * width):
        if arrays.is_tensor(x):
            padded = x.new_zeros((down * height, across * width))
        else:
            import numpy as np

            padded = np.zeros((down * height, across * width), x.dtype)
        padded[:rows, :k] = x
        x = padded
    return x.reshape(down, height, across, width)


def _cropped(grouped: Any, shape: Any) -> Any:
    down, height, across, width = grouped.shape
    rows, k = shape
    whole = grouped.reshape(down * height, across * width)
    return whole if (rows, k) == tuple(whole.shape) else _contiguous(whole[:rows, :k])


def _contiguous(x: Any) -> Any:
    return x.contiguous() if arrays.is_tensor(x) else x.copy()


def _scales(largest: Any, top: float) -> Any:
    if arrays.is_tensor(largest):
        import torch

        # A tensor as divisor: dividing by a Python number may become a multiplication by its reciprocal.
        scales = largest / torch.full((), top, dtype=torch.float32, device=largest.device)
        return torch.where(scales == 0, torch.ones_like(scales), scales)
    import numpy as np

    scales = largest / np.float32(top)
    return np.where(scales == 0, np.float32(1), scales)


def _encode(x: Any, form: str) -> Any:
    """Nearest code, ties to even, saturating."""
    if arrays.is_tensor(x):
        import torch

        if form == E4M3:
            return nvfp4_torch.e4m3_encode(x).view(torch.float8_e4m3fn)
        return x.round().clamp(-127, 127).to(torch.int8)
    import numpy as np

    return e4m3.encode(x) if form == E4M3 else np.clip(np.rint(x), -127, 127).astype(np.int8)
