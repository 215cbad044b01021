"""A layer's sizes from a Hugging Face config.json.

A config.json names sizes and not what is done with them. What is not known here is refused: products of another model
than the named one would be measured without a word.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from orchestrator.errors import FileError
from orchestrator.yamlfile import read_text

from .layer import Latent, Layer

PLAIN = {
    "apertus", "arcee", "bert", "camembert", "electra", "gpt_neox", "gpt_neox_japanese", "nemotron", "persimmon", "phi",
    "roberta", "starcoder2", "xlm-roberta",
}  # fmt: skip
"""Families (`model_type`) whose MLP has no gate: up, activation, down."""

GATED = {"bitnet", "gemma", "gemma2", "gemma3", "gemma3_text", "gpt_oss", "modernbert"}
"""Families with a gate whose activation does not tell: GELU, squared ReLU."""

OTHER_LAYERS = {
    "bamba", "falcon_h1", "falcon_mamba", "gemma3n", "gemma3n_text", "granitemoehybrid", "jamba", "kimi_linear", "lfm2",
    "lfm2_moe", "mamba", "mamba2", "minimax", "nemotron_h", "plamo2", "qwen3_next", "recurrent_gemma", "rwkv", "zamba",
    "zamba2",
}  # fmt: skip
"""Families with layers that are not attention and an MLP: recurrences, convolutions, embeddings of their own."""

_OTHER_LAYERS_KEY = re.compile(
    r"(mamba|ssm)_.*|linear_(num|key|value|conv)_.*|attn_output_gate|layers_block_type|hybrid_override_pattern"
)
_OTHER_LAYER = re.compile(r"linear|conv|mamba|recurrent")
_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts")
_TOP_K = ("num_experts_per_tok", "experts_per_token")
_SHARED = ("n_shared_experts", "shared_expert_intermediate_size")
_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")
_INSTEAD = "write its shapes as an axis of `matrix`"


def read_config(path: Path, gated: bool | None = None) -> tuple[str, Layer]:
    """Name and sizes. `gated` overrules what the file says, or does not say, of a gate. Raises `FileError`."""
    found = _Config(path)
    model_type = str(found.get("model_type") or "")
    found.refuse_other_layers(model_type)
    layer = Layer(
        **found.attention(),
        **(found.llama4() if model_type in ("llama4", "llama4_text") else found.mlps()),
        gated=found.is_gated(model_type) if gated is None else gated,
    )
    if layer.top_k > layer.experts:
        raise found.error(f"{_TOP_K[0]} is {layer.top_k}, but there are {layer.experts} experts")
    return model_type or path.absolute().parent.name or "model", layer


class _Config:
    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            values = json.loads(read_text(path, "model config"))
        except ValueError as exc:
            raise self.error(f"is not JSON: {exc}") from None
        if not isinstance(values, dict):
            raise self.error("is not a model's config.json (a JSON object)")
        text = values.get("text_config")
        self._values: dict[str, Any] = {**values, **text} if isinstance(text, dict) else values

    def error(self, message: str) -> FileError:
        return FileError(message, path=self._path)

    def get(self, name: str) -> Any:
        return self._values.get(name)

    def size(self, *names: str, default: int | None = None) -> int:
        """The first of these that is there; positive, or 0 where there is a default."""
        for name in names:
            value = self.get(name)
            if value is not None:
                if type(value) is not int or value < (default is None):
                    raise self.error(f"{name} is {value!r}, not a size")
                return int(value)
        if default is None:
            raise self.error(f"has no {' or '.join(names)}")
        return default

    def refuse_other_layers(self, model_type: str) -> None:
        keys = [key for key, value in self._values.items() if value and _OTHER_LAYERS_KEY.fullmatch(key)]
        if _OTHER_LAYER.search(str(self.get("layer_types"))):
            keys.append("layer_types")
        if model_type in OTHER_LAYERS or keys:
            why = f"model_type {model_type}" if model_type in OTHER_LAYERS else ", ".join(keys[:3])
            raise self.error(f"has layers that are no plain attention with an MLP ({why}): {_INSTEAD}")

    def is_gated(self, model_type: str) -> bool:
        """A file that tells neither family nor activation counts as of the usual kind, with a gate."""
        if model_type in PLAIN or model_type in GATED:
            return model_type in GATED
        activation = next((str(self.get(name)) for name in _ACTIVATIONS if self.get(name)), "silu")
        if re.search(r"silu|swish|glu", activation, re.IGNORECASE):
            return True
        known = f"model_type {model_type or 'none'}, {activation}"
        raise self.error(
            f"does not tell whether its MLP has a gate ({known}): say `gated: true` or `gated: false` beside `config`"
        )

    def attention(self) -> dict[str, Any]:
        hidden, heads = self.size("hidden_size"), self.size("num_attention_heads")
        latent = None
        if self.get("kv_lora_rank") is not None:
            latent = Latent(
                self.size("q_lora_rank", default=0) or None,
                self.size("kv_lora_rank"),
                self.size("qk_nope_head_dim"),
                self.size("qk_rope_head_dim"),
                self.size("v_head_dim"),
            )
        head_dim = self.size("head_dim", default=0)
        if not head_dim and latent is None and hidden % heads:
            raise self.error(
                f"hidden_size ({hidden}) is no multiple of num_attention_heads ({heads}), and there is no head_dim"
            )
        return {
            "hidden": hidden,
            "heads": heads,
            "kv_heads": self.size("num_key_value_heads", default=heads) or heads,
            "head_dim": head_dim or max(1, hidden // heads),
            "latent": latent,
        }

    def mlps(self) -> dict[str, Any]:
        """The dense MLP, and experts as Mixtral, Qwen and DeepSeek name them."""
        experts = self.size(*_EXPERTS, default=0)
        self._refuse_other_experts(experts)
        if not experts:
            return {"dense": self.size("intermediate_size")}
        expert = self.size("moe_intermediate_size", "intermediate_size")
        # with experts in every layer, intermediate_size is theirs or unused
        dense_layers = self.get("moe_intermediate_size") is not None and (
            bool(self.get("mlp_only_layers"))
            or self.size("moe_layer_freq", default=1) > 1
            or (self.get("decoder_sparse_step") != 1 and self.get("first_k_dense_replace") != 0)
        )
        return {
            "dense": self.size("intermediate_size") if dense_layers else None,
            "expert": expert,
            "experts": experts,
            # named as a number of experts of the usual size, or by their size
            "shared": self.size(_SHARED[0], default=0) * expert or self.size(_SHARED[1], default=0),
            "top_k": self.size(*_TOP_K),
        }

    def llama4(self) -> dict[str, Any]:
        """Experts and the one shared expert are of `intermediate_size`, the dense MLP between them of a size of its own."""
        expert = self.size("intermediate_size")
        dense_layers = self.size("interleave_moe_layer_step", default=1) != 1
        listed, layers = self.get("moe_layers"), self.get("num_hidden_layers")
        if isinstance(listed, list) and type(layers) is int:
            dense_layers = len(listed) < layers
        return {
            "dense": self.size("intermediate_size_mlp") if dense_layers else None,
            "expert": expert,
            "experts": self.size("num_local_experts"),
            "shared": expert,
            "top_k": self.size(*_TOP_K),
        }

    def _refuse_other_experts(self, experts: int) -> None:
        """Experts under other names: they would be left out."""
        known = {*_EXPERTS, *_TOP_K, *_SHARED}
        about = "shared" if experts else "experts"
        keys = [
            key
            for key, value in self._values.items()
            if about in key and key not in known and type(value) is int and value > 0
        ]
        keys += [key for key in ("expert_layer_period", "intermediate_size_mlp") if self.get(key)]
        if keys:
            raise self.error(f"has experts that are not understood ({', '.join(keys[:4])}): {_INSTEAD}")
