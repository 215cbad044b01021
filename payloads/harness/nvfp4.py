"""NVFP4 in numpy: the reference that every kernel's operands and layouts are judged by.

Elements are E2M1 codes (0, .5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign), two in a byte with the even index in the low
nibble. Sixteen along K share one e4m3 scale; the whole tensor shares one float32 `global_scale` = 448·6 / amax, so that

    x ≈ element · scale / global_scale,  and a product of two tensors needs alpha = 1 / (gs_a · gs_b).

Tensor cores read the scales swizzled in tiles of 128 rows by 4 scales, padded to whole tiles. `nvfp4_torch` is the same
in torch, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Optional, Tuple

from . import e4m3

BLOCK = 16
E2M1_MAX = 6.0
FULL_RANGE = e4m3.MAX * E2M1_MAX
FLOAT32_MAX = 3.4028234663852886e38
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True)
class Quantised:
    """`packed` (rows, k/2) uint8, `scales` (rows, k/16) e4m3 codes as uint8, in rows (not swizzled); arrays or tensors."""

    packed: Any
    scales: Any
    global_scale: float

    @property
    def shape(self) -> Tuple[int, int]:
        """(rows, k) of the tensor that was quantised."""
        return int(self.packed.shape[0]), int(self.packed.shape[1]) * 2


@lru_cache(maxsize=1)
def _pairs() -> Any:
    """(256, 2) float32: the two elements of every byte."""
    import numpy as np

    signed = np.array(E2M1_VALUES + tuple(-v for v in E2M1_VALUES), dtype=np.float32)
    codes = np.arange(256)
    return np.stack([signed[codes & 15], signed[codes >> 4]], axis=1)


def e2m1_encode(x: Any) -> Any:
    """Float32 to codes 0-15: nearest, ties to the even code (.25→0, .75→1, 1.25→1, 2.5→2, 5→4), saturating at ±6."""
    import numpy as np

    magnitude = np.abs(x)
    code = (magnitude > 0.25).astype(np.uint8)
    for bound, tie_goes_up in (
        (0.75, True),
        (1.25, False),
        (1.75, True),
        (2.5, False),
        (3.5, True),
        (5.0, False),
    ):
        code += (magnitude >= bound) if tie_goes_up else (magnitude > bound)
    code |= np.signbit(x).astype(np.uint8) << 3
    return code


def pack(codes: Any) -> Any:
    """(rows, k) codes to (rows, k/2) bytes."""
    return codes[:, 0::2] | (codes[:, 1::2] << 4)


def unpack(packed: Any) -> Any:
    """(rows, k/2) bytes to (rows, k) codes."""
    import numpy as np

    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(packed.shape[0], -1)


def global_scale_for(amax: float) -> float:
    """448·6 / amax as a float32 value, finite for every finite amax (1 for a tensor of zeros)."""
    import numpy as np

    if not amax > 0:
        return 1.0
    return float(np.float32(min(FULL_RANGE / amax, FLOAT32_MAX)))


def quantise(x: Any, global_scale: Optional[float] = None) -> Quantised:
    """Quantise float32 (rows, k), k % 16 == 0. `global_scale` 1.0 gives single-level scales; default from amax."""
    import numpy as np

    x = np.ascontiguousarray(x, dtype=np.float32)
    rows, k = x.shape
    if k % BLOCK:
        raise ValueError("k = {} is no multiple of {}".format(k, BLOCK))
    gs = global_scale_for(float(np.abs(x).max(initial=0.0))) if global_scale is None else global_scale
    # Scale first: |x·gs| ≤ 2688, so nothing overflows however small the values are.
    scaled = (x * np.float32(gs)).reshape(rows, k // BLOCK, BLOCK)
    scales = e4m3.encode(np.abs(scaled).max(axis=2) / np.float32(E2M1_MAX))
    divisor = e4m3.decode(scales)
    codes = e2m1_encode(scaled / np.where(divisor == 0, np.float32(1), divisor)[:, :, None])
    return Quantised(pack(codes.reshape(rows, k)), scales, gs)


def dequantise_blocks(packed: Any, scales: Any) -> Any:
    """element · scale, (rows, k) float32: exact (6 significant bits), also exact in bfloat16."""
    rows, half = packed.shape
    elements = _pairs()[packed].reshape(rows, 2 * half // BLOCK, BLOCK)
    return (elements * e4m3.decode(scales)[:, :, None]).reshape(rows, 2 * half)


def dequantise(q: Quantised) -> Any:
    """The values that `q` stands for, (rows, k) float32."""
    import numpy as np

    return dequantise_blocks(q.packed, q.scales) / np.float32(q.global_scale)


def padded_shape(rows: int, columns: int) -> Tuple[int, int]:
    """Scales of (rows, columns) padded to whole 128×4 tiles."""
    return -(-rows // 128) * 128, -(-columns // 4) * 4


def swizzle(scales: Any) -> Any:
    """Scales in rows to 128×4 tiles, zero-padded, of shape `padded_shape`. Scale (r, c) lands at offset
    ((r//128)·nk + c//4)·512 + (r%32)·16 + ((r%128)//32)·4 + c%4, where nk is the number of tiles along K."""
    import numpy as np

    rows, columns = scales.shape
    height, width = padded_shape(rows, columns)
    padded = np.zeros((height, width), dtype=scales.dtype)
    padded[:rows, :columns] = scales
    tiles = padded.reshape(height // 128, 4, 32, width // 4, 4).transpose(0, 3, 2, 1, 4)
    return np.ascontiguousarray(tiles).reshape(height, width)


def unswizzle(swizzled: Any, rows: int, columns: int) -> Any:
    """The (rows, columns) scales out of swizzled and padded ones (of any shape with the right number of elements)."""
    height, width = padded_shape(rows, columns)
    tiles = swizzled.reshape(height // 128, width // 4, 32, 4, 4).transpose(0, 3, 2, 1, 4)
    return tiles.reshape(height, width)[:rows, :columns]


def gemm(a: Quantised, b: Quantised) -> Any:
    """A · Bᵀ of the dequantised operands, (m, n) float32."""
    import numpy as np

    product = dequantise_blocks(a.packed, a.scales) @ dequantise_blocks(b.packed, b.scales).T
    return product * np.float32(1.0 / (a.global_scale * b.global_scale))


def round_to_bfloat16(x: Any) -> Any:
    """Float32 rounded to the nearest bfloat16 value (ties to even), still float32. Finite values only."""
    import numpy as np

    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)
