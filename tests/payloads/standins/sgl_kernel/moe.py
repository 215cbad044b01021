"""The grouped products of sglang-kernel 0.4.2 and sgl-kernel 0.3.21, with their checks."""

import tensorcore
import torch


def fp8_blockwise_scaled_grouped_mm(
    output, a_ptrs, b_ptrs, out_ptrs, a_scales_ptrs, b_scales_ptrs, a, b, scales_a, scales_b, stride_a, stride_b,
    stride_c, layout_sfa, layout_sfb, problem_sizes, expert_offsets, workspace,
):  # fmt: skip
    experts, k, n = b.shape
    for pointers in (a_ptrs, b_ptrs, out_ptrs, a_scales_ptrs, b_scales_ptrs):
        assert pointers.shape == (experts,)
        assert pointers.dtype == torch.int64
    for layout in (layout_sfa, layout_sfb):
        assert layout.shape == (experts, 5)
        assert layout.dtype == torch.int32
    assert problem_sizes.dtype == expert_offsets.dtype == torch.int32
    assert problem_sizes.shape == (experts, 3)
    assert expert_offsets.shape == (experts,), "the starts only, without the end"
    assert a.dtype == b.dtype == torch.float8_e4m3fn
    assert scales_a.dtype == scales_b.dtype == torch.float32
    assert output.dtype in (torch.bfloat16, torch.float16)
    assert a.is_contiguous()
    assert output.is_contiguous()
    assert b.stride() == (n * k, 1, k), "weights (experts, k, n) must be column-major"
    assert scales_a.shape == (a.shape[0], k // 128)
    assert scales_a.is_contiguous()
    assert scales_b.shape == (experts, k // 128, n // 128)
    assert scales_b.transpose(1, 2).is_contiguous()
    assert workspace.dtype == torch.uint8
    assert stride_a.tolist() == stride_b.tolist() == [k] * experts
    assert stride_c.tolist() == [n] * experts
    left = a.float() * scales_a.repeat_interleave(128, dim=1)
    for expert, (start, (rows, of_n, of_k)) in enumerate(
        zip(expert_offsets.tolist(), problem_sizes.tolist(), strict=True)
    ):
        assert (of_n, of_k) == (n, k)
        factors = scales_b[expert].repeat_interleave(128, dim=0).repeat_interleave(128, dim=1)
        weight = b[expert].float() * factors
        output[start : start + rows] = (left[start : start + rows] @ weight).to(output.dtype)


def cutlass_fp4_group_mm(a_fp4, b_fp4, a_blockscale, b_blockscale, alphas, out_dtype, device, params):
    experts, n, half = b_fp4.shape
    assert a_fp4.dtype == b_fp4.dtype == torch.uint8
    assert a_blockscale.dtype == b_blockscale.dtype == torch.float8_e4m3fn
    assert alphas.dtype == torch.float32
    assert alphas.shape == (experts,)
    assert params["ab_strides"].tolist() == [2 * half] * experts
    assert params["c_strides"].tolist() == [n] * experts
    for name in ("problem_sizes", "expert_offsets", "blockscale_offsets"):
        assert params[name].dtype == torch.int32
    out = torch.empty((a_fp4.shape[0], n), device=device, dtype=out_dtype)
    memory = a_blockscale.view(torch.uint8).reshape(-1)
    starts, places = params["expert_offsets"].tolist(), params["blockscale_offsets"].tolist()
    for expert, (start, place, sizes) in enumerate(
        zip(starts, places, params["problem_sizes"].tolist(), strict=True)
    ):
        assert sizes[1:] == [n, 2 * half]
        if sizes[0]:
            scales = memory[place * tensorcore.padded(1, half // 8)[1] :]
            rows = a_fp4[start : start + sizes[0]]
            weights = b_blockscale[expert].view(torch.uint8)
            product = tensorcore.multiply(rows, b_fp4[expert], scales, weights, torch.ones(1), torch.float32)
            out[start : start + sizes[0]] = (product * alphas[expert]).to(out_dtype)
    return out.to(dtype=out_dtype)
