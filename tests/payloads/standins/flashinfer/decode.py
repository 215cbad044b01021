"""Decode over a paged cache with the signatures of flashinfer 0.7.4: attention worked out page by page, slot by slot."""

import math

import torch

import flashinfer

from .refusals import BackendSupportedError

RUNS_ON = {"fa3": (90,), "trtllm-gen": (100, 103), "cute-dsl": (100, 103)}


class BatchDecodeWithPagedKVCacheWrapper:
    def __init__(
        self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, use_tensor_cores=False,
        paged_kv_indptr_buffer=None, paged_kv_indices_buffer=None, paged_kv_last_page_len_buffer=None, backend="auto",
        jit_args=None, jit_kwargs=None,
    ):  # fmt: skip
        assert float_workspace_buffer.dtype == torch.uint8
        assert not float_workspace_buffer.any(), "must be zeros for its first use"
        assert kv_layout == "NHD"
        if backend in RUNS_ON and flashinfer.CAPABILITY not in RUNS_ON[backend]:
            raise BackendSupportedError(f"backend '{backend}' is not supported on sm_{flashinfer.CAPABILITY}")
        self._backend = backend
        self.use_tensor_cores = use_tensor_cores or backend in ("trtllm-gen", "cute-dsl")

    @property
    def resolved_backend(self):
        return "fa2" if self._backend == "auto" else self._backend

    def plan(
        self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, *,
        pos_encoding_mode="NONE", window_left=-1, window_right=0, logits_soft_cap=None, q_data_type="float16",
        kv_data_type=None, o_data_type=None, data_type=None, sm_scale=None, rope_scale=None, rope_theta=None,
        non_blocking=True, block_tables=None, seq_lens=None, fixed_split_size=None, disable_split_kv=False,
        q_len_per_req=1, is_causal=None, use_token_head_sf=False,
    ):  # fmt: skip
        for tensor in (indptr, indices, last_page_len):
            assert tensor.dtype == torch.int32
            assert tensor.ndim == 1
        assert len(indptr) == len(last_page_len) + 1
        assert int(indptr[-1]) == len(indices)
        assert int(last_page_len.min()) >= 1
        assert int(last_page_len.max()) <= page_size
        assert num_qo_heads % num_kv_heads == 0
        self._tables = indptr.tolist(), indices.tolist(), last_page_len.tolist()
        self._heads = num_qo_heads, num_kv_heads
        self._shape, self._dtypes = (
            (page_size, num_kv_heads, head_dim),
            (q_data_type, kv_data_type or q_data_type),
        )

    def run(
        self, q, paged_kv_cache, *args, q_scale=None, k_scale=None, v_scale=None, out=None, lse=None, return_lse=False,
        enable_pdl=None, window_left=None, sinks=None, q_len_per_req=None, skip_softmax_threshold_scale_factor=None,
        kv_cache_sf=None,
    ):  # fmt: skip
        bounds, indices, last = self._tables
        heads, kv_heads = self._heads
        assert (q.dtype, paged_kv_cache.dtype) == self._dtypes
        assert q.shape == (len(last), heads, self._shape[2])
        assert paged_kv_cache.shape[1:] == (2, *self._shape)
        assert q.is_contiguous()
        assert paged_kv_cache.is_contiguous()
        out = torch.empty_like(q) if out is None else out
        assert out.shape == q.shape
        assert out.dtype == q.dtype
        page_size = self._shape[0]
        for request in range(len(last)):
            pages = indices[bounds[request] : bounds[request + 1]]
            length = (len(pages) - 1) * page_size + last[request]
            where = (
                [pages[token // page_size] for token in range(length)],
                [t % page_size for t in range(length)],
            )
            for head in range(heads):
                keys, values = (
                    paged_kv_cache[where[0], which, where[1], head // (heads // kv_heads)].double()
                    for which in (0, 1)
                )
                logits = keys @ q[request, head].double() / math.sqrt(self._shape[2])
                out[request, head] = (torch.softmax(logits, 0) @ values).to(q.dtype)
        return out
