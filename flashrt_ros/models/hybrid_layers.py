"""Layers of a hybrid language model, over the tokens of one replay and a lane's state."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from flashrt_ros.models.hybrid_config import ExpertsConfig, HybridConfig
from flashrt_ros.models.hybrid_kernels import HybridKernels
from flashrt_ros.models.hybrid_linear import DeltaInputs
from flashrt_ros.models.hybrid_ops import TorchOps, split, tiles
from flashrt_ros.models.hybrid_weights import ExpertWeights, FullWeights, LinearWeights, MlpWeights


def full_attention(
    rows: Tensor,
    weights: FullWeights,
    config: HybridConfig,
    *,
    cache: Tensor,
    position: Tensor,
    kernels: HybridKernels,
) -> Tensor:
    """Write the tokens' keys and values into the cache, and attend to all before them.

    Args:
        rows: ``[T, E]``.
        weights: Of the layer.
        config: Sizes.
        cache: ``[P, 2, HK, D]`` of the layer; rows ``position`` to ``position + T`` are
            written.
        position: ``int64[1]``.
        kernels: Implementations.

    Returns:
        ``[T, E]``.
    """
    ops = kernels.ops
    projected = ops.project(rows, weights.projection)
    queries, gate = ops.place_heads(projected, weights, config, cache, position)
    return ops.project(ops.attend(queries, gate, cache, position), weights.output)


def linear_attention(
    rows: Tensor,
    weights: LinearWeights,
    config: HybridConfig,
    *,
    recurrent: Tensor,
    past: Tensor,
    num_valid: Tensor | None,
    kernels: HybridKernels,
) -> Tensor:
    """Run the tokens through convolution and recurrent state, both updated in place.

    Args:
        rows: ``[T, E]``.
        weights: Of the layer.
        config: Sizes.
        recurrent: ``float32[VH, DK, DV]`` of the layer.
        past: ``[conv_width - 1, conv_dim]`` of the layer: the last inputs of the
            convolution, oldest first.
        num_valid: ``int64[1]``: tokens from this one on are padding, and leave both
            states as they are. None for one token that counts.
        kernels: Implementations.

    Returns:
        ``[T, E]``; rows of padding mean nothing.
    """
    ops, length, heads = kernels.ops, rows.shape[0], config.num_value_heads
    projected = ops.project(rows, weights.projection)
    _, gate, strength, step = split(projected, config.conv_dim, config.value_dim, heads, heads)
    sizes = (config.key_dim, config.key_dim, config.value_dim)
    queries, keys, values = ops.convolve(projected, weights.conv, past, num_valid, sizes)
    decay, write = ops.gates(strength, step, weights, num_valid)
    inputs = DeltaInputs(
        queries=queries.reshape(length, -1, config.key_head_dim),
        keys=keys.reshape(length, -1, config.key_head_dim),
        values=values.reshape(length, -1, config.value_head_dim),
        decay=decay,
        strength=write,
    )
    rule = kernels.delta_step if num_valid is None else kernels.delta_chunk
    normal = ops.gated_norm(rule(inputs, recurrent), gate, weights.norm, config.norm_eps)
    return ops.project(normal, weights.output)


def mlp(rows: Tensor, weights: MlpWeights, ops: TorchOps) -> Tensor:
    """Run ``[T, E]`` through a gated MLP."""
    return ops.project(ops.silu_product(ops.project(rows, weights.up)), weights.down)


def experts(rows: Tensor, weights: ExpertWeights, config: ExpertsConfig, ops: TorchOps) -> Tensor:
    """Run ``[T, E]`` through the shared expert and each token's chosen ones.

    One token reads the weights of its experts alone. A chunk computes every expert and
    weighs most of them with 0: which are chosen depends on data, and the shapes of a
    captured graph don't.
    """
    scores = ops.project(rows, weights.router).float().softmax(-1)
    chosen, index = scores.topk(config.num_chosen, dim=-1)
    if config.is_normalised:
        chosen = chosen / chosen.sum(-1, keepdim=True)
    chosen = chosen.to(rows.dtype)
    if rows.shape[0] == 1:
        up, down = weights.up.index_select(0, index[0]), weights.down.index_select(0, index[0])
        mixed = chosen @ _each(rows, up, down)[:, 0]
    else:
        weight = torch.zeros_like(scores, dtype=rows.dtype).scatter(1, index, chosen)
        mixed = torch.cat(
            [
                (_each(tile, weights.up, weights.down) * share.t()[..., None]).sum(0)
                for tile, share in zip(tiles(rows), tiles(weight), strict=True)
            ]
        )
    shared = mlp(rows, MlpWeights(weights.shared_up, weights.shared_down), ops)
    return mixed + ops.project(rows, weights.shared_gate).sigmoid() * shared


def _each(rows: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """``[T, E]`` through each of ``N`` experts: ``[N, T, E]``."""
    gate, value = (rows.expand(up.shape[0], -1, -1) @ up.transpose(1, 2)).chunk(2, dim=-1)
    return (F.silu(gate) * value) @ down.transpose(1, 2)
