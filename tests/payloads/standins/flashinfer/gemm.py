"""The 8-bit and 16-bit GEMMs of flashinfer 0.7.4: its signatures and its checks."""

import tensorcore
import torch

import flashinfer

from .autotuner import AutoTuner
from .grouped_mm import group_gemm_fp8_nt_groupwise, group_gemm_nvfp4_nt_groupwise  # noqa: F401
from .refusals import require_capability

BLACKWELL = (100, 103, 107, 110, 120, 121)
FP8_RUNS_ON = {"cublas": (89, 90, *BLACKWELL), "cudnn": (89, 90, *BLACKWELL), "cutlass": BLACKWELL}
BF16_RUNS_ON = {
    "cublaslt": (80, 86, 87, 89, 90, *BLACKWELL),
    "cudnn": (80, 86, 87, 89, 90, *BLACKWELL),
    "tinygemm": (90, *BLACKWELL),
    "cutlass": (100, 103, 107),
    "tgv": (100, 103, 107),
}


def bmm_fp8(A, B, A_scale, B_scale, dtype, out=None, backend="cublas", *, batch_invariant=False):
    require_capability("bmm_fp8", backend, flashinfer.CAPABILITY, FP8_RUNS_ON[backend])
    if dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"Unsupported output dtype: {dtype}.")
    assert A.ndim == B.ndim == 3
    assert A.shape[0] == B.shape[0] == 1
    assert A.shape[2] == B.shape[1]
    assert A.dtype == B.dtype == torch.float8_e4m3fn
    assert A.is_contiguous()
    for scale in (A_scale, B_scale):
        assert scale.dtype == torch.float32
        assert scale.numel() == 1
    k, n = B.shape[1:]
    if out is None:
        out = torch.empty((1, A.shape[1], n), dtype=dtype)
    assert out.dtype == dtype
    assert out.is_contiguous()
    assert tuple(out.shape) == (1, A.shape[1], n)
    codes = B[0].t() if backend == "cudnn" else tensorcore.memory_of(B).reshape(n, k)
    AutoTuner.get().choose_one("fp8_gemm", [backend], None, [A[0], B])
    out[0].copy_(tensorcore.multiply8(A[0], codes, A_scale.reshape(1, 1), B_scale.reshape(1, 1), dtype))
    return out


def mm_fp8(a, b, alpha=None, out_dtype=torch.bfloat16, out=None, backend="trtllm_low_latency"):
    known = (100, 103, 107) if backend == "trtllm_low_latency" else FP8_RUNS_ON[backend]
    require_capability("mm_fp8", backend, flashinfer.CAPABILITY, known)
    if (
        a.ndim != 2
        or b.ndim != 2
        or a.shape[1] != b.shape[1]
        or not (a.is_contiguous() and b.is_contiguous())
    ):
        raise ValueError(
            "cublas / cudnn / cutlass mm_fp8 require contiguous (m, k) and unprocessed (n, k) inputs"
        )
    if a.dtype != torch.float8_e4m3fn or b.dtype != torch.float8_e4m3fn:
        raise ValueError("mm_fp8 requires FP8 operands")
    if out is None:
        out = torch.empty((a.shape[0], b.shape[0]), dtype=out_dtype)
    if out.dtype != torch.bfloat16:
        raise ValueError(f"Unsupported output dtype: {out.dtype}.")
    if out.shape != (a.shape[0], b.shape[0]):
        raise ValueError(f"Output shape mismatch. Expected {(a.shape[0], b.shape[0])}, got {out.shape}.")
    assert alpha.dtype == torch.float32
    assert alpha.numel() == 1
    AutoTuner.get().choose_one("fp8_gemm", [backend], None, [a, b])
    return out.copy_(tensorcore.multiply8(a, b, alpha.reshape(1, 1), torch.ones(1, 1), out.dtype))


def mm_bf16(
    a,
    b,
    bias=None,
    pdl=False,
    out=None,
    out_dtype=torch.bfloat16,
    backend="cudnn",
    *,
    batch_invariant=False,
):
    require_capability("mm_bf16", backend, flashinfer.CAPABILITY, BF16_RUNS_ON[backend])
    for name, x in (("First", a), ("Second", b)):
        if x.dtype != torch.bfloat16:
            raise ValueError(f"{name} tensor has unsupported dtype {x.dtype}. Only bfloat16 is supported.")
    if backend in ("cublaslt", "cutlass") and not (a.is_contiguous() and b.t().is_contiguous()):
        raise ValueError(
            f"The {backend} backend requires a contiguous A and a column-major B (B.T contiguous)."
        )
    if backend == "tinygemm" and not (a.is_contiguous() and b.t().is_contiguous() and b.shape[1] % 16 == 0):
        raise ValueError("The TinyGEMM backend requires b.T to be contiguous, and n % 16 = 0.")
    if out is None:
        out = torch.empty((a.shape[0], b.shape[1]), dtype=out_dtype)
    if out.shape != (a.shape[0], b.shape[1]) or out.dtype != out_dtype:
        raise ValueError(f"Output mismatch. Expected {(a.shape[0], b.shape[1])} of {out_dtype}.")
    assert bias is None
    AutoTuner.get().choose_one("bf16_gemm", [backend], None, [a, b])
    return out.copy_(a.double() @ b.double())


def gemm_fp8_nt_groupwise(
    a,
    b,
    a_scale,
    b_scale,
    scale_major_mode=None,
    mma_sm=1,
    scale_granularity_mnk=(1, 128, 128),
    out=None,
    out_dtype=None,
    backend="cutlass",
):
    require_capability("gemm_fp8_nt_groupwise", backend, flashinfer.CAPABILITY, BLACKWELL)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise ValueError(f"Shape mismatch. a.shape = {a.shape}, b.shape = {b.shape}")
    if scale_major_mode is None:
        raise ValueError("scale_major_mode is required in CUTLASS")
    assert scale_granularity_mnk == (1, 128, 128)
    (m, k), n = a.shape, b.shape[0]
    assert m % 4 == 0
    assert a.is_contiguous()
    assert b.is_contiguous()
    sizes = {"MN": ((k // 128, m), (k // 128, n // 128)), "K": ((m, k // 128), (n // 128, k // 128))}
    for scale, size in zip((a_scale, b_scale), sizes[scale_major_mode], strict=True):
        assert scale.dtype == torch.float32
        assert tuple(scale.shape) == size
        assert scale.is_contiguous()
    if scale_major_mode == "MN":
        a_scale, b_scale = a_scale.t(), b_scale.t()
    if out is None:
        out = torch.empty((m, n), dtype=out_dtype or torch.bfloat16)
    return out.copy_(tensorcore.multiply8(a, b, a_scale, b_scale, out.dtype))


# 0.7.4 reads fewer of the blocks in the last 4096 columns, down to 4 (it bounds rows by columns); a test sets this.
BLOCK_ROWS_READ = 128


def fp8_blockscale_gemm_sm90(input, weight, input_scale=None, weight_scale=None, out=None, out_dtype=None):
    if flashinfer.CAPABILITY != 90:
        raise ValueError("fp8_blockscale_gemm_sm90 is only supported on SM90 (Hopper) architecture.")
    (m, k), n = input.shape, weight.shape[0]
    if k % 128 or weight.shape[1] != k:
        raise ValueError(f"K dimension must be divisible by block size (128), got K={k}")
    if n % 64:
        raise ValueError(f"N dimension must be divisible by 64, got N={n}")
    assert input.dtype == weight.dtype == torch.bfloat16
    assert input.is_contiguous()
    assert weight.is_contiguous()
    assert input_scale is None
    assert weight_scale is None
    if out is None:
        out = torch.empty((m, n), dtype=out_dtype or torch.bfloat16)
    if out.shape != (m, n):
        raise ValueError(f"Output shape mismatch. Expected ({m}, {n}), got {out.shape}")
    left, left_scales = tensorcore.quantise8(input, 128)
    right, right_scales = tensorcore.quantise8_blocks(weight, BLOCK_ROWS_READ)
    return out.copy_(tensorcore.multiply8(left, right, left_scales, right_scales, out.dtype))
