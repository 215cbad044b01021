"""What the GEMM payloads share: C[m, n] = A[m, k] · B[n, k]ᵀ, its operands, its cost, and the `Call` of a backend.

FLOPs are 2·m·n·k (a multiplication and an addition for each product: LAPACK Working Note 41, table for xGEMM). Bytes are
each operand once and the output once, whatever a kernel reads twice.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, Mapping

from . import nvfp4_torch
from .declare import Call, Unsupported
from .device import Device
from .operands import Inputs, Operand

# A product of this many multiplications takes numpy about a minute; beyond, it is no benchmark.
MAX_NUMPY_PRODUCTS = 1 << 38

REFERENCE = "product of the dequantised operands, float32"
REFERENCE_16_BIT = "product of the operands, float32"


class Gemm:
    """The operands of one case and what derives from them; each is made once and then shared by all backends.

    `bits` names the number format for `inputs: random_bits`; k must be a multiple of `k_multiple`. With `pad_m`, zeros
    fill the rows of A up to a multiple of it: `rows` is what kernels see, `m` what counts.
    """

    bits = "bf16"
    k_multiple = 1
    limits: Mapping[str, float] = {}

    def __init__(self, params: Mapping[str, Any], device: Device) -> None:
        self.m, self.n, self.k = (int(params[name]) for name in ("m", "n", "k"))
        pad_m = int(params.get("pad_m", 1))
        if min(self.m, self.n, self.k, pad_m) < 1 or self.k % self.k_multiple:
            raise ValueError(
                "m, n, k and pad_m must be positive, and k a multiple of {}".format(self.k_multiple)
            )
        self.rows = -(-self.m // pad_m) * pad_m
        self.out_dtype = str(params.get("out_dtype", "bfloat16"))
        self.device = device
        self.flops = 2.0 * self.m * self.n * self.k
        self._inputs = Inputs.parse(str(params.get("inputs", "realistic")))
        seed = 2 * int(params.get("seed", 0))
        self._a = Operand("a", self.m, self.k, seed, self.bits, optional=True)
        self._b = Operand("b", self.n, self.k, seed + 1, self.bits)
        self._made: Dict[Any, Any] = {}
        # Made here, so that no backend's compile time contains it.
        self.tensors() if "torch" in sys.modules else self.arrays()

    def once(self, name: Any, make: Callable[[], Any]) -> Any:
        """`make()` at the first call for `name`, the same value at later ones."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def tensors(self) -> Any:
        """(a, b) as bfloat16 tensors on the device; on a CPU the same values as `arrays` gives."""

        def make() -> Any:
            place = self.device.torch_device
            a = self._a.tensor(self._inputs, place)
            if self.rows > self.m:
                padded = a.new_zeros((self.rows, self.k))
                padded[: self.m] = a
                a = padded
            return a, self._b.tensor(self._inputs, place)

        return self.once("tensors", make)

    def arrays(self) -> Any:
        """(a, b) as numpy float32 arrays that hold bfloat16 values."""
        import numpy as np

        def make() -> Any:
            if "tensors" in self._made:
                return tuple(x.float().cpu().numpy() for x in self.tensors())
            a = np.zeros((self.rows, self.k), np.float32)
            a[: self.m] = self._a.array(self._inputs)
            return a, self._b.array(self._inputs)

        return self.once("arrays", make)

    def torch_dtype(self) -> Any:
        """`out_dtype` as torch has it."""
        import torch

        return getattr(torch, self.out_dtype)

    def make_out(self) -> Any:
        """A fresh output (rows, n)."""
        import torch

        return torch.empty((self.rows, self.n), dtype=self.torch_dtype(), device=self.device.torch_device)

    def precision_16(self) -> str:
        """The peak that a product in the output's own 16-bit type is held against."""
        return "bf16" if self.out_dtype == "bfloat16" else "fp16"

    def bytes_moved(
        self, bytes_per_element: float, bytes_per_output: float = 2.0, scale_bytes: float = 0.0
    ) -> float:
        """Both operands once, their scales, and the output; of the m rows that count."""
        return (
            (self.m + self.n) * self.k * bytes_per_element + scale_bytes + bytes_per_output * self.m * self.n
        )

    def call(self, run: Callable[[Any, Any], Any], inputs: Any, **more: Any) -> Call:
        """The `Call` of a kernel on the device; `reference` and what else is particular to it come in `more`."""
        known: Dict[str, Any] = {
            "float_reference": lambda: self.once(
                "float product", lambda: nvfp4_torch.product(*self.tensors())
            ),
            "reference_name": REFERENCE,
            "limits": self.limits,
            "flops": self.flops,
        }
        return Call(run=run, inputs=inputs, **{**known, **self._padding(more)})

    def numpy_call(self, run: Callable[[Any, Any], Any], inputs: Any, **more: Any) -> Call:
        """The `Call` of a float32 product in numpy."""
        import numpy as np

        if self.rows * self.n * self.k > MAX_NUMPY_PRODUCTS:
            raise Unsupported("m·n·k is above 2^38: too large for the numpy reference")

        def float_product() -> Any:
            left, right = self.arrays()
            return left @ right.T

        known: Dict[str, Any] = {
            "make_out": lambda: np.empty((self.rows, self.n), np.float32),
            "float_reference": float_product,
            "reference_name": REFERENCE,
            "limits": self.limits,
            "flops": self.flops,
            "on_cpu": True,
        }
        return Call(run=run, inputs=inputs, **{**known, **self._padding(more)})

    def _padding(self, more: Mapping[str, Any]) -> Dict[str, Any]:
        if self.rows == self.m:
            return dict(more)
        return {**more, "extra": {**more.get("extra", {}), "padded_rows": self.rows}}
