"""The grouped GEMM of a mixture-of-experts layer: C[rows of e] = A[rows of e] · B[e]ᵀ for every expert e.

FLOPs are 2·m·n·k over all m rows (LAPACK Working Note 41, table for xGEMM). Bytes are the rows of A and C once, and the
weights of *active* experts once: at decode, few tokens leave most of a large layer's experts idle.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from . import nvfp4_torch, scaled8
from .declare import Call, Unsupported
from .device import Device
from .nvfp4 import Quantised, global_scale_for
from .operands import Inputs, Operand
from .routing import rows_of_experts

SF_ROWS = 128  # scales of NVFP4 lie in tiles of so many rows

# A right kernel has 0.002 to 0.004, whatever the operands' format.
LIMITS = {"min_cosine": 0.9998, "max_rel_error": 0.02}

REFERENCE = "products of the dequantised operands, expert by expert, float32"


class Segment(NamedTuple):
    """Where an expert's rows lie in A and C: from `start` to `end`."""

    expert: int
    start: int
    end: int


class Weights(NamedTuple):
    """All experts' weights: `codes` (experts, n, k) or packed, `scales` (experts, …), `global_scale` of NVFP4."""

    codes: Any
    scales: Any
    global_scale: float = 1.0


class Values(NamedTuple):
    """What a backend's operands stand for, in float32: `rows()` of A, `weight(expert)`; `key` tells them apart."""

    rows: Callable[[], Any]
    weight: Callable[[int], Any]
    key: Any


def of_fp8(a: scaled8.Scaled, b: Weights, group: scaled8.Group) -> Values:
    """The values of FP8 operands; `group` is that of the weights' scales."""

    def weight(expert: int) -> Any:
        return scaled8.dequantise(scaled8.Scaled(b.codes[expert], b.scales[expert], group))

    return Values(lambda: scaled8.dequantise(a), weight, ("fp8", group))


def of_nvfp4(a: Quantised, b: Weights) -> Values:
    """The values of NVFP4 operands."""

    def weight(expert: int) -> Any:
        return nvfp4_torch.dequantise_blocks(b.codes[expert], b.scales[expert]) / b.global_scale

    return Values(lambda: nvfp4_torch.dequantise(a), weight, "nvfp4")


def as_e4m3(scales: Any) -> Any:
    """Bytes as float8_e4m3fn."""
    import torch

    return scales.view(torch.float8_e4m3fn)


def swizzled_weights(b: Weights) -> Any:
    """(experts, n padded to 128, k/16 padded to 4) of float8_e4m3fn, each expert swizzled on its own."""
    import torch

    return as_e4m3(torch.stack([nvfp4_torch.swizzle(scales) for scales in b.scales]))


class Moe:
    """The operands of one case, on the device; each is made once and then shared by all backends."""

    def __init__(self, params: Mapping[str, Any], device: Device) -> None:
        self.device = device
        self.n, self.k = int(params["n"]), int(params["k"])
        self.experts = int(params["experts"])
        self.precision = str(params.get("precision", "fp8"))
        self.out_dtype = str(params.get("out_dtype", "bfloat16"))
        self.seed = int(params.get("seed", 0))
        if min(self.n, self.k) < 1 or self.k % 16:
            raise ValueError("n and k must be positive, and k a multiple of 16")
        self.rows = rows_of_experts(
            str(params.get("routing", "uniform")),
            int(params["tokens"]),
            self.experts,
            int(params.get("top_k", 8)),
            self.seed,
            float(params.get("zipf_exponent", 1.0)),
        )
        self.m = sum(self.rows)
        self.flops = 2.0 * self.m * self.n * self.k
        self._inputs = Inputs.parse("realistic")
        self._made: Dict[Any, Any] = {}
        self.activations()

    @property
    def active(self) -> int:
        """Experts with rows."""
        return sum(1 for rows in self.rows if rows)

    def segments(self, alignment: int = 1) -> List[Segment]:
        """Where each expert's rows lie when they are padded to a multiple of `alignment`; idle experts have none."""
        found, start = [], 0
        for expert, rows in enumerate(self.rows):
            end = start + -(-rows // alignment) * alignment
            found.append(Segment(expert, start, end))
            start = end
        return found

    def once(self, name: Any, make: Callable[[], Any]) -> Any:
        """`make()` at the first call for `name`, the same value at later ones."""
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def activations(self) -> Any:
        """A, (m, k) bfloat16, ordered by expert."""
        operand = Operand("a", self.m, self.k, 2 * self.seed, "bf16")
        return self.once("a", lambda: operand.tensor(self._inputs, self.device.torch_device))

    def expert(self, number: int) -> Any:
        """B[number], (n, k) bfloat16: made when asked for, since all of them may be tens of gigabytes."""
        operand = Operand("b", self.n, self.k, 2 * self.seed + 1 + (number << 20), "bf16")
        return operand.tensor(self._inputs, self.device.torch_device)

    def fp8(self, of_a: scaled8.Group, of_b: scaled8.Group) -> Tuple[scaled8.Scaled, Weights]:
        """A and B as e4m3 with scales by these groups. With WHOLE, one scale serves all experts."""
        import torch

        a = self.once(("a", of_a), lambda: scaled8.quantise(self.activations(), scaled8.E4M3, of_a))

        def weights() -> Weights:
            if of_b == scaled8.WHOLE:
                largest = max(float(self.expert(e).abs().max()) for e in range(self.experts))
                scale = torch.full((), largest / scaled8.LARGEST[scaled8.E4M3], device=a.codes.device)
                codes = [
                    nvfp4_torch.e4m3_encode(self.expert(e).float() / scale).view(torch.float8_e4m3fn)
                    for e in range(self.experts)
                ]
                return Weights(torch.stack(codes), scale.reshape(1, 1).expand(self.experts, 1, 1))
            made = [scaled8.quantise(self.expert(e), scaled8.E4M3, of_b) for e in range(self.experts)]
            return Weights(torch.stack([q.codes for q in made]), torch.stack([q.scales for q in made]))

        return a, self.once(("b", of_b), weights)

    def nvfp4(self) -> Tuple[Quantised, Weights]:
        """A and B as NVFP4; scales in rows, one global scale for A and one for all experts."""
        import torch

        a = self.once("a nvfp4", lambda: nvfp4_torch.quantise(self.activations()))

        def weights() -> Weights:
            largest = max(float(self.expert(e).abs().max()) for e in range(self.experts))
            scale = global_scale_for(largest)
            made = [nvfp4_torch.quantise(self.expert(e), scale) for e in range(self.experts)]
            return Weights(
                torch.stack([q.packed for q in made]), torch.stack([q.scales for q in made]), scale
            )

        return a, self.once("b nvfp4", weights)

    def product(self, values: Values) -> Any:
        """The reference: float32 products of the rows with their experts' weights, (m, n)."""
        import torch

        def make() -> Any:
            a, out = values.rows(), torch.empty((self.m, self.n), device=self.device.torch_device)
            for expert, start, end in self.segments():
                if end > start:
                    out[start:end] = nvfp4_torch.product(a[start:end], values.weight(expert))
            return out

        return self.once(("product", values.key), make)

    def spread(self, x: Any, alignment: int) -> Any:
        """The rows of `x` with zeros between experts, so that each begins at a multiple of `alignment`."""
        padded = x.new_zeros((self.segments(alignment)[-1].end, *x.shape[1:]))
        for (_, start, end), (_, at, _) in zip(self.segments(), self.segments(alignment)):
            padded[at : at + end - start] = x[start:end]
        return padded

    def gathered(self, x: Any, alignment: int) -> Any:
        """The inverse of `spread`."""
        import torch

        parts = [
            x[at : at + end - start]
            for (_, start, end), (_, at, _) in zip(self.segments(), self.segments(alignment))
        ]
        return torch.cat(parts)

    def torch_dtype(self) -> Any:
        """The output's dtype."""
        import torch

        return getattr(torch, self.out_dtype)

    def make_out(self, rows: int = 0) -> Any:
        """An output of `rows` rows (default: m)."""
        import torch

        return torch.empty(
            (rows or self.m, self.n), dtype=self.torch_dtype(), device=self.device.torch_device
        )

    def offsets(self, alignment: int = 1) -> Any:
        """Where experts begin and the last one ends, (experts + 1) int32."""
        import torch

        ends = [0] + [segment.end for segment in self.segments(alignment)]
        return torch.tensor(ends, dtype=torch.int32, device=self.device.torch_device)

    def need_capability(self, known: Sequence[Tuple[int, int]]) -> None:
        """Raises Unsupported on a GPU of another capability."""
        if self.device.capability is not None and self.device.capability not in known:
            names = ", ".join("sm_{}{}".format(*capability) for capability in known)
            raise Unsupported("{} is not among the devices that it runs on: {}".format(self.device.sm, names))

    def alphas(self, a: Quantised, b: Weights, count: int) -> Any:
        """The factor that undoes both global scales, (count,) float32."""
        import torch

        alpha = 1.0 / (a.global_scale * b.global_scale)
        return torch.full((count,), alpha, dtype=torch.float32, device=self.device.torch_device)

    def scales_by_offset(self, a: Quantised, alignment: int) -> Any:
        """A's scales, each expert's swizzled by itself; those of expert i begin at row ⌊(start + i·127) / 128⌋·128, start
        being that of its rows, padded to `alignment`."""
        made = []
        for (_, start, end), (expert, at, _) in zip(self.segments(), self.segments(alignment)):
            if end > start:
                place = (at + expert * (SF_ROWS - 1)) // SF_ROWS * SF_ROWS
                made.append((place, nvfp4_torch.swizzle(a.scales[start:end])))
        out = a.scales.new_zeros((max(place + len(tile) for place, tile in made), made[0][1].shape[1]))
        for place, tile in made:
            out[place : place + len(tile)] = tile
        return out

    def padded_call(self, alignment: int, run: Any, inputs: Any, *cost: float, **more: Any) -> Call:
        """`call` for a backend whose rows are padded to a multiple of `alignment` for each expert."""
        rows = self.segments(alignment)[-1].end
        more["extra"] = {"padded_rows": rows, **more.get("extra", {})}
        more.setdefault("make_out", lambda: self.make_out(rows))
        return self.call(run, inputs, *cost, value=lambda out: self.gathered(out, alignment), **more)

    def call(
        self,
        run: Any,
        inputs: Any,
        bytes_per_element: float,
        scale_bytes: float = 0.0,
        *,
        values: Values,
        **more: Any,
    ) -> Call:
        """The `Call` of a backend whose operands stand for `values`, with this case's cost and what is known of its
        routing."""
        elements = self.active * self.n * self.k + self.m * self.k
        extra = {
            "rows": self.m,
            "active_experts": self.active,
            "idle_share": 1.0 - self.active / self.experts,
            "most_rows": max(self.rows),
            "quantiser": "harness",
        }
        unquantised = Values(self.activations, self.expert, "float")
        known = {
            "flops": self.flops,
            "bytes_moved": elements * bytes_per_element + scale_bytes + 2.0 * self.m * self.n,
            "precision": self.precision,
            "reference": lambda: self.product(values),
            "reference_name": REFERENCE,
            "limits": LIMITS,
            "float_reference": lambda: self.product(unquantised),
            "extra": {**extra, **more.pop("extra", {})},
        }
        return Call(run=run, inputs=inputs, **{**known, **more})
