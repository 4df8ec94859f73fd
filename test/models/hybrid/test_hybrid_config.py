"""Configs of the families, in the forms they are published in; what is not supported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flashrt_ros.errors import ConfigError
from flashrt_ros.models.hybrid_config import FULL, LINEAR, HybridConfig
from test.models.hybrid.conftest import SMALL


def test_sizes_are_read() -> None:
    config = HybridConfig.from_json({**SMALL, "rope_theta": 1e7, "partial_rotary_factor": 0.5})
    assert config.layer_types == (LINEAR, LINEAR, LINEAR, FULL)
    assert (config.linear_layers, config.full_layers) == ((0, 1, 2), (3,))
    assert (config.rope_theta, config.rotary_dim) == (1e7, 8)
    assert (config.key_dim, config.value_dim, config.conv_dim) == (32, 64, 128)
    assert config.experts is None


def test_the_text_part_of_a_model_with_vision_is_taken() -> None:
    text = {**SMALL, "model_type": "qwen3_5_text", "eos_token_id": 5}
    text["rope_parameters"] = {
        "rope_type": "default",
        "rope_theta": 1e6,
        "partial_rotary_factor": 0.25,
        "mrope_section": [1, 1, 0],
        "mrope_interleaved": True,
    }
    config = HybridConfig.from_json(
        {"model_type": "qwen3_5", "tie_word_embeddings": True, "text_config": text}
    )
    assert (config.family, config.ties_embeddings, config.rope_theta) == ("qwen3_5", True, 1e6)
    assert config.eos_token_ids == (5,)


def test_experts_are_read_by_layer() -> None:
    config = HybridConfig.from_json(
        {
            **SMALL,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 16,
            "mlp_only_layers": [1],
            "decoder_sparse_step": 1,
        }
    )
    assert config.expert_layers == {0, 2, 3}
    assert config.experts is not None
    assert (config.experts.num_chosen, config.experts.is_fused) == (2, False)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"model_type": "llama"}, "no hybrid model of this type"),
        ({"hidden_size": None}, "'hidden_size' .* a finite number, found None"),
        ({"hidden_size": "64"}, "'hidden_size' .* a finite number"),
        ({"hidden_size": float("inf")}, "'hidden_size' .* a finite number, found inf"),
        ({"hidden_size": 1 << 40}, "'hidden_size' .* a count below"),
        ({"num_hidden_layers": 10**9}, "'num_hidden_layers' .* at most 4096"),
        ({"linear_key_head_dim": 0}, "key_head_dim"),
        ({"rms_norm_eps": -1.0}, "norm_eps"),
        ({"rms_norm_eps": float("nan")}, "'rms_norm_eps' .* a finite number"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"partial_rotary_factor": float("nan")}, "'partial_rotary_factor' .* a finite number"),
        ({"num_hidden_layers": 3.5}, "'num_hidden_layers' .* a count"),
        ({"hidden_act": "gelu"}, "'hidden_act' .* not supported: expected 'silu', found 'gelu'"),
        ({"attention_bias": True}, "'attention_bias'"),
        ({"attn_output_gate": False}, "'attn_output_gate'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "scaling .* found yarn"),
        ({"layer_types": [LINEAR] * 4}, "layers of both types"),
        ({"layer_types": [LINEAR, FULL]}, "another length than num_hidden_layers"),
        ({"layer_types": ["mamba"] * 4}, "'layer_types'"),
        ({"layer_types": [{}] * 4}, "'layer_types'"),
        ({"num_key_value_heads": 3}, "num_heads is no multiple of num_kv_heads"),
        ({"linear_num_value_heads": 3}, "num_value_heads is no multiple of num_key_heads"),
        ({"partial_rotary_factor": 0.07}, "can't rotate"),
        ({"linear_conv_kernel_dim": 1}, "2 taps or more"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"num_experts": 4, "num_experts_per_tok": 5}, "1 to 4, found 5"),
        ({"eos_token_id": "</s>"}, "'eos_token_id'"),
        ({"eos_token_id": -1}, "'eos_token_id'"),
    ],
)
def test_what_is_not_supported_is_named(change: dict[str, object], match: str) -> None:
    more = {"moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}
    with pytest.raises(ConfigError, match=match):
        HybridConfig.from_json({**SMALL, **more, **change})


@pytest.mark.parametrize("text", [None, "{", "[1]", "\xff"])
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "config.json"
    if text is not None:
        path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"config\.json"):
        HybridConfig.from_file(path)


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SMALL), encoding="utf-8")
    assert HybridConfig.from_file(path) == HybridConfig.from_json(SMALL)
