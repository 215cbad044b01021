"""The matrix products of one transformer layer, as cases: `model: {preset: glm-5, tp: 8, tokens: [64, 512]}`.

A product is C[m, n] = A[m, k] · B[n, k]ᵀ. Under tensor parallelism of degree `tp` the products that split by head or by
intermediate column have n / tp, those that gather them again k / tp. An expert is counted at the rows it gets on
average, tokens · top-k / experts (to the nearest, at least one); (1 − top-k / experts)^tokens of the experts get none.
Sizes of the presets are those of the models' own config.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from orchestrator.yamlfile import Document, Loc, suggestion

from .axes import Point
from .layer import Latent, Layer
from .model_config import read_config
from .schema import ModelShapes

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
        name, layer = read_config(config, model.gated)
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
    up, columns = ("gate_up", 2) if layer.gated else ("up", 1)
    if layer.dense is not None:
        inner = split(layer.dense, "the intermediate size")
        yield up, columns * inner, layer.hidden, False
        yield "down", layer.hidden, inner, False
    if layer.expert is not None:
        inner = split(layer.expert, "an expert's intermediate size")
        if layer.shared:
            shared = split(layer.shared, "the shared experts' intermediate size")
            yield f"shared expert {up}", columns * shared, layer.hidden, False
            yield "shared expert down", layer.hidden, shared, False
        yield f"expert {up}", columns * inner, layer.hidden, True
        yield "expert down", layer.hidden, inner, True
