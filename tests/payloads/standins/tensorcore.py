"""What a tensor core does with memory, worked out from the layouts' definitions alone: FP4, and 8-bit codes with scales.

Written apart from the harness on purpose: it indexes memory by the offset formula and rounds by searching the nearest
value, so that the harness's own reference cannot agree with it by sharing a mistake.
"""

import torch

VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def offsets(rows, columns):
    """Where scale (r, c) lies in memory, (rows, columns) int64."""
    tiles = (columns + 3) // 4
    r = torch.arange(rows)[:, None]
    c = torch.arange(columns)[None, :]
    return ((r // 128) * tiles + c // 4) * 512 + (r % 32) * 16 + ((r % 128) // 32) * 4 + c % 4


def padded(rows, columns):
    return (rows + 127) // 128 * 128, (columns + 3) // 4 * 4


def quantise(x, global_scale):
    """(codes (rows, k/2) uint8, scales in rows (rows, k/16) uint8) of a bf16 or fp16 tensor."""
    assert x.dtype in (torch.bfloat16, torch.float16), x.dtype
    assert global_scale.dtype == torch.float32
    assert global_scale.numel() == 1
    rows, k = x.shape
    blocks = x.float().reshape(rows, k // 16, 16)
    scales = (blocks.abs().amax(2) * (global_scale / 6.0)).clamp(max=448.0).to(torch.float8_e4m3fn)
    factor = torch.where(scales.float() == 0, torch.zeros(()), global_scale / scales.float())
    scaled = (blocks * factor[:, :, None]).reshape(rows, k)
    distance = (scaled.abs()[:, :, None] - VALUES).abs()
    codes = distance.argmin(2).to(torch.uint8)
    codes |= (scaled < 0).to(torch.uint8) << 3
    return codes[:, 0::2] | (codes[:, 1::2] << 4), scales.view(torch.uint8)


def swizzled(scales):
    rows, columns = scales.shape
    memory = torch.zeros(padded(rows, columns), dtype=torch.uint8)
    memory.view(-1)[offsets(rows, columns)] = scales
    return memory


def multiply(a, b, a_scales, b_scales, alpha, dtype):
    """alpha · A · Bᵀ of codes (m, k/2) and (n, k/2) whose scales are read where a tensor core would."""
    assert alpha.dtype == torch.float32
    assert alpha.numel() == 1

    def operand(codes, scale_memory):
        rows, half = codes.shape
        nibbles = torch.stack([codes & 15, codes >> 4], dim=2).reshape(rows, 2 * half).long()
        values = VALUES[nibbles & 7] * torch.where(nibbles >= 8, -1.0, 1.0)
        height, width = padded(rows, half // 8)
        memory = scale_memory.reshape(-1)
        assert memory.numel() >= height * width, "reads past the end of the scales"
        factors = memory[offsets(rows, half // 8)].view(torch.float8_e4m3fn).float()
        return values * factors.repeat_interleave(16, dim=1)

    return (operand(a, a_scales) @ operand(b, b_scales).T * alpha).to(dtype)


def memory_of(tensor):
    """The elements in the order they lie in memory, whatever the shape."""
    return tensor.as_strided((tensor.numel(),), (1,))


def multiply8(a, b, a_scales, b_scales, dtype):
    """A · Bᵀ of codes (m, k) and (n, k), each multiplied by its scales, which broadcast or are of blocks of 128."""

    def operand(codes, scales):
        values = codes.double()
        if scales.ndim == 2 and scales.shape[1] not in (1, codes.shape[1]):
            scales = scales.repeat_interleave(128, dim=1)[:, : codes.shape[1]]
        if scales.ndim == 2 and scales.shape[0] not in (1, codes.shape[0]):
            scales = scales.repeat_interleave(128, dim=0)[: codes.shape[0]]
        return values * scales.double()

    return (operand(a, a_scales) @ operand(b, b_scales).T).to(dtype)


def quantise8_blocks(x, rows_read):
    """(e4m3 codes, float32 scales (n/128, k/128)) of blocks of 128×128, whose largest element is looked for in the first
    `rows_read` rows of each: 128 is right."""
    n, k = x.shape
    down = -(-n // 128)
    padded = torch.zeros((down * 128, k))
    padded[:n] = x.float()
    blocks = padded.reshape(down, 128, k // 128, 128)
    largest = blocks[:, :rows_read].abs().amax((1, 3)).clamp(min=1e-10)
    codes = (blocks * (448.0 / largest)[:, None, :, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
    return codes.reshape(down * 128, k)[:n], largest * (1 / 448.0)


def quantise8(x, group):
    """(e4m3 codes, float32 scales (m, k/group)) of groups along k, as a kernel does it: times a reciprocal."""
    rows, k = x.shape
    blocks = x.float().reshape(rows, k // group, group)
    largest = blocks.abs().amax(2).clamp(min=1e-10)
    codes = (blocks * (448.0 / largest)[:, :, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
    return codes.reshape(rows, k), largest * (1 / 448.0)
