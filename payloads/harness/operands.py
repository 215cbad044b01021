"""The operands of a case, bfloat16 values in a matrix (rows, k).

| `inputs`             | values                                                                                       |
|----------------------|----------------------------------------------------------------------------------------------|
| `realistic`          | normal, times powers of two that differ between blocks of 16 along k (2⁻⁴ to 2³), between rows |
|                      | (½ to 2) and between tiles of 128×128 (¼ to 2), so that no scale can stand in for another     |
| `random_bits`        | every code of the format equally likely, NaN left out: the most switching, the highest power  |
| `file:PATH`          | the tensors `a` and `b` (or `x`) of a `.safetensors` file on the host                          |
| `file:PATH#TENSOR`   | the same, with the last operand under that name: a weight of a checkpoint                      |

With operands of like magnitude a wrong scale layout still gives a cosine near 0.9; with the realistic ones it does not.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Callable, Dict, Optional

from . import e4m3, nvfp4, safetensors

BLOCK = 16
TILE = 128


@dataclass(frozen=True)
class Inputs:
    """Where operands come from: `kind` is `realistic`, `random_bits` or `file`."""

    kind: str = "realistic"
    path: str = ""
    tensor: str = ""

    @classmethod
    def parse(cls, text: str) -> "Inputs":
        """From the parameter `inputs`. Raises ValueError."""
        if text in ("realistic", "random_bits"):
            return cls(text)
        kind, separator, rest = text.partition(":")
        path, _, tensor = rest.partition("#")
        if kind == "file" and separator and path:
            return cls(kind, os.path.expanduser(path), tensor)
        raise ValueError(
            "inputs is {!r}: known are realistic, random_bits and file:PATH[#TENSOR]".format(text)
        )


@dataclass(frozen=True)
class Operand:
    """One matrix to make. `bits` names the format of random bits (`bf16`, `fp8`, `int8`, `nvfp4`); `name` is what a file
    calls it, and `optional` says that it may be missing there (realistic values take its place)."""

    name: str
    rows: int
    k: int
    seed: int
    bits: str
    optional: bool = False

    def array(self, inputs: Inputs) -> Any:
        """As float32 in numpy. Raises ValueError and OSError for a file that does not hold it."""
        found = None
        if inputs.kind == "random_bits":
            found = _RANDOM_BITS[self.bits](self.rows, self.k, self.seed)
        elif inputs.kind == "file":
            found = self._from_file(inputs)
        return realistic(self.rows, self.k, self.seed) if found is None else found

    def tensor(self, inputs: Inputs, device: str) -> Any:
        """As bfloat16 on a torch device: realistic values are made there, unless it is the CPU, which gets `array`'s."""
        import torch

        if inputs.kind == "realistic" and device != "cpu":
            return realistic_on(device, self.rows, self.k, self.seed)
        return torch.from_numpy(self.array(inputs)).to(device=device, dtype=torch.bfloat16)

    def _from_file(self, inputs: Inputs) -> Optional[Any]:
        name = inputs.tensor if inputs.tensor and not self.optional else self.name
        found = safetensors.read(inputs.path, name)
        if found is None:
            if self.optional:
                return None
            raise ValueError("{} has no tensor {!r}".format(inputs.path, name))
        if found.shape != (self.rows, self.k):
            raise ValueError(
                "{}: {} is {}, the case needs {}".format(inputs.path, name, found.shape, (self.rows, self.k))
            )
        return _finite(found, "{}: {}".format(inputs.path, name))


def _finite(found: Any, what: str) -> Any:
    """Rounded to bfloat16. Raises ValueError where that is not a number: nothing could be compared with its product."""
    import numpy as np

    rounded = nvfp4.round_to_bfloat16(found)
    bad = int((~np.isfinite(found)).sum()) or int((~np.isfinite(rounded)).sum())
    if bad:
        raise ValueError(
            "{} has {} values that are NaN, infinite or too large for bfloat16".format(what, bad)
        )
    return rounded


def realistic(rows: int, k: int, seed: int) -> Any:
    """Values as in the table above, float32 that bfloat16 holds."""
    import numpy as np

    random = np.random.default_rng(seed)
    blocks, tiles = -(-k // BLOCK), (-(-rows // TILE), -(-k // TILE))
    exponents = random.integers(-4, 4, size=(rows, blocks)) + random.integers(-1, 2, size=(rows, 1))
    of_tile = random.integers(-2, 2, size=tiles)
    exponents += of_tile[np.arange(rows)[:, None] // TILE, np.arange(blocks)[None, :] * BLOCK // TILE]
    magnitudes = np.ldexp(np.float32(1), exponents).repeat(BLOCK, axis=1)[:, :k]
    return nvfp4.round_to_bfloat16(random.standard_normal((rows, k), dtype=np.float32) * magnitudes)


def realistic_on(device: str, rows: int, k: int, seed: int) -> Any:
    """As `realistic` in kind (not in the very numbers): a bfloat16 tensor made on `device`."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)

    def integers(low: int, high: int, *size: int) -> Any:
        return torch.randint(low, high, size, generator=generator, device=device)

    blocks, tiles = -(-k // BLOCK), (-(-rows // TILE), -(-k // TILE))
    exponents = integers(-4, 4, rows, blocks) + integers(-1, 2, rows, 1)
    row = torch.arange(rows, device=device)[:, None]
    block = torch.arange(blocks, device=device)[None, :]
    exponents += integers(-2, 2, *tiles)[row // TILE, block * BLOCK // TILE]
    ones = torch.ones(exponents.shape, dtype=torch.float32, device=device)
    magnitudes = torch.ldexp(ones, exponents).repeat_interleave(BLOCK, dim=1)[:, :k]
    x = torch.randn((rows, k), generator=generator, device=device, dtype=torch.float32)
    return (x * magnitudes).to(torch.bfloat16)


def _bf16_bits(rows: int, k: int, seed: int) -> Any:
    """Sign and mantissa at random, and exponents from 2⁻⁸ to 2⁷: with all of them, sums would overflow."""
    import numpy as np

    drawn = np.random.default_rng(seed).integers(0, 1 << 12, size=(rows, k), dtype=np.uint32)
    sign, exponent, mantissa = drawn >> 11, (drawn >> 7) & 15, drawn & 127
    return ((sign << 31) | ((exponent + 119) << 23) | (mantissa << 16)).view(np.float32)


def _fp8_bits(rows: int, k: int, seed: int) -> Any:
    """Codes of e4m3. The first of every 128 is the largest, so that quantising, by whatever blocks, gives the codes back."""
    import numpy as np

    codes = np.random.default_rng(seed).integers(0, 256, size=(rows, k), dtype=np.uint8)
    x = e4m3.decode(np.where((codes & 127) == 127, codes - 1, codes))
    x[:, ::TILE] = e4m3.MAX
    return x * np.float32(2.0**-8)  # a power of two, which leaves the codes alone and fits sums into float16


def _int8_bits(rows: int, k: int, seed: int) -> Any:
    """Codes from −127 to 127; the first of each row is the largest, so that quantising rows gives the codes back."""
    import numpy as np

    x = np.random.default_rng(seed).integers(-127, 128, size=(rows, k)).astype(np.float32)
    x[:, 0] = 127
    return x * np.float32(2.0**-7)


def _nvfp4_bits(rows: int, k: int, seed: int) -> Any:
    """Codes of E2M1 under block scales that are powers of two; the first of each block is the largest."""
    import numpy as np

    random = np.random.default_rng(seed)
    blocks = -(-k // BLOCK)
    codes = random.integers(0, 16, size=(rows, blocks, BLOCK))
    exponents = random.integers(-4, 4, size=(rows, blocks, 1))
    codes[:, :, 0], exponents[0, 0] = 7, 3
    values = np.array(nvfp4.E2M1_VALUES, np.float32)[codes & 7] * np.where(codes & 8, -1, 1)
    return np.ldexp(values.astype(np.float32), exponents).reshape(rows, -1)[:, :k]


_RANDOM_BITS: Dict[str, Callable[[int, int, int], Any]] = {
    "bf16": _bf16_bits,
    "fp8": _fp8_bits,
    "int8": _int8_bits,
    "nvfp4": _nvfp4_bits,
}
