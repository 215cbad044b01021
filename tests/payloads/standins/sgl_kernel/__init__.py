"""A stand-in with the signatures of sgl-kernel 0.3.21 (sglang-kernel 0.4.2 has the same, without FP4 and
`sgl_per_tensor_quant_fp8`), on CPU tensors, with the checks of its C++ sources."""

import tensorcore
import torch

from . import allreduce
from .gemm import fp8_blockwise_scaled_mm, fp8_scaled_mm, int8_scaled_mm
from .moe import cutlass_fp4_group_mm, fp8_blockwise_scaled_grouped_mm
from .quantise import sgl_per_tensor_quant_fp8, sgl_per_token_group_quant_8bit, sgl_per_token_quant_fp8

__all__ = [
    "allreduce",
    "cutlass_fp4_group_mm",
    "cutlass_scaled_fp4_mm",
    "fp8_blockwise_scaled_grouped_mm",
    "fp8_blockwise_scaled_mm",
    "fp8_scaled_mm",
    "int8_scaled_mm",
    "scaled_fp4_quant",
    "sgl_per_tensor_quant_fp8",
    "sgl_per_token_group_quant_8bit",
    "sgl_per_token_quant_fp8",
]


def scaled_fp4_quant(input, input_global_scale):
    assert input.dtype in (torch.float16, torch.bfloat16)
    assert input.shape[-1] % 16 == 0
    codes, scales = tensorcore.quantise(input, input_global_scale)
    return codes, tensorcore.swizzled(scales).view(torch.float8_e4m3fn)


def cutlass_scaled_fp4_mm(a, b, block_scale_a, block_scale_b, alpha, out_dtype):
    assert a.ndim == 2
    assert b.ndim == 2
    for name, codes, scales in (("a", a, block_scale_a), ("b", b, block_scale_b)):
        if codes.dtype != torch.uint8 or not codes.is_contiguous():
            raise RuntimeError(f"{name} must be contiguous and of type uint8")
        if scales.dtype != torch.float8_e4m3fn or not scales.is_contiguous():
            raise RuntimeError(f"scale_{name} must be contiguous and of type float8_e4m3fn")
        wanted = tensorcore.padded(codes.shape[0], codes.shape[1] // 8)
        if tuple(scales.shape) != wanted:
            raise RuntimeError(
                f"scale_{name} must be padded and swizzled to a shape {wanted}, but got a shape {tuple(scales.shape)}"
            )
    if a.shape[1] != b.shape[1]:
        raise RuntimeError(f"a and b shapes cannot be multiplied ({tuple(a.shape)} and {tuple(b.shape)})")
    return tensorcore.multiply(
        a, b, block_scale_a.view(torch.uint8), block_scale_b.view(torch.uint8), alpha, out_dtype
    )
