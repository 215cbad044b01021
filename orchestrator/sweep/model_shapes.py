"""The matrix products of one transformer layer, as cases: `model: {preset: glm-5, tp: 8, tokens: [64, 512]}`.

A product is C[m, n] = A[m, k] · B[n, k]ᵀ. Under tensor parallelism of degree `tp` the products that split by head or by
intermediate column have n / tp, those that gather them again k / tp. An expert is counted at the rows it gets on
average, tokens · top-k / experts (to the nearest, at least one); (1 − top-k / experts)^tokens of the experts get none.
Sizes of the presets are those of the models' own config.json.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import FileError
from orchestrator.yamlfile import Document, Loc, read_text, suggestion

from .axes import Point
from .schema import ModelShapes


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
    intermediate size of all shared experts together."""

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

    def rows_each(self, tokens: int) -> int:
        """Rows of an expert on average."""
        return max(1, math.floor(tokens * self.top_k / self.experts + 0.5))

    def idle_share(self, tokens: int) -> float:
        """How many of the experts get no token, on average and all equally likely."""
        return float((1 - self.top_k / self.experts) ** tokens)


PRESETS = {
    "glm-5": Layer(
        6144, 64, latent=Latent(2048, 512, 192, 64, 256),
        dense=12288, expert=2048, experts=256, shared=2048, top_k=8,
    ),
    "deepseek-v3": Layer(
        7168, 128, latent=Latent(1536, 512, 128, 64, 128),
        dense=18432, expert=2048, experts=256, shared=2048, top_k=8,
    ),
    "qwen3-235b-a22b": Layer(4096, 64, kv_heads=4, expert=1536, experts=128, top_k=8),
    "qwen3-30b-a3b": Layer(2048, 32, kv_heads=4, expert=768, experts=128, top_k=8),
    "llama-3.1-8b": Layer(4096, 32, kv_heads=8, dense=14336),
    "llama-3.1-70b": Layer(8192, 64, kv_heads=8, dense=28672),
    "llama-3.1-405b": Layer(16384, 128, kv_heads=8, dense=53248),
}  # fmt: skip


def model_points(document: Document, model: ModelShapes, loc: Loc) -> tuple[Point, ...]:
    """Labelled m, n, k of every product at every number of tokens; equal ones are one case with both labels.

    Raises `FileError` for an unknown preset, an unusable config, and sizes that `tp` does not divide.
    """
    if model.preset is not None:
        name = model.preset
        if name not in PRESETS:
            hint = f"{suggestion(name, PRESETS)}; there are: {', '.join(PRESETS)}"
            raise document.error(f"no model preset {name!r}{hint}", *loc, "preset")
        layer = PRESETS[name]
    else:
        config = Path(document.path).parent / Path(str(model.config)).expanduser()
        name, layer = _read_config(config)
    try:
        products = list(_products(layer, model.tp))
    except ValueError as exc:
        raise document.error(f"model {name}: {exc}", *loc, "tp") from None
    labels: dict[tuple[int, int, int], list[str]] = {}
    for tokens in model.tokens:
        for what, n, k, per_expert in products:
            rows = layer.rows_each(tokens) if per_expert else tokens
            labels.setdefault((rows, n, k), []).append(
                f"{what} tokens={tokens}" + (_of_experts(layer, tokens) if per_expert else "")
            )
    head = name if model.tp == 1 else f"{name} tp={model.tp}"
    return tuple(
        Point(
            {"m": m, "n": n, "k": k}, (f"{head} {' / '.join(dict.fromkeys(whats))}",), (), document.line(*loc)
        )
        for (m, n, k), whats in labels.items()
    )


def _of_experts(layer: Layer, tokens: int) -> str:
    rows, idle = layer.rows_each(tokens), layer.idle_share(tokens)
    return f" ({rows} row{'s' * (rows > 1)} each{f', {idle:.0%} idle' if idle >= 0.005 else ''})"


def _products(layer: Layer, tp: int) -> Iterator[tuple[str, int, int, bool]]:
    """(name, n, k, whether it is an expert's) of each product."""

    def split(size: int, what: str) -> int:
        if size % tp:
            raise ValueError(f"tp: {tp} does not divide {what} ({size})")
        return size // tp

    heads = split(layer.heads, "the attention heads")
    if layer.latent is not None:
        mla = layer.latent
        if mla.q_rank is None:
            yield "q", heads * (mla.nope + mla.rope), layer.hidden, False
            yield "kv_a", mla.kv_rank + mla.rope, layer.hidden, False
        else:
            yield "qkv_a", mla.q_rank + mla.kv_rank + mla.rope, layer.hidden, False
            yield "q_b", heads * (mla.nope + mla.rope), mla.q_rank, False
        yield "kv_b", heads * (mla.nope + mla.value), mla.kv_rank, False
        yield "o", layer.hidden, heads * mla.value, False
    else:
        # fewer key/value heads than ranks: they are repeated, each rank keeps one
        kv_heads = 1 if layer.kv_heads < tp else split(layer.kv_heads, "the key/value heads")
        if tp % layer.kv_heads and layer.kv_heads < tp:
            raise ValueError(f"tp: {tp} is no multiple of the key/value heads ({layer.kv_heads})")
        yield "qkv", (heads + 2 * kv_heads) * layer.head_dim, layer.hidden, False
        yield "o", layer.hidden, heads * layer.head_dim, False
    if layer.dense is not None:
        inner = split(layer.dense, "the intermediate size")
        yield "gate_up", 2 * inner, layer.hidden, False
        yield "down", layer.hidden, inner, False
    if layer.expert is not None:
        inner = split(layer.expert, "an expert's intermediate size")
        if layer.shared:
            shared = split(layer.shared, "the shared experts' intermediate size")
            yield "shared expert gate_up", 2 * shared, layer.hidden, False
            yield "shared expert down", layer.hidden, shared, False
        yield "expert gate_up", 2 * inner, layer.hidden, True
        yield "expert down", layer.hidden, inner, True


def _read_config(path: Path) -> tuple[str, Layer]:
    """Name and sizes from a Hugging Face config.json."""
    try:
        config = json.loads(read_text(path, "model config"))
    except ValueError as exc:
        raise FileError(f"is not JSON: {exc}", path=path) from None
    if not isinstance(config, dict):
        raise FileError("is not a model's config.json (a JSON object)", path=path)
    config = (
        {**config, **config.get("text_config", {})} if isinstance(config.get("text_config"), dict) else config
    )

    def size(*names: str, default: int | None = None) -> int:
        for name in names:
            if config.get(name) is not None:
                value: Any = config[name]
                if type(value) is not int or value < (default is None):
                    raise FileError(f"{name} is {value!r}, not a size", path=path)
                return int(value)
        if default is None:
            raise FileError(f"has no {' or '.join(names)}", path=path)
        return default

    hidden, heads = size("hidden_size"), size("num_attention_heads")
    latent = None
    if config.get("kv_lora_rank") is not None:
        latent = Latent(
            size("q_lora_rank", default=0) or None,
            size("kv_lora_rank"),
            size("qk_nope_head_dim"),
            size("qk_rope_head_dim"),
            size("v_head_dim"),
        )
    experts = size("n_routed_experts", "num_experts", "num_local_experts", default=0)
    expert = size("moe_intermediate_size", "intermediate_size") if experts else None
    # with experts in every layer, intermediate_size is theirs or unused
    all_experts = experts and (
        config.get("moe_intermediate_size") is None or config.get("decoder_sparse_step") == 1
    )
    top_k = size("num_experts_per_tok") if experts else 0
    if top_k > experts:
        raise FileError(f"num_experts_per_tok is {top_k}, but there are {experts} experts", path=path)
    layer = Layer(
        hidden,
        heads,
        kv_heads=size("num_key_value_heads", default=heads) or heads,
        head_dim=size("head_dim", default=0) or max(1, hidden // heads),
        latent=latent,
        dense=None if all_experts else size("intermediate_size"),
        expert=expert,
        experts=experts,
        # named as a number of experts of the usual size, or by their size
        shared=size("n_shared_experts", default=0) * (expert or 0)
        or (size("shared_expert_intermediate_size", default=0) if experts else 0),
        top_k=top_k,
    )
    return str(config.get("model_type") or path.absolute().parent.name or "model"), layer
