"""The grouped products of flashinfer 0.7.4, with its checks, reading memory as the kernels do."""

import itertools

import tensorcore
import torch

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
OUTPUTS = (torch.float16, torch.bfloat16, torch.float32)


def _check(a, b, m_indptr, alpha, out, out_dtype, alpha_shape=(1,)):
    if out_dtype not in OUTPUTS:
        raise ValueError(f"out_dtype must be float16, bfloat16, or float32, got {out_dtype}")
    if a.ndim != 2 or b.ndim != 3:
        raise ValueError(f"a must be 2D (cum_m, k), b 3D (num_experts, n, k), got {a.shape} and {b.shape}")
    if m_indptr.dtype != torch.int32 or m_indptr.shape[0] != b.shape[0] + 1:
        raise ValueError(
            f"m_indptr must be int32 of num_experts + 1, got {m_indptr.dtype} of {m_indptr.shape[0]}"
        )
    if a.shape[1] != b.shape[2]:
        raise ValueError(f"K mismatch: a has {a.shape[1]}, b has {b.shape[2]}")
    if alpha is not None and (alpha.dtype != torch.float32 or alpha.shape != alpha_shape):
        raise ValueError(
            f"alpha must be float32 of shape {alpha_shape}, got {alpha.dtype} of {tuple(alpha.shape)}"
        )
    if out is not None and out.shape != (a.shape[0], b.shape[1]):
        raise ValueError(f"out shape {tuple(out.shape)} != expected {(a.shape[0], b.shape[1])}")
    assert a.is_contiguous()
    assert b.is_contiguous()


def _segments(m_indptr):
    bounds = m_indptr.tolist()
    return list(enumerate(itertools.pairwise(bounds)))


def grouped_mm_fp8(
    a, b, m_indptr, alpha=None, out=None, out_dtype=torch.bfloat16, *, backend="cudnn", tactic=-1
):
    if a.dtype not in FP8 or b.dtype not in FP8:
        raise ValueError(f"a must be float8_e4m3fn or float8_e5m2, got {a.dtype}")
    out_dtype = out.dtype if out is not None else out_dtype
    _check(a, b, m_indptr, alpha, out, out_dtype)
    assert backend == "cudnn"
    out = torch.empty((a.shape[0], b.shape[1]), dtype=out_dtype) if out is None else out
    for expert, (start, end) in _segments(m_indptr):
        out[start:end] = (
            (a[start:end].float() @ b[expert].float().T) * (1.0 if alpha is None else alpha)
        ).to(out_dtype)
    return out


def grouped_mm_fp4(
    a, b, a_descale, b_descale, m_indptr, alpha=None, out=None, out_dtype=torch.bfloat16, block_size=16,
    *, backend="cudnn", tactic=-1,
):  # fmt: skip
    if a.dtype not in (torch.float4_e2m1fn_x2, torch.uint8) or b.dtype not in (
        torch.float4_e2m1fn_x2,
        torch.uint8,
    ):
        raise ValueError(f"a must be float4_e2m1fn_x2 or uint8, got {a.dtype}")
    if a_descale.ndim != 2 or b_descale.ndim != 3:
        raise ValueError(f"a_descale must be 2D, b_descale 3D, got {a_descale.shape} and {b_descale.shape}")
    if block_size == 16 and {a_descale.dtype, b_descale.dtype} != {torch.float8_e4m3fn}:
        raise ValueError(
            f"a_descale and b_descale must be float8_e4m3fn, got {a_descale.dtype} and {b_descale.dtype}"
        )
    out_dtype = out.dtype if out is not None else out_dtype
    _check(a, b, m_indptr, alpha, out, out_dtype)
    assert backend == "cudnn"
    assert block_size == 16
    out = torch.empty((a.shape[0], b.shape[1]), dtype=out_dtype) if out is None else out
    memory, row_bytes = a_descale.view(torch.uint8).reshape(-1), tensorcore.padded(1, a.shape[1] // 8)[1]
    for expert, (start, end) in _segments(m_indptr):
        # An expert's scales begin with a tile of 128 rows, at the place of its first row.
        assert start % 128 == 0, "the scales of an expert begin within a tile"
        scales = memory[start * row_bytes :]
        weights = b_descale[expert].view(torch.uint8)
        product = tensorcore.multiply(a[start:end], b[expert], scales, weights, torch.ones(1), torch.float32)
        out[start:end] = (product * (1.0 if alpha is None else alpha)).to(out_dtype)
    return out


def group_gemm_fp8_nt_groupwise(
    a, b, a_scale, b_scale, m_indptr, scale_granularity_mnk=(1, 128, 128), scale_major_mode="MN", mma_sm=1, out=None,
    out_dtype=None, backend="trtllm", segment_alignment=1,
):  # fmt: skip
    if a.dtype not in FP8 or b.dtype not in FP8:
        raise ValueError(f"a must be a float8 tensor, but got {a.dtype}")
    if a_scale.dtype != torch.float32 or b_scale.dtype != torch.float32:
        raise ValueError(f"a_scale must be a float32 tensor, but got {a_scale.dtype}")
    out_dtype = out_dtype or (out.dtype if out is not None else torch.bfloat16)
    _check(a, b, m_indptr, None, out, out_dtype)
    if b.shape[1] % 8 or b.shape[2] % 16:
        raise ValueError("n must be a multiple of 8, k a multiple of 16")
    assert scale_major_mode == "MN"
    assert scale_granularity_mnk == (1, 128, 128)
    k, n = a.shape[1], b.shape[1]
    assert a_scale.shape == (k // 128, a.shape[0])
    assert b_scale.shape == (b.shape[0], k // 128, n // 128)
    assert a_scale.is_contiguous()
    assert b_scale.is_contiguous()
    out = torch.empty((a.shape[0], n), dtype=out_dtype) if out is None else out
    left = a.float() * a_scale.T.repeat_interleave(128, dim=1)
    for expert, (start, end) in _segments(m_indptr):
        assert start % 4 == 0, "each element in m_indptr must be a multiple of 4"
        factors = b_scale[expert].T.repeat_interleave(128, dim=0).repeat_interleave(128, dim=1)
        out[start:end] = (left[start:end] @ (b[expert].float() * factors).T).to(out_dtype)
    return out


def group_gemm_nvfp4_nt_groupwise(
    a, b, a_scale, b_scale, m_indptr, alpha=None, tile_m=128, tile_n=128, tile_k=128, swap_ab=True, out=None,
    out_dtype=None,
):  # fmt: skip
    for name, tensor in (("a", a), ("b", b), ("a_scale", a_scale), ("b_scale", b_scale)):
        if tensor.dtype != torch.uint8:
            raise ValueError(f"{name} must be a uint8 tensor, but got {tensor.dtype}")
    out_dtype = out_dtype or (out.dtype if out is not None else torch.bfloat16)
    _check(a, b, m_indptr, alpha, out, out_dtype, (b.shape[0],))
    n, k = b.shape[1], 2 * b.shape[2]
    if n % 8 or k % 128:
        raise ValueError(f"n must be a multiple of 8 and k of 128, but got n={n}, k={k}")
    out = torch.empty((a.shape[0], n), dtype=out_dtype) if out is None else out
    memory, row_bytes = a_scale.reshape(-1), k // 16
    for expert, (start, end) in _segments(m_indptr):
        assert start % 4 == 0, "each element in m_indptr must be a multiple of 4"
        place = (start + expert * 127) // 128 * 128
        if end > start:
            product = tensorcore.multiply(
                a[start:end],
                b[expert],
                memory[place * row_bytes :],
                b_scale[expert],
                torch.ones(1),
                torch.float32,
            )
            out[start:end] = (product * (1.0 if alpha is None else alpha[expert])).to(out_dtype)
    return out
