"""The FP8 quantisers: they write into outputs of the caller's."""

import tensorcore
import torch

from .gemm import check


def _outputs(input, output_q, output_s):
    check(
        input.is_contiguous() and output_q.is_contiguous() and output_s.is_contiguous(), "must be contiguous"
    )
    check(input.dtype in (torch.bfloat16, torch.float16), "input must be Half or BFloat16")
    check(output_q.dtype == torch.float8_e4m3fn and output_q.shape == input.shape, "output_q does not match")
    check(output_s.dtype == torch.float32, "output_s must be Float32")


def sgl_per_tensor_quant_fp8(input, output_q, output_s, is_static):
    """The largest magnitude is raised in `output_s`, whatever it holds before."""
    _outputs(input, output_q, output_s)
    check(output_s.numel() == 1, "output_s must be one element")
    if not is_static:
        output_s.copy_(torch.maximum(output_s, input.float().abs().max() / 448.0))
    output_q.copy_((input.float() * (1.0 / output_s)).clamp(-448, 448).to(output_q.dtype))


def sgl_per_token_quant_fp8(input, output_q, output_s):
    _outputs(input, output_q, output_s)
    check(input.shape[1] % 4 == 0, "Hidden dimension must be divisible by 4")
    check(output_s.numel() == input.shape[0], "output_s must have a scale for each token")
    scale = input.float().abs().amax(1, keepdim=True) / 448.0
    inverse = torch.where(scale == 0, torch.zeros(()), 1.0 / scale)
    output_s.view(-1, 1).copy_(scale)
    output_q.copy_((input.float() * inverse).clamp(-448, 448).to(output_q.dtype))


def sgl_per_token_group_quant_8bit(
    input,
    output_q,
    output_s,
    group_size,
    eps,
    fp8_min,
    fp8_max,
    scale_ue8m0=False,
    fuse_silu_and_mul=False,
    masked_m=None,
    enable_v2=None,
):
    _outputs(input, output_q, output_s)
    check((fp8_min, fp8_max) == (-448.0, 448.0), "the range of e4m3")
    check(tuple(output_s.shape) == (input.shape[0], input.shape[1] // group_size), "output_s does not match")
    codes, scales = tensorcore.quantise8(input, group_size)
    output_q.copy_(codes)
    output_s.copy_(scales)
