"""The custom all-reduce with the signatures of sglang-kernel 0.4.2, over torch's own process group."""

from flashinfer import comm

init_custom_ar = comm.vllm_init_custom_ar
register_buffer = comm.vllm_register_buffer
dispose = comm.vllm_dispose
meta_size = comm.vllm_meta_size
get_graph_buffer_ipc_meta = comm.vllm_get_graph_buffer_ipc_meta
register_graph_buffers = comm.vllm_register_graph_buffers


def all_reduce(fa, inp, out, reg_buffer, reg_buffer_sz_bytes):
    comm.vllm_all_reduce(fa, inp, out, reg_buffer, reg_buffer_sz_bytes, 36)
