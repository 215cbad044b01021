"""All-reduces with the signatures of flashinfer 0.7.4, over torch's own process group."""

import torch
import torch.distributed as dist

META_BYTES = 4096
_REGISTERED = {}


class AllReduceFusionPattern:
    kAllReduce = 0


def vllm_meta_size():
    return META_BYTES


def vllm_init_custom_ar(ipc_tensors, rank_data, rank, full_nvlink):
    assert len(ipc_tensors) == dist.get_world_size()
    assert rank == dist.get_rank()
    assert all(isinstance(pointer, int) and pointer for pointer in ipc_tensors)
    assert rank_data.dtype == torch.uint8
    assert isinstance(full_nvlink, bool)
    handle = 7 + len(_REGISTERED)
    _REGISTERED[handle] = None
    return handle


def vllm_register_buffer(fa, fake_ipc_ptrs):
    assert fa in _REGISTERED
    assert len(fake_ipc_ptrs) == dist.get_world_size()
    _REGISTERED[fa] = list(fake_ipc_ptrs)


def vllm_all_reduce(fa, inp, out, reg_buffer, reg_buffer_sz_bytes, num_ctas):
    assert 1 <= num_ctas <= 36
    assert reg_buffer == _REGISTERED[fa][dist.get_rank()]
    size = inp.numel() * inp.element_size()
    if size % 16 or size > reg_buffer_sz_bytes:
        raise RuntimeError("custom allreduce currently requires input length to be multiple of 16 and to fit")
    assert inp.dtype == out.dtype
    assert inp.shape == out.shape
    assert inp.is_contiguous()
    assert out.is_contiguous()
    out.copy_(inp)
    dist.all_reduce(out)


def vllm_get_graph_buffer_ipc_meta(fa):
    return [], []


def vllm_register_graph_buffers(fa, handles, offsets):
    assert len(handles) == len(offsets) == dist.get_world_size()


def vllm_dispose(fa):
    assert _REGISTERED[fa] != "disposed"
    _REGISTERED[fa] = "disposed"


class _Workspace:
    backend = "trtllm"

    def __init__(self, max_token_num, hidden_dim, dtype):
        self.limit, self.dtype, self.destroyed = max_token_num * hidden_dim, dtype, False

    def destroy(self):
        self.destroyed = True


def create_allreduce_fusion_workspace(
    backend="auto", world_size=None, rank=None, max_token_num=None, hidden_dim=None, dtype=None, gpus_per_node=None,
    comm_backend=None, force_oneshot_support=False, group=None, *, top_k=None, rms_eps=None, weight_bias=None,
    routed_scaling_factor=None, include_shared_expert=None, add_residual=None, write_residual_output=None,
    apply_rms_norm=None, output_dtype=None, dynamic_fp8=None, write_norm_output=None, config=None,
):  # fmt: skip
    assert backend == "trtllm"
    assert (world_size, rank) == (dist.get_world_size(), dist.get_rank())
    return _Workspace(max_token_num, hidden_dim, dtype)


def allreduce_fusion(
    input, workspace, pattern, launch_with_pdl=False, trigger_completion_at_end=True, output=None, residual_out=None,
    norm_out=None, quant_out=None, scale_out=None, residual_in=None, rms_gamma=None, rms_eps=1e-6, scale_factor=None,
    layout_code=None, use_oneshot=None, fp32_acc=False, moe_reduction_device_num_experts=None,
    moe_reduction_scale_input=None, moe_reduction_active_experts_token_input=None, moe_reduction_token_input=None,
    expanded_idx_to_permuted_idx=None, expert_scale_factor=None, shared_expert_output=None,
    block_quant_group_size=None, weight_bias=0.0, *, moe_finalize_backend="trtllm",
):  # fmt: skip
    assert pattern == AllReduceFusionPattern.kAllReduce
    assert not workspace.destroyed
    assert input.ndim == 2
    assert input.is_contiguous()
    assert input.dtype == workspace.dtype
    assert input.numel() <= workspace.limit
    output.copy_(input)
    dist.all_reduce(output)
    return output
