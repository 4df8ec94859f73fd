"""Weights of a hybrid language model: their names in a checkpoint, and how the programs take them.

Projections of the same input are laid side by side, so that each layer reads its input
once, and the order of heads in a family's checkpoint is undone here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from flashrt_ros.models.hybrid_checkpoint import check_tensors
from flashrt_ros.models.hybrid_config import FULL, HybridConfig


@dataclass(frozen=True, slots=True)
class LinearWeights:
    """Of a layer with linear attention.

    Attributes:
        projection: ``[2·KH·DK + 2·VH·DV + 2·VH, E]``: queries, keys, values (what the
            convolution sees), then the output gate z, beta and the decay's input.
        conv: ``[conv_width, 2·KH·DK + VH·DV]``, oldest tap first.
        decay: ``float32[VH]``, minus the rate of decay.
        step_bias: ``float32[VH]``.
        norm: ``[DV]``.
        output: ``[E, VH·DV]``.
    """

    projection: Tensor
    conv: Tensor
    decay: Tensor
    step_bias: Tensor
    norm: Tensor
    output: Tensor


@dataclass(frozen=True, slots=True)
class FullWeights:
    """Of a layer with full attention.

    Attributes:
        projection: ``[2·HQ·D + 2·HK·D, E]``: queries, output gate, keys, values.
        query_norm: ``float32[D]``, one added already.
        key_norm: ``float32[D]``, one added already.
        frequencies: ``float32[rotary_dim / 2]``, radians a position.
        output: ``[E, HQ·D]``.
    """

    projection: Tensor
    query_norm: Tensor
    key_norm: Tensor
    frequencies: Tensor
    output: Tensor


@dataclass(frozen=True, slots=True)
class MlpWeights:
    """Of a dense MLP: ``up`` is ``[2·I, E]``, gate then value; ``down`` is ``[E, I]``."""

    up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """Of a mixture of experts.

    Attributes:
        router: ``[N, E]`` for ``N`` experts.
        up: ``[N, 2·I, E]``, gate then value.
        down: ``[N, E, I]``.
        shared_up: ``[2·I', E]`` of the shared expert.
        shared_down: ``[E, I']``.
        shared_gate: ``[1, E]``.
    """

    router: Tensor
    up: Tensor
    down: Tensor
    shared_up: Tensor
    shared_down: Tensor
    shared_gate: Tensor


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Of a layer; both norms are ``float32[E]``, one added already."""

    input_norm: Tensor
    mixer: LinearWeights | FullWeights
    post_norm: Tensor
    mlp: MlpWeights | ExpertWeights


@dataclass(frozen=True, slots=True)
class HybridWeights:
    """Of a model, read only.

    Attributes:
        embedding: ``[V, E]``.
        layers: In order.
        final_norm: ``float32[E]``, one added already.
        head: ``[V, E]``; the embedding itself where they are tied.
    """

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: Tensor

    def matrices(self) -> Iterator[Tensor]:
        """Yield every matrix that rows are multiplied by, ``[M, N]`` each."""
        yield self.head
        for layer in self.layers:
            yield from (layer.mixer.projection, layer.mixer.output)
            if isinstance(layer.mlp, MlpWeights):
                yield from (layer.mlp.up, layer.mlp.down)
            else:
                yield from (layer.mlp.router, layer.mlp.shared_gate)
                yield from (layer.mlp.shared_up, layer.mlp.shared_down)

    def digest(self) -> str:
        """Return a SHA-256 over every tensor's place, dtype, shape and bytes, as hex."""
        digest = hashlib.sha256()
        for name, value in _walk("", self):
            head = json.dumps([name, str(value.dtype), list(value.shape)], separators=(",", ":"))
            digest.update(head.encode())
            digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def pack(
    tensors: Mapping[str, Tensor], config: HybridConfig, *, dtype: torch.dtype, device: str
) -> HybridWeights:
    """Lay a checkpoint out as the programs read it.

    Args:
        tensors: As :func:`expected_tensors` names them.
        config: Sizes.
        dtype: Of the matrices and the convolution; norms and decays stay float32.
        device: Where the weights go.

    Raises:
        WeightsError: See :func:`check_tensors`.
    """
    check_tensors(tensors, config)
    take = _Taker(tensors, dtype, device)
    layers = tuple(_layer(take, config, at) for at in range(config.num_layers))
    embedding = take.matrix("model.embed_tokens.weight")
    return HybridWeights(
        embedding=embedding,
        layers=layers,
        final_norm=take.norm("model.norm.weight"),
        head=embedding if config.ties_embeddings else take.matrix("lm_head.weight"),
    )


class _Taker:
    """Takes tensors out of a checkpoint, converted and on their device."""

    def __init__(self, tensors: Mapping[str, Tensor], dtype: torch.dtype, device: str) -> None:
        self._tensors = tensors
        self._dtype = dtype
        self._device = device

    def matrix(self, *names: str) -> Tensor:
        """Concatenate along the first extent."""
        parts = [self._tensors[name].to(self._device, self._dtype) for name in names]
        return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts)

    def place(self, value: Tensor) -> Tensor:
        """Convert a tensor that was made from a checkpoint's."""
        return value.to(self._device, self._dtype).contiguous()

    def raw(self, name: str) -> Tensor:
        """Return a tensor as it is in the checkpoint."""
        return self._tensors[name]

    def norm(self, name: str) -> Tensor:
        """Return the scale of a norm that is stored as its distance from one."""
        return 1.0 + self.exact(name)

    def exact(self, name: str) -> Tensor:
        """Return a tensor in float32."""
        return self.exact_of(self._tensors[name])

    def exact_of(self, value: Tensor) -> Tensor:
        """Convert a tensor to float32."""
        return value.to(self._device, torch.float32)


def _layer(take: _Taker, config: HybridConfig, at: int) -> LayerWeights:
    prefix = f"model.layers.{at}."
    is_full = config.layer_types[at] == FULL
    has_experts = at in config.expert_layers
    return LayerWeights(
        input_norm=take.norm(prefix + "input_layernorm.weight"),
        mixer=_full(take, config, prefix) if is_full else _linear(take, config, prefix),
        post_norm=take.norm(prefix + "post_attention_layernorm.weight"),
        mlp=_experts(take, config, prefix + "mlp.") if has_experts else _mlp(take, prefix + "mlp."),
    )


def _full(take: _Taker, config: HybridConfig, prefix: str) -> FullWeights:
    prefix += "self_attn."
    # By head: queries, then their gate.
    both = take.raw(prefix + "q_proj.weight")
    queries, gates = both.view(config.num_heads, 2, config.head_dim, -1).unbind(1)
    rows = [take.raw(prefix + f"{name}_proj.weight") for name in "kv"]
    powers = torch.arange(0, config.rotary_dim, 2, dtype=torch.float32)
    return FullWeights(
        projection=take.place(torch.cat([queries.flatten(0, 1), gates.flatten(0, 1), *rows])),
        query_norm=take.norm(prefix + "q_norm.weight"),
        key_norm=take.norm(prefix + "k_norm.weight"),
        frequencies=take.exact_of(1.0 / config.rope_theta ** (powers / config.rotary_dim)),
        output=take.matrix(prefix + "o_proj.weight"),
    )


def _linear(take: _Taker, config: HybridConfig, prefix: str) -> LinearWeights:
    prefix += "linear_attn."
    if config.family == "qwen3_next":
        projection = take.place(torch.cat(_ungrouped(take, config, prefix)))
    else:
        names = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
        projection = take.matrix(*(f"{prefix}{name}.weight" for name in names))
    return LinearWeights(
        projection=projection,
        conv=take.place(take.raw(prefix + "conv1d.weight")[:, 0].t()),
        decay=-take.exact(prefix + "A_log").exp(),
        step_bias=take.exact(prefix + "dt_bias"),
        norm=take.matrix(prefix + "norm.weight"),
        output=take.matrix(prefix + "out_proj.weight"),
    )


def _ungrouped(take: _Taker, config: HybridConfig, prefix: str) -> list[Tensor]:
    """Undo the order by key head, in which a key head's columns of every kind lie together."""
    heads, per_head = config.num_key_heads, config.num_value_heads // config.num_key_heads
    values = per_head * config.value_head_dim
    sizes = [config.key_head_dim, config.key_head_dim, values, values]
    large = take.raw(prefix + "in_proj_qkvz.weight").view(heads, sum(sizes), -1)
    small = take.raw(prefix + "in_proj_ba.weight").view(heads, 2 * per_head, -1)
    parts = (*torch.split_with_sizes(large, sizes, dim=1), *small.chunk(2, dim=1))
    return [part.flatten(0, 1) for part in parts]


def _mlp(take: _Taker, prefix: str) -> MlpWeights:
    return MlpWeights(
        up=take.matrix(prefix + "gate_proj.weight", prefix + "up_proj.weight"),
        down=take.matrix(prefix + "down_proj.weight"),
    )


def _experts(take: _Taker, config: HybridConfig, prefix: str) -> ExpertWeights:
    assert config.experts is not None
    if config.experts.is_fused:
        up = take.matrix(prefix + "experts.gate_up_proj")
        down = take.matrix(prefix + "experts.down_proj")
    else:
        each = [f"{prefix}experts.{at}." for at in range(config.experts.num_experts)]
        up = torch.stack([take.matrix(e + "gate_proj.weight", e + "up_proj.weight") for e in each])
        down = torch.stack([take.matrix(e + "down_proj.weight") for e in each])
    shared = prefix + "shared_expert."
    return ExpertWeights(
        router=take.matrix(prefix + "gate.weight"),
        up=up,
        down=down,
        shared_up=take.matrix(shared + "gate_proj.weight", shared + "up_proj.weight"),
        shared_down=take.matrix(shared + "down_proj.weight"),
        shared_gate=take.matrix(prefix + "shared_expert_gate.weight"),
    )


def _walk(prefix: str, value: object) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield prefix, value
    elif isinstance(value, tuple):
        for at, item in enumerate(value):
            yield from _walk(f"{prefix}.{at}", item)
    else:
        for field in fields(value):  # type: ignore[arg-type]
            yield from _walk(f"{prefix}.{field.name}", getattr(value, field.name))
