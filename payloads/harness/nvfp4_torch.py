"""The NVFP4 reference of `nvfp4`, in torch on any device: the same functions with the same results, bit for bit."""

from __future__ import annotations

from typing import Any, Optional

from .nvfp4 import BLOCK, E2M1_MAX, E2M1_VALUES, Quantised, global_scale_for, padded_shape

# Rows are unpacked in slices of about this many bytes, to bound the memory that indices take.
_SLICE_BYTES = 1 << 24


def e2m1_encode(x: Any) -> Any:
    """As `nvfp4.e2m1_encode`."""
    import torch

    magnitude = x.abs()
    code = (magnitude > 0.25).to(torch.uint8)
    for bound, tie_goes_up in (
        (0.75, True),
        (1.25, False),
        (1.75, True),
        (2.5, False),
        (3.5, True),
        (5.0, False),
    ):
        code += (magnitude >= bound) if tie_goes_up else (magnitude > bound)
    return code | (torch.signbit(x).to(torch.uint8) << 3)


def pack(codes: Any) -> Any:
    """As `nvfp4.pack`."""
    return codes[:, 0::2] | (codes[:, 1::2] << 4)


def unpack(packed: Any) -> Any:
    """As `nvfp4.unpack`."""
    import torch

    return torch.stack([packed & 15, packed >> 4], dim=-1).reshape(packed.shape[0], -1)


def e4m3_encode(x: Any) -> Any:
    """As `e4m3.encode`: torch's own conversion, which rounds to nearest even, after saturating."""
    import torch

    return x.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).view(torch.uint8)


def e4m3_decode(codes: Any) -> Any:
    """As `e4m3.decode`; also takes float8_e4m3fn tensors."""
    import torch

    return codes.view(torch.float8_e4m3fn).to(torch.float32)


def quantise(x: Any, global_scale: Optional[float] = None) -> Quantised:
    """As `nvfp4.quantise`, for a tensor of any float dtype (rows, k); the result lies on the tensor's device."""
    import torch

    x = x.float()
    rows, k = x.shape
    if k % BLOCK:
        raise ValueError("k = {} is no multiple of {}".format(k, BLOCK))
    gs = (
        global_scale_for(float(x.abs().max()) if x.numel() else 0.0) if global_scale is None else global_scale
    )
    scaled = (x * gs).reshape(rows, k // BLOCK, BLOCK)
    # A tensor as divisor: dividing by a Python number may become a multiplication by its reciprocal.
    six = torch.full((), E2M1_MAX, dtype=torch.float32, device=x.device)
    scales = e4m3_encode(scaled.abs().amax(dim=2) / six)
    divisor = e4m3_decode(scales)
    divisor = torch.where(divisor == 0, torch.ones_like(divisor), divisor)
    codes = e2m1_encode(scaled / divisor[:, :, None])
    return Quantised(pack(codes.reshape(rows, k)), scales, gs)


def dequantise_blocks(packed: Any, scales: Any, dtype: Any = None) -> Any:
    """As `nvfp4.dequantise_blocks`; `dtype` float32 by default, bfloat16 is exact too."""
    import torch

    dtype = dtype or torch.float32
    packed = packed.view(torch.uint8)
    rows, half = packed.shape
    table = torch.tensor(
        E2M1_VALUES + tuple(-v for v in E2M1_VALUES), dtype=torch.float32, device=packed.device
    )
    factors = e4m3_decode(scales)
    out = torch.empty((rows, 2 * half), dtype=dtype, device=packed.device)
    step = max(1, _SLICE_BYTES // max(1, half))
    for start in range(0, rows, step):
        part = slice(start, min(start + step, rows))
        elements = table[unpack(packed[part]).long()].reshape(-1, 2 * half // BLOCK, BLOCK)
        out[part] = (elements * factors[part][:, :, None]).reshape(-1, 2 * half).to(dtype)
    return out


def dequantise(q: Quantised) -> Any:
    """As `nvfp4.dequantise`."""
    import torch

    values = dequantise_blocks(q.packed, q.scales)
    return values / torch.full((), q.global_scale, dtype=torch.float32, device=values.device)


def swizzle(scales: Any) -> Any:
    """As `nvfp4.swizzle`."""
    rows, columns = scales.shape
    height, width = padded_shape(rows, columns)
    padded = scales.new_zeros((height, width))
    padded[:rows, :columns] = scales
    tiles = padded.reshape(height // 128, 4, 32, width // 4, 4).permute(0, 3, 2, 1, 4)
    return tiles.contiguous().reshape(height, width)


def unswizzle(swizzled: Any, rows: int, columns: int) -> Any:
    """As `nvfp4.unswizzle`."""
    height, width = padded_shape(rows, columns)
    tiles = swizzled.reshape(height // 128, width // 4, 32, 4, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(height, width)[:rows, :columns]


def from_swizzled(packed: Any, swizzled: Any, global_scale: Any) -> Quantised:
    """What a library's quantiser made, (rows, k/2) codes and swizzled, padded scales of any one-byte dtypes, as a
    `Quantised`."""
    import torch

    rows, half = packed.shape
    scales = unswizzle(swizzled.view(torch.uint8), rows, 2 * half // BLOCK)
    return Quantised(packed.view(torch.uint8), scales, float(global_scale))


def product(a: Any, b: Any, alpha: float = 1.0) -> Any:
    """alpha · a · bᵀ in full float32 (no TF32), on the operands' device."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        return (a.float() @ b.float().t()) * alpha
    finally:
        torch.set_float32_matmul_precision(before)


def gemm(a: Quantised, b: Quantised) -> Any:
    """As `nvfp4.gemm`."""
    alpha = 1.0 / (a.global_scale * b.global_scale)
    return product(dequantise_blocks(a.packed, a.scales), dequantise_blocks(b.packed, b.scales), alpha)
