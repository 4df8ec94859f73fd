"""A hybrid language model's checkpoint: which tensors it holds, read, checked or drawn."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import safetensors
import torch
from torch import Tensor

from flashrt_ros.errors import WeightsError
from flashrt_ros.models.hybrid_config import LINEAR, HybridConfig

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_IGNORED = ("mtp.", "model.visual.", "visual.")  # draft heads and the vision tower
_WRAPPER = "model.language_model."  # where a model with vision keeps its text part
_MOST_NAMED = 6  # tensors that one message names
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def expected_tensors(config: HybridConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor that a checkpoint must hold, by name."""
    hidden = config.hidden_size
    table: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for at, kind in enumerate(config.layer_types):
        mixer = _linear_tensors(config) if kind == LINEAR else _full_tensors(config)
        part = "linear_attn" if kind == LINEAR else "self_attn"
        mlp = _expert_tensors(config) if at in config.expert_layers else _mlp_tensors(config)
        layer = {
            "input_layernorm.weight": (hidden,),
            **{f"{part}.{name}": shape for name, shape in mixer.items()},
            "post_attention_layernorm.weight": (hidden,),
            **{f"mlp.{name}": shape for name, shape in mlp.items()},
        }
        table |= {f"model.layers.{at}.{name}": shape for name, shape in layer.items()}
    table["model.norm.weight"] = (hidden,)
    if not config.ties_embeddings:
        table["lm_head.weight"] = (config.vocab_size, hidden)
    return table


def count_parameters(config: HybridConfig) -> int:
    """Return how many numbers a checkpoint of this config holds."""
    return sum(math.prod(shape) for shape in expected_tensors(config).values())


def read_checkpoint(folder: Path) -> dict[str, Tensor]:
    """Read the safetensors of a checkpoint: one file, or several with their index.

    Draft heads and a vision tower are left out, and the text part of a model with vision
    gets the names of a text model. Nothing in a file is executed.

    Args:
        folder: Holds ``model.safetensors`` or ``model.safetensors.index.json``.

    Raises:
        WeightsError: A file is missing or damaged.
    """
    tensors: dict[str, Tensor] = {}
    for path in _files(folder):
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118
                    if not name.startswith(_IGNORED):
                        tensors[_plain(name)] = file.get_tensor(name)
        except (safetensors.SafetensorError, OSError) as error:
            raise WeightsError(
                f"weights file '{path}' can't be read", expected="whole safetensors", found=error
            ) from error
    return tensors


def check_tensors(found: Mapping[str, Tensor], config: HybridConfig) -> None:
    """Refuse a checkpoint that is not the config's, before anything is taken from it.

    Raises:
        WeightsError: Tensors are missing, unknown, of another shape or quantised (up to six
            are named), or one holds NaN or Inf.
    """
    expected = expected_tensors(config)
    missing = [name for name in expected if name not in found]
    # Some writers keep a tied head; it is the embedding again.
    tied = {"lm_head.weight"} if config.ties_embeddings else set()
    extra = sorted(found.keys() - expected.keys() - tied)
    misshapen = [
        f"{name} {list(found[name].shape)} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in found and tuple(found[name].shape) != shape
    ]
    # Converted as they are, the steps of a quantised tensor would be taken for its values.
    quantised = [
        f"{name} {str(found[name].dtype).removeprefix('torch.')}"
        for name in expected
        if name in found and found[name].dtype not in _FLOATS
    ]
    problems = [
        f"{what}: {', '.join(names[:_MOST_NAMED])}"
        + (f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else "")
        for what, names in (
            ("missing", missing),
            ("unknown", extra),
            ("misshapen", misshapen),
            ("quantised", quantised),
        )
        if names
    ]
    if problems:
        raise WeightsError(
            "the checkpoint does not fit its config",
            expected=f"the {len(expected)} tensors of {config.family}",
            found="; ".join(problems),
        )
    for name in expected:
        if not bool(torch.isfinite(found[name]).all()):
            raise WeightsError(
                f"tensor '{name}' is damaged", expected="finite values", found="NaN or Inf"
            )


def random_tensors(
    config: HybridConfig, seed: int, *, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> dict[str, Tensor]:
    """Draw a checkpoint whose layers all matter, for tests and benchmarks.

    Args:
        config: Sizes.
        seed: Equal seeds give equal weights on one device.
        dtype: Of every tensor.
        device: Where it is drawn.
    """
    generator = torch.Generator(device).manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, shape in expected_tensors(config).items():
        noise = torch.randn(shape, generator=generator, device=device, dtype=torch.float32)
        tensors[name] = _scaled(name, noise).to(dtype)
    return tensors


def _scaled(name: str, noise: Tensor) -> Tensor:
    if name.endswith("A_log"):  # rates of decay between about 0.1 and 10
        return noise.clamp(-2.0, 2.0)
    if name.endswith("dt_bias"):  # steps so small that a state outlives hundreds of tokens
        return noise.clamp(-2.0, 2.0) - 4.0
    if name.endswith("linear_attn.norm.weight"):
        return 1.0 + 0.1 * noise
    if name.endswith(("q_norm.weight", "k_norm.weight")):  # attention that prefers something
        return 1.0 + 0.1 * noise
    if name.endswith("norm.weight"):
        return 0.1 * noise
    if name.endswith("embed_tokens.weight"):
        return noise
    if name.endswith("conv1d.weight"):
        return 0.5 * noise
    return noise / math.sqrt(noise.shape[-1])


def _linear_tensors(config: HybridConfig) -> dict[str, tuple[int, ...]]:
    hidden, heads = config.hidden_size, config.num_value_heads
    if config.family == "qwen3_next":
        projections: dict[str, tuple[int, ...]] = {
            "in_proj_qkvz.weight": (config.conv_dim + config.value_dim, hidden),
            "in_proj_ba.weight": (2 * heads, hidden),
        }
    else:
        projections = {
            "in_proj_qkv.weight": (config.conv_dim, hidden),
            "in_proj_z.weight": (config.value_dim, hidden),
            "in_proj_b.weight": (heads, hidden),
            "in_proj_a.weight": (heads, hidden),
        }
    return {
        **projections,
        "conv1d.weight": (config.conv_dim, 1, config.conv_width),
        "A_log": (heads,),
        "dt_bias": (heads,),
        "norm.weight": (config.value_head_dim,),
        "out_proj.weight": (hidden, config.value_dim),
    }


def _full_tensors(config: HybridConfig) -> dict[str, tuple[int, ...]]:
    hidden, queries = config.hidden_size, config.num_heads * config.head_dim
    keys = config.num_kv_heads * config.head_dim
    return {
        "q_proj.weight": (2 * queries, hidden),
        "k_proj.weight": (keys, hidden),
        "v_proj.weight": (keys, hidden),
        "o_proj.weight": (hidden, queries),
        "q_norm.weight": (config.head_dim,),
        "k_norm.weight": (config.head_dim,),
    }


def _dense_tensors(prefix: str, hidden: int, width: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}gate_proj.weight": (width, hidden),
        f"{prefix}up_proj.weight": (width, hidden),
        f"{prefix}down_proj.weight": (hidden, width),
    }


def _mlp_tensors(config: HybridConfig) -> dict[str, tuple[int, ...]]:
    return _dense_tensors("", config.hidden_size, config.mlp_width)


def _expert_tensors(config: HybridConfig) -> dict[str, tuple[int, ...]]:
    experts, hidden = config.experts, config.hidden_size
    assert experts is not None
    if experts.is_fused:
        each: dict[str, tuple[int, ...]] = {
            "experts.gate_up_proj": (experts.num_experts, 2 * experts.width, hidden),
            "experts.down_proj": (experts.num_experts, hidden, experts.width),
        }
    else:
        each = {}
        for at in range(experts.num_experts):
            each |= _dense_tensors(f"experts.{at}.", hidden, experts.width)
    return {
        "gate.weight": (experts.num_experts, hidden),
        **each,
        **_dense_tensors("shared_expert.", hidden, experts.shared_width),
        "shared_expert_gate.weight": (1, hidden),
    }


def _plain(name: str) -> str:
    if name.startswith(_WRAPPER):
        return "model." + name.removeprefix(_WRAPPER)
    return name


def _files(folder: Path) -> list[Path]:
    index = folder / _INDEX
    if not index.is_file():
        single = folder / _SINGLE
        if not single.is_file():
            raise WeightsError(
                f"checkpoint '{folder}' has no weights",
                expected=f"{_SINGLE} or {_INDEX}",
                fix="name the folder that a checkpoint was saved to",
            )
        return [single]
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(
            f"weights index '{index}' can't be read", expected="a weight_map", found=error
        ) from error
    paths = [folder / str(name) for name in names]
    for path in paths:
        if path.parent != folder or not path.is_file():
            raise WeightsError(f"weights file '{path}' of '{index}' is missing")
    return paths
