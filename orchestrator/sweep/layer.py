"""Sizes of a transformer layer, as far as its matrix products have them."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention: ranks of the low-rank projections and sizes of a head's pieces."""

    q_rank: int | None
    kv_rank: int
    nope: int
    rope: int
    value: int


@dataclass(frozen=True)
class Layer:
    """Sizes of a model's layer. `kv_heads` and `head_dim` count for grouped attention, `latent` for MLA; `shared` is the
    intermediate size of all shared experts together. `gated`: its MLPs multiply by a gate of the same size (SwiGLU, GeGLU),
    whose columns stand beside those of the up projection."""

    hidden: int
    heads: int
    kv_heads: int = 0
    head_dim: int = 128
    latent: Latent | None = None
    dense: int | None = None
    expert: int | None = None
    experts: int = 0
    shared: int = 0
    top_k: int = 0
    gated: bool = True

    def rows_each(self, tokens: int) -> int:
        """Rows of an expert on average."""
        return max(1, math.floor(tokens * self.top_k / self.experts + 0.5))

    def idle_share(self, tokens: int) -> float:
        """How many of the experts get no token, on average and all equally likely."""
        return float((1 - self.top_k / self.experts) ** tokens)
