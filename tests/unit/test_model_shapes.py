"""The matrix products of known models, and of a config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import FileError
from orchestrator.sweep import load_sweep


def shapes(tmp_path: Path, model: str) -> dict[str, tuple[int, int, int]]:
    path = tmp_path / "s.yaml"
    path.write_text(f"payload: p\nmodel: {model}\n")
    return {
        case.label: (case.params["m"], case.params["n"], case.params["k"]) for case in load_sweep(path).cases
    }


def test_the_products_of_glm_5(tmp_path: Path) -> None:
    assert shapes(tmp_path, "{preset: glm-5, tokens: [64]}") == {
        "glm-5 qkv_a tokens=64": (64, 2624, 6144),
        "glm-5 q_b tokens=64": (64, 16384, 2048),
        "glm-5 kv_b tokens=64": (64, 28672, 512),
        "glm-5 o tokens=64": (64, 6144, 16384),
        "glm-5 gate_up tokens=64": (64, 24576, 6144),
        "glm-5 down tokens=64": (64, 6144, 12288),
        "glm-5 shared expert gate_up tokens=64": (64, 4096, 6144),
        "glm-5 shared expert down tokens=64": (64, 6144, 2048),
        "glm-5 expert gate_up tokens=64 (2 rows each, 13% idle)": (2, 4096, 6144),
        "glm-5 expert down tokens=64 (2 rows each, 13% idle)": (2, 6144, 2048),
    }


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        (
            "deepseek-v3",
            {(2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048)},
        ),
        ("qwen3-235b-a22b", {(9216, 4096), (4096, 8192), (3072, 4096), (4096, 1536)}),
        ("qwen3-30b-a3b", {(5120, 2048), (2048, 4096), (1536, 2048), (2048, 768)}),
        ("llama-3.1-8b", {(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)}),
        ("llama-3.1-70b", {(10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)}),
        ("llama-3.1-405b", {(18432, 16384), (16384, 16384), (106496, 16384), (16384, 53248)}),
    ],
)
def test_n_and_k_of_each_preset(tmp_path: Path, preset: str, expected: set[tuple[int, int]]) -> None:
    found = {(n, k) for _, n, k in shapes(tmp_path, f"{{preset: {preset}, tokens: [8]}}").values()}
    assert expected <= found


def test_tensor_parallelism_splits_heads_and_intermediate_columns(tmp_path: Path) -> None:
    found = shapes(tmp_path, "{preset: llama-3.1-70b, tp: 8, tokens: [16]}")
    assert found == {
        "llama-3.1-70b tp=8 qkv tokens=16": (16, 1280, 8192),
        "llama-3.1-70b tp=8 o tokens=16": (16, 8192, 1024),
        "llama-3.1-70b tp=8 gate_up tokens=16": (16, 7168, 8192),
        "llama-3.1-70b tp=8 down tokens=16": (16, 8192, 3584),
    }


def test_fewer_key_value_heads_than_ranks_are_repeated(tmp_path: Path) -> None:
    found = shapes(tmp_path, "{preset: qwen3-235b-a22b, tp: 8, tokens: [16]}")
    assert found["qwen3-235b-a22b tp=8 qkv tokens=16"] == (16, (8 + 2) * 128, 4096)


def test_an_expert_counts_at_its_mean_rows_to_the_nearest(tmp_path: Path) -> None:
    found = shapes(tmp_path, "{preset: glm-5, tokens: [100, 112, 4096]}")
    experts = {
        label: m for label, (m, _, _) in found.items() if "expert down" in label and "shared" not in label
    }
    assert experts == {
        "glm-5 expert down tokens=100 (3 rows each, 4% idle)": 3,  # 100 · 8 / 256 = 3.125
        "glm-5 expert down tokens=112 (4 rows each, 3% idle)": 4,  # 3.5
        "glm-5 expert down tokens=4096 (128 rows each)": 128,
    }


@pytest.mark.parametrize(
    ("kv_heads", "tp", "message"),
    [
        (6, 4, "does not divide the key/value heads \\(6\\)"),
        (6, 8, "no multiple of the key/value heads \\(6\\)"),
    ],
)
def test_key_value_heads_that_ranks_cannot_share(
    tmp_path: Path, kv_heads: int, tp: int, message: str
) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({**MIXTRAL, "num_attention_heads": 24, "head_dim": 128, "num_key_value_heads": kv_heads})
    )
    with pytest.raises(FileError, match=message):
        shapes(tmp_path, f"{{config: config.json, tokens: [1], tp: {tp}}}")


def test_a_shared_expert_that_is_named_by_its_size(tmp_path: Path) -> None:
    config = {
        "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 5632,
        "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "num_experts": 60,
        "num_experts_per_tok": 4, "decoder_sparse_step": 1,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    name = tmp_path.name  # it names no model_type
    assert shapes(tmp_path, "{config: config.json, tokens: [64]}") == {
        f"{name} qkv tokens=64": (64, 6144, 2048),
        f"{name} o tokens=64": (64, 2048, 2048),
        f"{name} shared expert gate_up tokens=64": (64, 11264, 2048),
        f"{name} shared expert down tokens=64": (64, 2048, 5632),
        f"{name} expert gate_up tokens=64 (4 rows each, 1% idle)": (4, 2816, 2048),
        f"{name} expert down tokens=64 (4 rows each, 1% idle)": (4, 2048, 1408),
    }


def test_equal_products_are_one_case_with_both_labels(tmp_path: Path) -> None:
    found = shapes(tmp_path, "{preset: glm-5, tokens: [16, 32]}")
    assert found[
        "glm-5 expert down tokens=16 (1 row each, 60% idle) / expert down tokens=32 (1 row each, 36% idle)"
    ] == (
        1,
        6144,
        2048,
    )


def test_a_model_multiplies_with_other_axes_and_settings_reach_it(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("payload: p\nmodel: {preset: llama-3.1-8b, tokens: [16]}\nmatrix: {out: [a, b]}\n")
    labels = [case.label for case in load_sweep(path, ["tokens=[32]", "preset=llama-3.1-70b"]).cases]
    assert len(labels) == 8
    assert labels[:2] == ["llama-3.1-70b qkv tokens=32 out=a", "llama-3.1-70b qkv tokens=32 out=b"]


MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip


def test_a_config_json_gives_the_shapes_too(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    found = shapes(tmp_path, "{config: config.json, tokens: [64]}")
    assert found == {
        "mixtral qkv tokens=64": (64, 6144, 4096),
        "mixtral o tokens=64": (64, 4096, 4096),
        "mixtral expert gate_up tokens=64 (16 rows each)": (16, 28672, 4096),
        "mixtral expert down tokens=64 (16 rows each)": (16, 4096, 14336),
    }


def test_the_config_of_a_preset_gives_the_preset(tmp_path: Path) -> None:
    config = {
        "model_type": "deepseek-v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "num_attention_heads": 128, "num_key_value_heads": 128, "n_routed_experts": 256, "n_shared_experts": 1,
        "num_experts_per_tok": 8, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert shapes(tmp_path, "{config: config.json, tokens: [64, 512]}") == shapes(
        tmp_path, "{preset: deepseek-v3, tokens: [64, 512]}"
    )


PYTHIA = {
    "model_type": "gpt_neox", "hidden_size": 2048, "num_attention_heads": 16, "intermediate_size": 8192, "hidden_act": "gelu",
}  # fmt: skip
LLAMA_4 = {
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text", "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 8192, "intermediate_size_mlp": 16384, "num_local_experts": 128, "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 2, "hidden_act": "silu",
    },
}  # fmt: skip


def of_config(tmp_path: Path, config: Any, more: str = "") -> dict[str, tuple[int, int]]:
    """n and k of the products of a config.json at 64 tokens."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = shapes(tmp_path, f"{{config: config.json, tokens: [64]{more}}}")
    return {label.split(" tokens=")[0].split(" ", 1)[1]: (n, k) for label, (_, n, k) in found.items()}


def test_an_mlp_without_a_gate_has_an_up_projection_alone(tmp_path: Path) -> None:
    assert of_config(tmp_path, PYTHIA) == {
        "qkv": (6144, 2048),
        "o": (2048, 2048),
        "up": (8192, 2048),
        "down": (2048, 8192),
    }


@pytest.mark.parametrize(
    ("change", "more", "first"),
    [
        ({"model_type": "phi", "hidden_act": "gelu_new"}, "", "up"),
        ({"model_type": "nemotron", "hidden_act": "relu2"}, "", "up"),
        ({"model_type": "gemma2", "hidden_act": "gelu_pytorch_tanh"}, "", "gate_up"),
        ({"model_type": "phi3", "hidden_act": "silu"}, "", "gate_up"),
        ({"model_type": "of_ours", "hidden_act": "gelu"}, ", gated: true", "gate_up"),
        ({"model_type": "of_ours", "hidden_act": "gelu"}, ", gated: false", "up"),
        ({"model_type": "llama", "hidden_act": "silu"}, ", gated: false", "up"),
        ({"model_type": "of_ours", "hidden_act": None}, "", "gate_up"),
    ],
)
def test_whether_an_mlp_has_a_gate_follows_from_family_activation_and_what_the_sweep_says(
    tmp_path: Path, change: dict[str, Any], more: str, first: str
) -> None:
    found = of_config(tmp_path, {**PYTHIA, **change}, more)
    assert [name for name in found if name.endswith("up")] == [first]
    assert found[first][0] == (16384 if first == "gate_up" else 8192)


def test_llama_4_has_a_dense_mlp_and_a_shared_expert(tmp_path: Path) -> None:
    maverick = {
        "qkv": (7168, 5120),
        "o": (5120, 5120),
        "gate_up": (32768, 5120),
        "down": (5120, 16384),
        "shared expert gate_up": (16384, 5120),
        "shared expert down": (5120, 8192),
        "expert gate_up": (16384, 5120),
        "expert down": (5120, 8192),
    }
    equal = {"shared expert gate_up": "expert gate_up", "shared expert down": "expert down"}
    found = of_config(tmp_path, LLAMA_4)
    assert found == maverick
    text = {**LLAMA_4["text_config"], "interleave_moe_layer_step": 1, "num_local_experts": 16}  # type: ignore[dict-item]
    scout = of_config(tmp_path, {**LLAMA_4, "text_config": text})
    assert set(maverick) - set(scout) == {"gate_up", "down"}
    assert all(scout[shared] == scout[routed] for shared, routed in equal.items())
    text["moe_layers"], text["num_hidden_layers"] = [0, 1, 2], 4
    assert of_config(tmp_path, {**LLAMA_4, "text_config": text}) == maverick


def test_dense_layers_beside_experts_are_counted_where_there_are_some(tmp_path: Path) -> None:
    moe = {**MIXTRAL, "model_type": "qwen3_moe", "moe_intermediate_size": 768}
    for change, dense in (
        ({"decoder_sparse_step": 1}, False),
        ({"decoder_sparse_step": 1, "mlp_only_layers": [0]}, True),
        ({"first_k_dense_replace": 0}, False),
        ({"first_k_dense_replace": 0, "moe_layer_freq": 2}, True),
        ({"first_k_dense_replace": 3}, True),
    ):
        assert ("down" in of_config(tmp_path, {**moe, **change})) == dense, change


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {**PYTHIA, "model_type": "of_ours"},
            r"does not tell whether its MLP has a gate \(model_type of_ours, gelu\): say `gated: true` or",
        ),
        ({**MIXTRAL, "model_type": "jamba"}, r"no plain attention with an MLP \(model_type jamba\)"),
        ({**MIXTRAL, "mamba_d_state": 16}, r"no plain attention with an MLP \(mamba_d_state\)"),
        ({**MIXTRAL, "layer_types": ["linear_attention", "full_attention"]}, r"\(layer_types\)"),
        ({**MIXTRAL, "shared_intermediate_size": 16}, r"not understood \(shared_intermediate_size\)"),
        ({**MIXTRAL, "expert_layer_period": 2}, r"not understood \(expert_layer_period\)"),
        (
            {**PYTHIA, "model_type": "ernie4_5_moe", "moe_num_experts": 64},
            r"not understood \(moe_num_experts\): write its shapes as an axis of `matrix`",
        ),
        (
            {**PYTHIA, "num_attention_heads": 3},
            r"hidden_size \(2048\) is no multiple of num_attention_heads \(3\)",
        ),
        ("nope", "is not JSON"),
        ([1], "is not a model's config.json"),
        ({"hidden_size": 3}, "has no num_attention_heads"),
        ({**MIXTRAL, "hidden_size": "big"}, "hidden_size is 'big', not a size"),
        ({**MIXTRAL, "num_attention_heads": 0}, "num_attention_heads is 0, not a size"),
        ({**MIXTRAL, "intermediate_size": 0}, "intermediate_size is 0, not a size"),
        ({**MIXTRAL, "num_experts_per_tok": 0}, "num_experts_per_tok is 0, not a size"),
        ({**MIXTRAL, "num_experts_per_tok": 9}, "num_experts_per_tok is 9, but there are 8 experts"),
    ],
)
def test_a_config_that_is_none_is_refused(tmp_path: Path, config: Any, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    with pytest.raises(FileError, match=message) as caught:
        shapes(tmp_path, "{config: config.json, tokens: [1]}")
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("{preset: glm-5}", "model.tokens is missing"),
        ("{preset: glm-5, tokens: []}", "model.tokens"),
        ("{preset: glm-5, tokens: [0]}", "model.tokens.0"),
        ("{tokens: [1]}", "needs `preset` or `config`"),
        ("{preset: glm-5, tokens: [1], gated: false}", "takes `gated` only with `config`"),
        ("{preset: glm-5, tokens: [1], tp: 0}", "model.tp"),
        ("{config: gone.json, tokens: [1]}", "no such model config"),
    ],
)
def test_a_model_that_is_none_is_refused(tmp_path: Path, model: str, message: str) -> None:
    with pytest.raises(FileError, match=message):
        shapes(tmp_path, model)
