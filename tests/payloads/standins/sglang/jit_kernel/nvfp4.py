"""The NVFP4 functions of sglang 0.5.10 to 0.5.15, which have the signatures and the checks of sgl-kernel's."""

from sgl_kernel import cutlass_scaled_fp4_mm, scaled_fp4_quant

__all__ = ["cutlass_scaled_fp4_mm", "scaled_fp4_quant"]
