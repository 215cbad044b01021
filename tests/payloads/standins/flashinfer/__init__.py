"""A stand-in with the signatures of flashinfer 0.7.4, on CPU tensors. `mm_fp4` behaves as on sm_120, and `bmm_fp8` with
cuBLAS as anywhere: b's memory is read as (n, k) whatever its strides say, so that a row-major b is multiplied wrong in
silence."""

import enum

import tensorcore
import torch

from . import comm, gemm, grouped_mm
from .autotuner import AutoTuner, autotune
from .decode import BatchDecodeWithPagedKVCacheWrapper
from .gemm import bmm_fp8, mm_bf16, mm_fp8
from .refusals import BackendSupportedError

__all__ = [
    "AutoTuner",
    "BackendSupportedError",
    "BatchDecodeWithPagedKVCacheWrapper",
    "SfLayout",
    "autotune",
    "bmm_fp8",
    "comm",
    "gemm",
    "grouped_mm",
    "mm_bf16",
    "mm_fp4",
    "mm_fp8",
    "nvfp4_quantize",
]

CAPABILITY = 120
RUNS_ON = {
    "cutlass": (100, 103, 120),
    "cudnn": (100, 103, 120),
    "trtllm": (100, 103),
    "cute-dsl": (100, 103, 120),
    "b12x": (120,),
}


class SfLayout(enum.IntEnum):
    layout_128x4 = 0
    layout_8x4 = 1
    layout_linear = 2


def _shuffled_rows(rows):
    """Row r of each 32 goes to place (r % 4)·8 + r // 4."""
    source = torch.empty(rows, dtype=torch.long)
    r = torch.arange(rows)
    source[r // 32 * 32 + (r % 4) * 8 + (r % 32) // 4] = r
    return source


def nvfp4_quantize(
    a,
    a_global_sf,
    sfLayout=SfLayout.layout_128x4,
    do_shuffle=False,
    sf_vec_size=16,
    enable_pdl=None,
    backend="auto",
    per_token_activation=False,
    expanded_idx_to_permuted_idx=None,
    out_scale=None,
    nvfp4_4over6=None,
    *,
    batch_invariant=False,
):
    if CAPABILITY < 100:
        raise BackendSupportedError(f"nvfp4_quantize is not supported on sm_{CAPABILITY}")
    assert backend in ("auto", "cuda", "cute-dsl")
    assert sfLayout == SfLayout.layout_128x4
    assert sf_vec_size == 16
    codes, scales = tensorcore.quantise(a, a_global_sf)
    if not do_shuffle:
        return codes, tensorcore.swizzled(scales)
    rows, columns = scales.shape
    assert rows % 128 == 0
    assert columns % 4 == 0
    order = _shuffled_rows(rows)
    return codes[order], tensorcore.swizzled(scales[order]).reshape(scales.shape)


def mm_fp4(
    a,
    b,
    a_descale,
    b_descale,
    alpha=None,
    out_dtype=torch.bfloat16,
    out=None,
    block_size=16,
    use_8x4_sf_layout=False,
    backend="auto",
    use_nvfp4=True,
    enable_pdl=True,
    *,
    batch_invariant=False,
):
    if backend != "auto" and CAPABILITY not in RUNS_ON.get(backend, ()):
        raise BackendSupportedError(
            f"mm_fp4 does not support backend '{backend}' with capability {CAPABILITY}"
        )
    if a.ndim != 2 or b.ndim != 2:
        raise ValueError(f"mm_fp4 accepts 2d tensors, got {a.shape} and {b.shape}")
    if a.shape[1] != b.shape[0]:
        raise ValueError(
            f"K dimension mismatch in mm_fp4. got a.shape[1] = {a.shape[1]}, b.shape[0] = {b.shape[0]}"
        )
    assert a.dtype == b.dtype == torch.uint8
    assert a.is_contiguous()
    assert a_descale.dtype in (torch.uint8, torch.float8_e4m3fn)
    assert block_size == 16
    assert use_nvfp4
    assert not use_8x4_sf_layout
    if out_dtype not in (torch.bfloat16, torch.float16):
        raise ValueError(f"Unsupported output dtype: {out_dtype}.")
    if backend == "trtllm" and out_dtype != torch.bfloat16:
        raise ValueError(
            f"Unsupported output dtype: {out_dtype}. Only torch.bfloat16 is supported for TRTLLM FP4 GEMM operations."
        )
    if out is None:
        out = torch.empty((a.shape[0], b.shape[1]), dtype=out_dtype)
    assert out.dtype == out_dtype
    assert out.is_contiguous()
    assert tuple(out.shape) == (a.shape[0], b.shape[1])
    k_half, n = b.shape
    codes = tensorcore.memory_of(b).reshape(n, k_half)
    scales = tensorcore.memory_of(b_descale.view(torch.uint8))
    if backend == "trtllm":
        back = torch.argsort(_shuffled_rows(n))
        order = tensorcore.offsets(n, k_half // 8)
        in_rows = scales[order][back]
        codes, scales = codes[back], tensorcore.swizzled(in_rows)
    AutoTuner.get().choose_one("fp4_gemm", [backend], None, [a, b])
    out.copy_(
        tensorcore.multiply(
            a, codes, tensorcore.memory_of(a_descale.view(torch.uint8)), scales, alpha, out_dtype
        )
    )
    return out
