"""Layers of a hybrid language model, over the tokens of one replay and a lane's state."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from flashrt_ros.models.hybrid_attention import Attention
from flashrt_ros.models.hybrid_config import BORDER_TOKENS, ExpertsConfig, HybridConfig
from flashrt_ros.models.hybrid_linear import DeltaInputs, DeltaRule
from flashrt_ros.models.hybrid_weights import ExpertWeights, FullWeights, LinearWeights, MlpWeights


def rms_norm(rows: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Divide rows by their root mean square, in float32.

    Args:
        rows: ``[..., N]``.
        scale: ``float32[N]``.
        eps: Added to the mean square.
    """
    wide = rows.float()
    normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (normal * scale).to(rows.dtype)


def project(rows: Tensor, weight: Tensor) -> Tensor:
    """Multiply rows by a matrix, ``[T, N]`` by ``[M, N]``.

    On a CPU 64 rows at a time: the bytes of a row then depend on no other row's place,
    which a matrix product of a library does not promise.
    """
    if rows.device.type != "cpu" or rows.shape[0] <= BORDER_TOKENS:
        return F.linear(rows, weight)
    return torch.cat([F.linear(tile, weight) for tile in _tiles(rows)])


def rotary_angles(config: HybridConfig, position: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of the tokens' rotary angles.

    Args:
        config: Sizes.
        position: ``int64[1]``, of the first token.
        length: ``T``.

    Returns:
        Two of ``float32[T, 1, rotary_dim / 2]``.
    """
    device = position.device
    powers = torch.arange(0, config.rotary_dim, 2, dtype=torch.float32, device=device)
    frequencies = 1.0 / config.rope_theta ** (powers / config.rotary_dim)
    tokens = (torch.arange(length, device=device) + position).float()
    angles = (tokens[:, None] * frequencies)[:, None]
    return angles.cos(), angles.sin()


def rotate(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate the first elements of each head; halves are pairs, as in the checkpoints.

    Args:
        heads: ``[T, heads, D]``.
        cosine: See :func:`rotary_angles`.
        sine: See :func:`rotary_angles`.
    """
    half = cosine.shape[-1]
    first, second, rest = _split(heads, half, half, heads.shape[-1] - 2 * half)
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return torch.cat([*(part.to(heads.dtype) for part in turned), rest], dim=-1)


def full_attention(
    rows: Tensor,
    weights: FullWeights,
    config: HybridConfig,
    *,
    cache: Tensor,
    position: Tensor,
    attend: Attention,
) -> Tensor:
    """Write the tokens' keys and values into the cache, and attend to all before them.

    Args:
        rows: ``[T, E]``.
        weights: Of the layer.
        config: Sizes.
        cache: ``[P, 2, HK, D]`` of the layer; rows ``position`` to ``position + T`` are
            written.
        position: ``int64[1]``.
        attend: Which implementation.

    Returns:
        ``[T, E]``.
    """
    length, size = rows.shape[0], config.head_dim
    queries_dim, keys_dim = config.num_heads * size, config.num_kv_heads * size
    projected = project(rows, weights.projection)
    parts = _split(projected, queries_dim, queries_dim, keys_dim, keys_dim)
    queries, gate, keys, values = (part.reshape(length, -1, size) for part in parts)
    cosine, sine = rotary_angles(config, position, length)
    queries = rotate(rms_norm(queries, weights.query_norm, config.norm_eps), cosine, sine)
    keys = rotate(rms_norm(keys, weights.key_norm, config.norm_eps), cosine, sine)
    index = torch.arange(length, device=rows.device) + position
    cache.index_copy_(0, index, torch.stack([keys, values], dim=1))
    mixed = attend(queries, cache, position) * gate.sigmoid()
    return project(mixed.reshape(length, queries_dim), weights.output)


def linear_attention(
    rows: Tensor,
    weights: LinearWeights,
    config: HybridConfig,
    *,
    recurrent: Tensor,
    past: Tensor,
    num_valid: Tensor | None,
    rule: DeltaRule,
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
            states as they are. None where all count.
        rule: Which implementation.

    Returns:
        ``[T, E]``; rows of padding mean nothing.
    """
    length, heads = rows.shape[0], config.num_value_heads
    projected = project(rows, weights.projection)
    mixed, gate, strength, step = _split(projected, config.conv_dim, config.value_dim, heads, heads)
    strength = strength.float().sigmoid()
    decay = weights.decay * F.softplus(step.float() + weights.step_bias)
    seen = torch.cat([past, mixed])  # [conv_width - 1 + T, conv_dim]
    kept = torch.arange(past.shape[0], device=rows.device)
    if num_valid is None:
        kept = kept + length
    else:
        padding = (torch.arange(length, device=rows.device) >= num_valid)[:, None]
        strength = strength.masked_fill(padding, 0.0)
        decay = decay.masked_fill(padding, 0.0)
        kept = kept + num_valid
    past.copy_(seen.index_select(0, kept))

    convolved = _convolve(seen, weights.conv, length)
    queries, keys, values = _split(convolved, config.key_dim, config.key_dim, config.value_dim)
    inputs = DeltaInputs(
        queries=queries.reshape(length, -1, config.key_head_dim),
        keys=keys.reshape(length, -1, config.key_head_dim),
        values=values.reshape(length, -1, config.value_head_dim),
        decay=decay,
        strength=strength,
    )
    output = rule(inputs, recurrent)
    wide = output.float()
    normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + config.norm_eps)
    gated = weights.norm * normal.to(rows.dtype) * F.silu(gate.float()).view_as(output)
    return project(gated.to(rows.dtype).reshape(length, -1), weights.output)


def mlp(rows: Tensor, weights: MlpWeights) -> Tensor:
    """Run ``[T, E]`` through a gated MLP."""
    return _gated(rows, weights.up, weights.down)


def experts(rows: Tensor, weights: ExpertWeights, config: ExpertsConfig) -> Tensor:
    """Run ``[T, E]`` through the shared expert and each token's chosen ones.

    One token reads the weights of its experts alone. A chunk computes every expert and
    weighs most of them with 0: which are chosen depends on data, and the shapes of a
    captured graph don't.
    """
    scores = project(rows, weights.router).float().softmax(-1)
    chosen, index = scores.topk(config.num_chosen, dim=-1)
    if config.is_normalised:
        chosen = chosen / chosen.sum(-1, keepdim=True)
    chosen = chosen.to(rows.dtype)
    if rows.shape[0] == 1:
        up, down = weights.up.index_select(0, index[0]), weights.down.index_select(0, index[0])
        mixed = chosen @ _each(rows, up, down)[:, 0]
    else:
        weight = torch.zeros_like(scores, dtype=rows.dtype).scatter(1, index, chosen)
        tiles = zip(_tiles(rows), _tiles(weight), strict=True)
        mixed = torch.cat(
            [(_each(tile, weights.up, weights.down) * w.t()[..., None]).sum(0) for tile, w in tiles]
        )
    shared = _gated(rows, weights.shared_up, weights.shared_down)
    return mixed + project(rows, weights.shared_gate).sigmoid() * shared


def _tiles(rows: Tensor) -> tuple[Tensor, ...]:
    return rows.reshape(-1, BORDER_TOKENS, rows.shape[-1]).unbind()


def _split(rows: Tensor, *sizes: int) -> tuple[Tensor, ...]:
    return torch.split_with_sizes(rows, sizes, dim=-1)


def _each(rows: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """``[T, E]`` through each of ``N`` experts: ``[N, T, E]``."""
    gate, value = (rows.expand(up.shape[0], -1, -1) @ up.transpose(1, 2)).chunk(2, dim=-1)
    return (F.silu(gate) * value) @ down.transpose(1, 2)


def _gated(rows: Tensor, up: Tensor, down: Tensor) -> Tensor:
    gate, value = project(rows, up).chunk(2, dim=-1)
    return project(F.silu(gate) * value, down)


def _convolve(seen: Tensor, taps: Tensor, length: int) -> Tensor:
    """Causal depthwise convolution and SiLU: ``[conv_width - 1 + T, N]`` → ``[T, N]``."""
    wide = seen.float()
    total = wide[:length] * taps[0]
    for at in range(1, taps.shape[0]):
        total = total + wide[at : at + length] * taps[at]
    return F.silu(total).to(seen.dtype)
