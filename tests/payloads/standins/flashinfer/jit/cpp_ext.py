def get_cuda_path():
    return "/usr/local/cuda"
