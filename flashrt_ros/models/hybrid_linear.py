"""Gated delta rule: linear attention with a recurrent state, over a chunk or a token.

A value head keeps ``S``, ``float32[DK, DV]``, and for each token with decay ``g <= 0``,
write strength ``beta``, query ``q``, key ``k`` (both of unit length) and value ``v``::

    S = exp(g) S;   u = beta (v - k S);   S = S + k^T u;   o = q S / sqrt(DK)

(Yang et al., "Gated Delta Networks", arXiv 2412.06464). With ``G`` the running sum of ``g``
in a chunk, the ``u`` of all its tokens solve one unit lower triangular system (after Yang et
al., arXiv 2406.06484)::

    (1 + tril(beta_i exp(G_i - G_j) k_i·k_j, -1)) U = beta (V - exp(G) K S)

A token with ``g = 0`` and ``beta = 0`` leaves ``S`` bit for bit as it was: padding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from flashrt_ros.models.hybrid_config import BORDER_TOKENS

NORM_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class DeltaInputs:
    """What the rule reads of ``T`` tokens.

    Attributes:
        queries: ``[T, KH, DK]``, of any length.
        keys: ``[T, KH, DK]``, of any length.
        values: ``[T, VH, DV]``; value head ``i`` belongs to key head ``i * KH // VH``.
        decay: ``float32[T, VH]``, ``g``.
        strength: ``float32[T, VH]``, ``beta``.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    decay: Tensor
    strength: Tensor


DeltaRule = Callable[[DeltaInputs, Tensor], Tensor]
"""Updates ``float32[VH, DK, DV]`` in place and returns ``[T, VH, DV]`` in the values' dtype."""


def torch_delta_chunk(inputs: DeltaInputs, state: Tensor) -> Tensor:
    """Apply the rule to a chunk, 64 tokens at a time.

    Args:
        inputs: ``T`` is a multiple of 64.
        state: ``float32[VH, DK, DV]``, updated in place.

    Returns:
        ``[T, VH, DV]``.
    """
    queries, keys, values = _prepared(inputs)
    decay, strength = inputs.decay.t(), inputs.strength.t()
    carried, outputs = state, []
    for start in range(0, values.shape[1], BORDER_TOKENS):
        rows = slice(start, start + BORDER_TOKENS)
        output, carried = _block(
            queries[:, rows],
            keys[:, rows],
            values[:, rows],
            decay[:, rows],
            strength[:, rows],
            carried,
        )
        outputs.append(output)
    state.copy_(carried)
    return torch.cat(outputs, dim=1).transpose(0, 1).to(inputs.values.dtype)


def torch_delta_step(inputs: DeltaInputs, state: Tensor) -> Tensor:
    """Apply the rule to one token.

    Args:
        inputs: ``T`` is 1.
        state: ``float32[VH, DK, DV]``, updated in place.

    Returns:
        ``[1, VH, DV]``.
    """
    queries, keys, values = _prepared(inputs)
    decayed = state * inputs.decay[0].exp()[:, None, None]
    update = inputs.strength[0][:, None, None] * (values - keys @ decayed)
    state.copy_(decayed + keys.transpose(1, 2) * update)
    return (queries @ state).transpose(0, 1).to(inputs.values.dtype)


def _block(
    queries: Tensor, keys: Tensor, values: Tensor, decay: Tensor, strength: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    total = decay.cumsum(1)  # [VH, L], from the block's start
    ahead = torch.ones(total.shape[1], total.shape[1], dtype=torch.bool, device=total.device).triu(
        1
    )
    between = (total[:, :, None] - total[:, None, :]).masked_fill(ahead, float("-inf")).exp()
    since_start = total.exp()[..., None]
    to_end = (total[:, -1:] - total).exp()[..., None]
    weight = strength[..., None]

    system = weight * between * (keys @ keys.transpose(1, 2))
    wanted = weight * (values - since_start * (keys @ state))
    update = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)

    inside = (between * (queries @ keys.transpose(1, 2))) @ update
    output = since_start * (queries @ state) + inside
    following = total[:, -1].exp()[:, None, None] * state + keys.transpose(1, 2) @ (to_end * update)
    return output, following


def _prepared(inputs: DeltaInputs) -> tuple[Tensor, Tensor, Tensor]:
    """Return unit queries (over the root of their size), unit keys and values, by value head."""
    num_heads = inputs.values.shape[1]
    queries = _unit(inputs.queries) * inputs.queries.shape[-1] ** -0.5
    return (
        _by_value_head(queries, num_heads),
        _by_value_head(_unit(inputs.keys), num_heads),
        inputs.values.float().transpose(0, 1),
    )


def _unit(rows: Tensor) -> Tensor:
    rows = rows.float()
    return rows * torch.rsqrt(rows.square().sum(-1, keepdim=True) + NORM_EPS)


def _by_value_head(rows: Tensor, num_heads: int) -> Tensor:
    """``[T, KH, DK]`` → ``[VH, T, DK]``, each key head as often as it has value heads."""
    length, heads, size = rows.shape
    repeated = rows.transpose(0, 1).unsqueeze(1).expand(heads, num_heads // heads, length, size)
    return repeated.reshape(num_heads, length, size)
