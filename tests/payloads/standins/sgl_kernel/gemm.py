"""The 8-bit GEMMs: b is a transposed view, scales are float32 and lie as told."""

import tensorcore
import torch


def check(condition, message):
    if not condition:
        raise RuntimeError(message)


def _operands(mat_a, mat_b, dtype, out_dtype):
    check(mat_a.ndim == 2 and mat_b.ndim == 2, "mat_a and mat_b must be 2D tensors")
    check(mat_a.stride(1) == 1, "mat_a must be a row major tensor")
    check(mat_b.stride(0) == 1, "mat_b must be a column major tensor")
    check(mat_a.shape[1] == mat_b.shape[0], "mat_a and mat_b shapes cannot be multiplied")
    check(mat_a.shape[1] % 16 == 0, "mat_a must be multiple of 16 bytes for memory alignment")
    check(mat_b.shape[1] % 8 == 0, "mat_b.size(1) must be multiple of 8 for memory alignment")
    check(mat_a.dtype == mat_b.dtype == dtype, f"mat_a and mat_b must be {dtype}")
    check(out_dtype in (torch.bfloat16, torch.float16), "out_dtype must be Half or BFloat16")
    k, n = mat_b.shape
    return tensorcore.memory_of(mat_a).reshape(mat_a.shape), tensorcore.memory_of(mat_b).reshape(n, k)


def _scaled_mm(mat_a, mat_b, scales_a, scales_b, dtype, out_dtype, bias):
    a, b = _operands(mat_a, mat_b, dtype, out_dtype)
    for name, scales, rows in (("a", scales_a, a.shape[0]), ("b", scales_b, b.shape[0])):
        check(scales.numel() == rows, f"size of scales_{name} is not matched")
        check(scales.is_contiguous(), f"scales_{name} must be contiguous")
        check(scales.dtype == torch.float32, f"scales_{name} must be Float32")
    check(bias is None, "no bias here")
    return tensorcore.multiply8(a, b, scales_a.reshape(-1, 1), scales_b.reshape(-1, 1), out_dtype)


def fp8_scaled_mm(mat_a, mat_b, scales_a, scales_b, out_dtype, bias=None):
    return _scaled_mm(mat_a, mat_b, scales_a, scales_b, torch.float8_e4m3fn, out_dtype, bias)


def int8_scaled_mm(mat_a, mat_b, scales_a, scales_b, out_dtype, bias=None):
    return _scaled_mm(mat_a, mat_b, scales_a, scales_b, torch.int8, out_dtype, bias)


def fp8_blockwise_scaled_mm(mat_a, mat_b, scales_a, scales_b, out_dtype):
    a, b = _operands(mat_a, mat_b, torch.float8_e4m3fn, out_dtype)
    (m, k), n = a.shape, b.shape[0]
    check(tuple(scales_a.shape) == (m, k // 128), "size of scales_a is not matched")
    check(tuple(scales_b.shape) == (k // 128, n // 128), "size of scales_b is not matched")
    check(scales_a.stride(0) == 1 or min(scales_a.shape) == 1, "scales_a must be M major")
    check(scales_b.stride(0) == 1 or min(scales_b.shape) == 1, "scales_b must be K major")
    check(scales_a.dtype == scales_b.dtype == torch.float32, "scales must be Float32")
    left = tensorcore.memory_of(scales_a).reshape(k // 128, m).T
    right = tensorcore.memory_of(scales_b).reshape(n // 128, k // 128)
    return tensorcore.multiply8(a, b, left, right, out_dtype)
