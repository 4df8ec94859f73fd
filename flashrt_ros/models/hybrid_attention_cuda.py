"""Attention over the cache whose cost follows the used positions: split-KV in Triton.

The bound of the loop over positions is read from the device, so that one captured graph
serves every length. Blocks of positions are dealt to the splits in turn (block ``j`` to
split ``j % S``), not cut into runs: which split adds up which position then depends on
the position alone, and a token's bytes not on where its chunk began.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashrt_ros.models.hybrid_config import BORDER_TOKENS
from flashrt_ros.models.hybrid_library_cuda import operator

_LOG2_E = 1.4426950408889634
_BLOCK_POSITIONS = 64
_CHUNK_SPLITS = 8
"""Of every chunk, however long: part of what a row's bytes are."""

_TARGET_PROGRAMS = 264  # two for each processor of a large device
_MOST_SPLITS = 64

_MOST_STAGES = 3
_SHARED_BYTES = 99 * 1024  # that every device since Ampere has, where torch does not say


@operator("attend(Tensor queries, Tensor gate, Tensor cache, Tensor position) -> Tensor")
def triton_attention(queries: Tensor, gate: Tensor, cache: Tensor, position: Tensor) -> Tensor:
    """Attend and gate as ``TorchOps.attend``, at the cost of what is used.

    Args:
        queries: ``[T, HQ, D]``, contiguous.
        gate: ``[T, HQ, D]``, contiguous within a token.
        cache: ``[P, 2, HK, D]``, its last extent contiguous.
        position: ``int64[1]``, on the device.

    Returns:
        ``[T, HQ * D]``.
    """
    length, num_heads, size = queries.shape
    num_kv_heads = cache.shape[2]
    group = num_heads // num_kv_heads
    rows = length * group
    # More programs for a short chunk; a row's bytes are the same in a tile of either size.
    most_rows = 64 if length <= BORDER_TOKENS else 128
    block_rows = max(16, min(most_rows, triton.next_power_of_2(rows)))
    num_tiles = triton.cdiv(rows, block_rows)
    num_splits = _num_splits(num_tiles * num_kv_heads) if length == 1 else _CHUNK_SPLITS
    output = torch.empty((length, num_heads * size), dtype=queries.dtype, device=queries.device)
    partial = torch.empty(
        (num_splits, length, num_heads, size), dtype=torch.float32, device=queries.device
    )
    # Largest score and sum of weights of each split.
    marks = torch.empty(
        (2, num_splits, length, num_heads), dtype=torch.float32, device=queries.device
    )
    _attend[(num_tiles, num_kv_heads, num_splits)](
        queries,
        cache,
        position,
        partial,
        marks,
        length,
        cache.stride(0),
        cache.stride(1),
        cache.stride(2),
        size**-0.5 * _LOG2_E,
        num_kv_heads,
        GROUP=group,
        SIZE=size,
        BLOCK_SIZE=triton.next_power_of_2(size),
        BLOCK_ROWS=block_rows,
        BLOCK_POSITIONS=_BLOCK_POSITIONS,
        NUM_SPLITS=num_splits,
        num_warps=8 if block_rows > 64 else 4,
        num_stages=_num_stages(block_rows, cache),
    )
    _combine[(length * num_heads,)](
        partial,
        marks,
        gate,
        output,
        length * num_heads,
        gate.stride(0),
        NUM_HEADS=num_heads,
        SIZE=size,
        BLOCK_SIZE=triton.next_power_of_2(size),
        NUM_SPLITS=num_splits,
        num_warps=4,
    )
    return output


def _num_splits(num_programs: int) -> int:
    """Return a power of two that fills the device; a function of the graph's shapes alone."""
    splits = 1
    while splits < _MOST_SPLITS and num_programs * splits * 2 <= _TARGET_PROGRAMS:
        splits *= 2
    return splits


def _num_stages(block_rows: int, cache: Tensor) -> int:
    """Return how many blocks of keys and values a program reads ahead: what it has room for.

    No part of a row's bytes.
    """
    row_bytes = triton.next_power_of_2(cache.shape[3]) * cache.element_size()
    room = _shared_bytes(cache.device) - block_rows * row_bytes
    num_stages: int = max(1, min(_MOST_STAGES, room // (2 * _BLOCK_POSITIONS * row_bytes)))
    return num_stages


@functools.cache
def _shared_bytes(device: torch.device) -> int:
    """Return the shared memory that a program may have."""
    if device.type != "cuda":  # Triton's interpreter
        return _SHARED_BYTES
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", _SHARED_BYTES))


@triton.jit(do_not_specialize=["length"])
def _attend(
    queries,
    cache,
    position,
    partial,
    marks,
    length,
    position_stride,
    kind_stride,
    head_stride,
    scale,
    num_kv_heads,
    GROUP: tl.constexpr,  # noqa: N803
    SIZE: tl.constexpr,  # noqa: N803
    BLOCK_SIZE: tl.constexpr,  # noqa: N803
    BLOCK_ROWS: tl.constexpr,  # noqa: N803
    BLOCK_POSITIONS: tl.constexpr,  # noqa: N803
    NUM_SPLITS: tl.constexpr,  # noqa: N803
):
    """Add up one split of the positions for a tile of query rows of one key head."""
    tile = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    start = tl.load(position)
    row = tile * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    token = row // GROUP
    query_head = head * GROUP + row % GROUP
    is_row = token < length
    column = tl.arange(0, BLOCK_SIZE)
    is_column = column < SIZE
    num_heads = num_kv_heads * GROUP
    query = tl.load(
        queries + (token * num_heads + query_head)[:, None] * SIZE + column[None, :],
        mask=is_row[:, None] & is_column[None, :],
        other=0.0,
    )
    reach = start + token  # last position that a row sees
    last_token = tl.minimum(length, (tile * BLOCK_ROWS + BLOCK_ROWS - 1) // GROUP + 1)
    num_blocks = (start + last_token + BLOCK_POSITIONS - 1) // BLOCK_POSITIONS
    largest = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    mixed = tl.zeros([BLOCK_ROWS, BLOCK_SIZE], tl.float32)
    head_cache = cache + head * head_stride
    for block in range(split, num_blocks, NUM_SPLITS):
        at = block * BLOCK_POSITIONS + tl.arange(0, BLOCK_POSITIONS)
        is_used = at < start + length
        mask = is_used[:, None] & is_column[None, :]
        # int64: a cache of many layers is longer than 2**31 elements.
        offset = at.to(tl.int64)[:, None] * position_stride + column[None, :]
        key = tl.load(head_cache + offset, mask=mask, other=0.0)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        score = tl.where(at[None, :] <= reach[:, None], score, float("-inf"))
        higher = tl.maximum(largest, tl.max(score, 1))
        # A row that has seen nothing yet must not take infinity from infinity.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp2(score - base[:, None])
        shrink = tl.exp2(largest - base)
        total = total * shrink + tl.sum(weight, 1)
        value = tl.load(head_cache + kind_stride + offset, mask=mask, other=0.0)
        mixed = mixed * shrink[:, None]
        mixed += tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        largest = higher
    place = (split * length + token) * num_heads + query_head
    tl.store(
        partial + place[:, None].to(tl.int64) * SIZE + column[None, :],
        mixed,
        mask=is_row[:, None] & is_column[None, :],
    )
    tl.store(marks + place, largest, mask=is_row)
    tl.store(marks + NUM_SPLITS * length * num_heads + place, total, mask=is_row)


@triton.jit(do_not_specialize=["num_rows"])
def _combine(
    partial,
    marks,
    gate,
    output,
    num_rows,
    gate_stride,
    NUM_HEADS: tl.constexpr,  # noqa: N803
    SIZE: tl.constexpr,  # noqa: N803
    BLOCK_SIZE: tl.constexpr,  # noqa: N803
    NUM_SPLITS: tl.constexpr,  # noqa: N803
):
    """Bring the splits of one token and head together, and apply the gate."""
    row = tl.program_id(0)
    split = tl.arange(0, NUM_SPLITS)
    column = tl.arange(0, BLOCK_SIZE)
    is_column = column < SIZE
    place = split * num_rows + row
    largest = tl.load(marks + place)
    total = tl.load(marks + NUM_SPLITS * num_rows + place)
    weight = tl.exp2(largest - tl.max(largest, 0))
    mixed = tl.load(
        partial + place[:, None].to(tl.int64) * SIZE + column[None, :],
        mask=is_column[None, :],
        other=0.0,
    )
    result = tl.sum(mixed * weight[:, None], 0) / tl.sum(total * weight, 0)
    where = (row // NUM_HEADS) * gate_stride + (row % NUM_HEADS) * SIZE + column
    result *= tl.sigmoid(tl.load(gate + where, mask=is_column, other=0.0).to(tl.float32))
    tl.store(output + row * SIZE + column, result.to(output.dtype.element_ty), mask=is_column)
