"""What a hybrid language model looks like, read from the ``config.json`` of its family.

Sizes in the docstrings of the ``hybrid_*`` modules: ``T`` tokens of a replay, ``E``
hidden size, ``HQ`` query heads and ``HK`` key heads of attention, ``D`` their size,
``KH`` key heads and ``VH`` value heads of linear attention, ``DK`` and ``DV`` their
sizes, ``V`` vocabulary, ``P`` positions of the cache.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from flashrt_ros.errors import ConfigError

LINEAR = "linear_attention"
"""Layer type with a recurrent and a convolution state."""

FULL = "full_attention"
"""Layer type with a cache of keys and values."""

BORDER_TOKENS = 64
"""Multiples of this position are borders: a prefix that ends on one may be computed in any
split at borders and gives the same bytes."""

_NEXT = "qwen3_next"
_TEXT_TYPES = {
    _NEXT: _NEXT,
    "qwen3_5_text": "qwen3_5",
    "qwen3_5_moe_text": "qwen3_5",
}
_POSITIVE = (
    "num_heads",
    "num_key_heads",
    "hidden_size",
    "head_dim",
    "vocab_size",
    "key_head_dim",
    "value_head_dim",
    "rope_theta",
    "norm_eps",
)
_WRAPPED_TYPES = ("qwen3_5", "qwen3_5_moe")  # the language model is their text_config
_MOST = 1 << 31  # beyond any model's sizes, and still a size that arithmetic can do
_MOST_LAYERS = 4096
_REQUIRED = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
)


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """A mixture of experts in place of a layer's MLP.

    Attributes:
        num_experts: Experts of a layer.
        num_chosen: Experts that each token goes through.
        width: Inner size of an expert.
        shared_width: Inner size of the expert that every token goes through.
        is_normalised: Whether the chosen experts' weights are scaled to a sum of 1.
        is_fused: Whether a checkpoint holds all experts of a layer in one tensor.
    """

    num_experts: int
    num_chosen: int
    width: int
    shared_width: int
    is_normalised: bool
    is_fused: bool


@dataclass(frozen=True, slots=True)
class HybridConfig:
    """Sizes of a hybrid language model; checked when it is made.

    Attributes:
        family: "qwen3_next" or "qwen3_5", which decides names and order of the weights.
        vocab_size: ``V``.
        hidden_size: ``E``.
        mlp_width: Inner size of a dense MLP.
        layer_types: :data:`LINEAR` or :data:`FULL` for each layer, at least one of each.
        num_heads: ``HQ``; a multiple of ``num_kv_heads``.
        num_kv_heads: ``HK``.
        head_dim: ``D``.
        rotary_dim: How many of ``D`` are rotated by the position; even.
        rope_theta: Base of the rotary frequencies.
        num_key_heads: ``KH``.
        num_value_heads: ``VH``; a multiple of ``num_key_heads``.
        key_head_dim: ``DK``.
        value_head_dim: ``DV``.
        conv_width: Taps of the causal convolution, at least 2.
        norm_eps: Added to the mean square by every RMS norm.
        ties_embeddings: Whether the output head is the embedding.
        experts: Of the layers that have them, or None where every MLP is dense.
        expert_layers: Indices of the layers with experts.
        eos_token_ids: Tokens that end a text, as the checkpoint names them.
    """

    family: str
    vocab_size: int
    hidden_size: int
    mlp_width: int
    layer_types: tuple[str, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_width: int
    norm_eps: float
    ties_embeddings: bool
    experts: ExpertsConfig | None = None
    expert_layers: frozenset[int] = frozenset()
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise ConfigError(
                    f"a language model can't have this {name}",
                    expected="a positive number",
                    found=getattr(self, name),
                )
        if not set(self.layer_types) == {LINEAR, FULL}:
            raise ConfigError(
                "a hybrid model needs layers of both types",
                expected=f"{LINEAR} and {FULL}",
                found=", ".join(sorted(set(self.layer_types))) or "no layers",
            )
        for many, few in (("num_heads", "num_kv_heads"), ("num_value_heads", "num_key_heads")):
            if getattr(self, few) <= 0 or getattr(self, many) % getattr(self, few):
                raise ConfigError(
                    f"{many} is no multiple of {few}",
                    found=f"{getattr(self, many)} and {getattr(self, few)}",
                )
        if self.rotary_dim % 2 or not 0 < self.rotary_dim <= self.head_dim:
            raise ConfigError(
                "a head can't rotate this many of its elements",
                expected=f"an even number up to {self.head_dim}",
                found=self.rotary_dim,
            )
        if self.conv_width < 2:
            raise ConfigError(
                "the convolution has no past", expected="2 taps or more", found=self.conv_width
            )

    @property
    def num_layers(self) -> int:
        """Layers of either type."""
        return len(self.layer_types)

    @property
    def linear_layers(self) -> tuple[int, ...]:
        """Indices of the layers with linear attention."""
        return tuple(at for at, kind in enumerate(self.layer_types) if kind == LINEAR)

    @property
    def full_layers(self) -> tuple[int, ...]:
        """Indices of the layers with full attention."""
        return tuple(at for at, kind in enumerate(self.layer_types) if kind == FULL)

    @property
    def key_dim(self) -> int:
        """Columns of all linear key heads, ``KH * DK``."""
        return self.num_key_heads * self.key_head_dim

    @property
    def value_dim(self) -> int:
        """Columns of all linear value heads, ``VH * DV``."""
        return self.num_value_heads * self.value_head_dim

    @property
    def conv_dim(self) -> int:
        """Channels of the convolution: queries, keys and values of linear attention."""
        return 2 * self.key_dim + self.value_dim

    @classmethod
    def from_file(cls, path: Path) -> Self:
        """Read a ``config.json``.

        Raises:
            ConfigError: The file is missing, no JSON, or :meth:`from_json` refuses it.
        """
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"model config '{path}' can't be read", expected="a JSON object", found=error
            ) from error
        if not isinstance(values, dict):
            raise ConfigError(f"model config '{path}' is no JSON object")
        return cls.from_json(values)

    @classmethod
    def from_json(cls, values: Mapping[str, object]) -> Self:
        """Take the sizes out of a config in the form of ``transformers``.

        Args:
            values: Of model type ``qwen3_next``, ``qwen3_5``, ``qwen3_5_moe``, or the
                text part of the latter two alone.

        Raises:
            ConfigError: Another model type, a size that is missing or no number, or a
                feature that this model does not have: the message names it.
        """
        kind = values.get("model_type")
        text = values.get("text_config")
        if kind in _WRAPPED_TYPES and isinstance(text, Mapping):
            ties = values.get("tie_word_embeddings", False)
            return cls.from_json({"tie_word_embeddings": ties, **text})
        if not isinstance(kind, str) or kind not in _TEXT_TYPES:
            raise ConfigError(
                "no hybrid model of this type is known",
                expected=", ".join((*_TEXT_TYPES, *_WRAPPED_TYPES)),
                found=repr(kind),
            )
        return cls(**_read(kind, _Fields(values)))  # type: ignore[arg-type]


class _Fields:
    """Looks values up by name and type; a wrong one is an error that names it."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values

    def get(self, name: str) -> object:
        return self._values.get(name)

    def number(self, name: str, default: float | None = None) -> float:
        value = self._values.get(name)
        if value is None:
            value = default
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not math.isfinite(value)
        ):
            raise ConfigError(
                f"'{name}' in the model config", expected="a finite number", found=repr(value)
            )
        return value

    def count(self, name: str, default: int | None = None) -> int:
        value = self.number(name, default)
        if value != int(value) or not 0 <= value < _MOST:
            raise ConfigError(
                f"'{name}' in the model config",
                expected=f"a count below {_MOST}",
                found=repr(value),
            )
        return int(value)

    def require(self, name: str, default: object, *accepted: object) -> None:
        value = self._values.get(name, default)
        if value not in accepted:
            raise ConfigError(
                f"'{name}' in the model config is not supported",
                expected=" or ".join(map(repr, accepted)),
                found=repr(value),
            )


def _read(kind: str, fields: _Fields) -> dict[str, object]:
    for name in _REQUIRED:
        fields.count(name)
    fields.require("hidden_act", "silu", "silu")
    fields.require("attention_bias", False, False, None)
    fields.require("attn_output_gate", True, True)
    heads = fields.count("num_attention_heads")
    head_dim = fields.count("head_dim", fields.count("hidden_size") // max(heads, 1))
    theta, rotary_factor = _rope(fields)
    layer_types = _layer_types(fields)
    experts, expert_layers = _experts(kind, fields, len(layer_types))
    return {
        "family": _TEXT_TYPES[kind],
        "vocab_size": fields.count("vocab_size"),
        "hidden_size": fields.count("hidden_size"),
        "mlp_width": fields.count("intermediate_size", 0),
        "layer_types": layer_types,
        "num_heads": heads,
        "num_kv_heads": fields.count("num_key_value_heads"),
        "head_dim": head_dim,
        "rotary_dim": int(head_dim * rotary_factor),
        "rope_theta": theta,
        "num_key_heads": fields.count("linear_num_key_heads"),
        "num_value_heads": fields.count("linear_num_value_heads"),
        "key_head_dim": fields.count("linear_key_head_dim"),
        "value_head_dim": fields.count("linear_value_head_dim"),
        "conv_width": fields.count("linear_conv_kernel_dim"),
        "norm_eps": float(fields.number("rms_norm_eps", 1e-6)),
        "ties_embeddings": bool(fields.get("tie_word_embeddings")),
        "experts": experts,
        "expert_layers": expert_layers,
        "eos_token_ids": _eos(fields),
    }


def _rope(fields: _Fields) -> tuple[float, float]:
    """Return base and rotated share, from the present form of the config or the older one."""
    nested = fields.get("rope_parameters") or fields.get("rope_scaling") or {}
    if not isinstance(nested, Mapping):
        raise ConfigError("'rope_parameters' in the model config", expected="an object")
    rope = _Fields(nested)
    kind = nested.get("rope_type", nested.get("type", "default"))
    if kind not in ("default", "mrope"):
        raise ConfigError(
            "this scaling of rotary positions is not supported", expected="default", found=kind
        )
    theta = rope.number("rope_theta", fields.number("rope_theta", 10_000.0))
    share = rope.number("partial_rotary_factor", fields.number("partial_rotary_factor", 0.25))
    return float(theta), float(share)


def _layer_types(fields: _Fields) -> tuple[str, ...]:
    num_layers = fields.count("num_hidden_layers")
    if num_layers > _MOST_LAYERS:
        raise ConfigError(
            "'num_hidden_layers' in the model config",
            expected=f"at most {_MOST_LAYERS}",
            found=num_layers,
        )
    given = fields.get("layer_types")
    if given is None:
        interval = max(1, fields.count("full_attention_interval", 4))
        return tuple(LINEAR if (at + 1) % interval else FULL for at in range(num_layers))
    if not isinstance(given, list) or any(kind not in (LINEAR, FULL) for kind in given):
        raise ConfigError(
            "'layer_types' in the model config",
            expected=f"a list of {LINEAR} and {FULL}",
            found=given,
        )
    if len(given) != num_layers:
        raise ConfigError(
            "'layer_types' in the model config has another length than num_hidden_layers",
            expected=num_layers,
            found=len(given),
        )
    return tuple(given)


def _experts(
    kind: str, fields: _Fields, num_layers: int
) -> tuple[ExpertsConfig | None, frozenset[int]]:
    num_experts = fields.count("num_experts", 0)
    if not num_experts:
        return None, frozenset()
    step = max(1, fields.count("decoder_sparse_step", 1))
    dense = fields.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise ConfigError("'mlp_only_layers' in the model config", expected="a list", found=dense)
    experts = ExpertsConfig(
        num_experts=num_experts,
        num_chosen=fields.count("num_experts_per_tok"),
        width=fields.count("moe_intermediate_size"),
        shared_width=fields.count("shared_expert_intermediate_size"),
        is_normalised=fields.get("norm_topk_prob") is not False,
        is_fused=kind != _NEXT,
    )
    if not 0 < experts.num_chosen <= num_experts:
        raise ConfigError(
            "a token can't go through this many experts",
            expected=f"1 to {num_experts}",
            found=experts.num_chosen,
        )
    sparse = (at for at in range(num_layers) if at not in dense and (at + 1) % step == 0)
    return experts, frozenset(sparse)


def _eos(fields: _Fields) -> tuple[int, ...]:
    value = fields.get("eos_token_id")
    given = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(token, int) and 0 <= token < _MOST for token in given):
        raise ConfigError("'eos_token_id' in the model config", expected="token ids", found=value)
    return tuple(given)
