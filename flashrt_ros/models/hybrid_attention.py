"""Attention over a cache of fixed size, as far as the position on the device says."""

from __future__ import annotations

import torch
from torch import Tensor

from flashrt_ros.models.hybrid_config import BORDER_TOKENS


def torch_attention(queries: Tensor, cache: Tensor, position: Tensor) -> Tensor:
    """Attend from each token to itself and to every position before it.

    Costs time by the size of the cache, whatever is used of it: the shapes of a captured
    graph don't depend on the position, so what lies past it is masked, not skipped. Rows
    are worked on 64 at a time, which bounds the scores and keeps a row's bytes independent
    of the chunk's length.

    Args:
        queries: ``[T, HQ, D]``; token ``i`` stands at ``position + i``.
        cache: ``[P, 2, HK, D]``: keys and values of one layer, with those of these tokens
            written already. Query head ``i`` reads key head ``i * HK // HQ``. What lies
            past the tokens must be finite; it counts for nothing.
        position: ``int64[1]``.

    Returns:
        ``[T, HQ, D]``.
    """
    num_positions, _, num_kv_heads, size = cache.shape
    length, num_heads, _ = queries.shape
    keys = cache[:, 0].permute(1, 2, 0)  # [HK, D, P]
    values = cache[:, 1].permute(1, 0, 2)  # [HK, P, D]
    scaled = queries * size**-0.5
    columns = torch.arange(num_positions, device=cache.device)
    rows = torch.arange(length, device=cache.device) + position
    outputs = []
    for start in range(0, length, BORDER_TOKENS):
        tile = scaled[start : start + BORDER_TOKENS]
        count = tile.shape[0]
        grouped = tile.view(count, num_kv_heads, -1, size).permute(1, 2, 0, 3)
        scores = grouped.reshape(num_kv_heads, -1, size) @ keys
        ahead = columns > rows[start : start + count, None]
        scores = scores.float().view(num_kv_heads, -1, count, num_positions)
        weights = scores.masked_fill(ahead, float("-inf")).softmax(-1).to(values.dtype)
        mixed = weights.view(num_kv_heads, -1, num_positions) @ values
        by_head = mixed.view(num_kv_heads, -1, count, size).permute(2, 0, 1, 3)
        outputs.append(by_head.reshape(count, num_heads, size))
    return torch.cat(outputs)
