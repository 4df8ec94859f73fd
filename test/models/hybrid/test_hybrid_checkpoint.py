"""Checkpoints: names and shapes, files and their index, and every way they can be wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from flashrt_ros.errors import ConfigError, WeightsError
from flashrt_ros.models.hybrid_checkpoint import (
    check_tensors,
    count_parameters,
    expected_tensors,
    random_tensors,
    read_checkpoint,
)
from flashrt_ros.models.hybrid_config import HybridConfig
from flashrt_ros.models.hybrid_lm import HybridLm
from flashrt_ros.models.hybrid_weights import pack
from test.models.hybrid.conftest import SMALL

CONFIG = HybridConfig.from_json(SMALL)
DIGEST_LENGTH = 64


def save(folder: Path, tensors: dict[str, Tensor]) -> None:
    (folder / "config.json").write_text(json.dumps(SMALL), encoding="utf-8")
    safetensors.torch.save_file(tensors, folder / "model.safetensors")


def load(folder: Path) -> HybridLm:
    return HybridLm.load(folder, max_positions=64)


def test_a_checkpoint_is_read_whole(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG, 0)
    save(tmp_path, tensors)
    digest = load(tmp_path).weights_digest()
    assert digest == HybridLm.random(CONFIG, 0, max_positions=64).weights_digest()
    assert digest != HybridLm.random(CONFIG, 1, max_positions=64).weights_digest()
    assert len(digest) == DIGEST_LENGTH


def test_several_files_are_read_by_their_index(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG, 0)
    save(tmp_path, tensors)
    expected = load(tmp_path).weights_digest()
    (tmp_path / "model.safetensors").unlink()
    names = list(tensors)
    where: dict[str, str] = {}
    for at, part in enumerate((names[:20], names[20:])):
        file = f"model-{at}.safetensors"
        safetensors.torch.save_file({name: tensors[name] for name in part}, tmp_path / file)
        where |= dict.fromkeys(part, file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": where}), encoding="utf-8")

    assert load(tmp_path).weights_digest() == expected

    (tmp_path / "model-1.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"model-1.safetensors' .* is missing"):
        load(tmp_path)
    for broken in ("{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": "../a"}}'):
        index.write_text(broken, encoding="utf-8")
        with pytest.raises(WeightsError, match=r"index\.json"):
            load(tmp_path)


def test_vision_and_draft_heads_are_left_out_and_a_wrapper_is_undone(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG, 0)
    published = {
        name.replace("model.", "model.language_model.", 1): value for name, value in tensors.items()
    }
    published |= {"model.visual.patch.weight": torch.ones(2), "mtp.norm.weight": torch.ones(2)}
    safetensors.torch.save_file(published, tmp_path / "model.safetensors")
    assert read_checkpoint(tmp_path).keys() == tensors.keys()


def test_missing_unknown_and_misshapen_tensors_are_named() -> None:
    tensors = random_tensors(CONFIG, 0)
    del tensors["model.layers.1.linear_attn.A_log"]
    tensors["model.layers.9.mlp.up_proj.weight"] = torch.ones(2)
    tensors["lm_head.weight"] = torch.ones(256, 63)
    with pytest.raises(WeightsError) as caught:
        pack(tensors, CONFIG, dtype=torch.float32, device="cpu")
    message = str(caught.value)
    assert "missing: model.layers.1.linear_attn.A_log" in message
    assert "unknown: model.layers.9.mlp.up_proj.weight" in message
    assert "misshapen: lm_head.weight [256, 63] instead of [256, 64]" in message


@pytest.mark.parametrize("dtype", [torch.int8, torch.bool, torch.float8_e4m3fn])
def test_a_quantised_tensor_is_named(dtype: torch.dtype) -> None:
    tensors = random_tensors(CONFIG, 0)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(dtype)
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(WeightsError, match=f"quantised: model.norm.weight {name}"):
        check_tensors(tensors, CONFIG)


def test_tensors_of_several_precisions_are_taken() -> None:
    tensors = random_tensors(CONFIG, 0)
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.bfloat16)
    check_tensors(tensors, CONFIG)


def test_a_long_list_of_tensors_is_cut() -> None:
    with pytest.raises(WeightsError, match="and 44 more"):
        check_tensors({}, CONFIG)
    assert len(expected_tensors(CONFIG)) == 50


def test_a_tied_head_may_be_there_and_need_not() -> None:
    tied = HybridConfig.from_json({**SMALL, "tie_word_embeddings": True})
    tensors = random_tensors(tied, 0)
    assert "lm_head.weight" not in tensors
    weights = pack(tensors, tied, dtype=torch.float32, device="cpu")
    assert weights.head is weights.embedding
    check_tensors({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]}, tied)


def test_damage_is_named(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG, 0)
    tensors["model.norm.weight"][3] = float("nan")
    with pytest.raises(WeightsError, match=r"'model.norm.weight' is damaged"):
        check_tensors(tensors, CONFIG)
    save(tmp_path, random_tensors(CONFIG, 0))
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(WeightsError, match="whole safetensors"):
        load(tmp_path)
    path.unlink()
    with pytest.raises(WeightsError, match="has no weights"):
        load(tmp_path)


def test_parameters_are_counted() -> None:
    assert count_parameters(CONFIG) == sum(
        value.numel() for value in random_tensors(CONFIG, 0).values()
    )


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"max_positions": 0}, "this many positions"),
        ({"max_positions": 64, "chunk_length": 0}, "multiple of 64, found 0"),
        ({"max_positions": 64, "chunk_length": 100}, "multiple of 64, found 100"),
        ({"max_positions": 64, "dtype": torch.float64}, "this dtype"),
    ],
)
def test_a_model_that_no_lane_could_hold_is_refused(options: dict[str, object], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        HybridLm.random(CONFIG, 0, **options)  # type: ignore[arg-type]
