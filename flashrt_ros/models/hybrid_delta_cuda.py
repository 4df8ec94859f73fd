"""The gated delta rule over one token, in place, and what a chunk of it needs; CUDA only."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashrt_ros.models.hybrid_library_cuda import operator
from flashrt_ros.models.hybrid_linear import NORM_EPS, DeltaInputs

_BLOCK_VALUES = 8  # columns of a state that a program keeps in its registers
_BLOCK_ROWS = 16


def triton_delta_step(inputs: DeltaInputs, state: Tensor) -> Tensor:
    """Apply the rule to one token; as :func:`~.hybrid_linear.torch_delta_step`."""
    output: Tensor = _delta_step(
        inputs.queries, inputs.keys, inputs.values, inputs.decay, inputs.strength, state
    )
    return output


@operator(
    "delta_step(Tensor queries, Tensor keys, Tensor values, Tensor decay, Tensor strength, "
    "Tensor(a!) state) -> Tensor"
)
def _delta_step(
    queries: Tensor, keys: Tensor, values: Tensor, decay: Tensor, strength: Tensor, state: Tensor
) -> Tensor:
    num_heads, key_size, value_size = state.shape
    output = torch.empty_like(values)
    _step_kernel[(triton.cdiv(value_size, _BLOCK_VALUES), num_heads)](
        queries.contiguous(),
        keys.contiguous(),
        values.contiguous(),
        decay.contiguous(),
        strength.contiguous(),
        state,
        output,
        key_size**-0.5,
        NORM_EPS,
        GROUP=num_heads // keys.shape[1],
        KEY_SIZE=key_size,
        VALUE_SIZE=value_size,
        BLOCK_KEYS=triton.next_power_of_2(key_size),
        BLOCK_VALUES=_BLOCK_VALUES,
        num_warps=1,
    )
    return output


def unit_pair(queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Divide each row of both, ``[T, H, D]``, by its length; inside an operator only."""
    queries, keys = queries.contiguous(), keys.contiguous()
    units = torch.empty_like(queries), torch.empty_like(keys)
    size = queries.shape[-1]
    num_rows = queries.numel() // size
    _unit_kernel[(triton.cdiv(num_rows, _BLOCK_ROWS), 2)](
        queries,
        keys,
        *units,
        num_rows,
        NORM_EPS,
        SIZE=size,
        BLOCK=triton.next_power_of_2(size),
        BLOCK_ROWS=_BLOCK_ROWS,
        num_warps=4,
    )
    return units


@triton.jit
def _step_kernel(
    queries,
    keys,
    values,
    decay,
    strength,
    state,
    output,
    scale,
    eps,
    GROUP: tl.constexpr,
    KEY_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_VALUES: tl.constexpr,
):
    """A few columns of one head's state."""
    column = tl.program_id(0) * BLOCK_VALUES + tl.arange(0, BLOCK_VALUES)
    head = tl.program_id(1)
    row = tl.arange(0, BLOCK_KEYS)
    is_row, is_column = row < KEY_SIZE, column < VALUE_SIZE
    source = (head // GROUP) * KEY_SIZE + row
    query = tl.load(queries + source, mask=is_row, other=0.0).to(tl.float32)
    key = tl.load(keys + source, mask=is_row, other=0.0).to(tl.float32)
    query *= tl.rsqrt(tl.sum(query * query, 0) + eps) * scale
    key *= tl.rsqrt(tl.sum(key * key, 0) + eps)
    value = tl.load(values + head * VALUE_SIZE + column, mask=is_column, other=0.0)
    place = state + (head * KEY_SIZE + row[:, None]) * VALUE_SIZE + column[None, :]
    mask = is_row[:, None] & is_column[None, :]
    held = tl.load(place, mask=mask, other=0.0) * tl.exp(tl.load(decay + head))
    missing = value.to(tl.float32) - tl.sum(held * key[:, None], 0)
    held += key[:, None] * (tl.load(strength + head) * missing)[None, :]
    tl.store(place, held, mask=mask)
    result = tl.sum(held * query[:, None], 0).to(output.dtype.element_ty)
    tl.store(output + head * VALUE_SIZE + column, result, mask=is_column)


@triton.jit(do_not_specialize=["num_rows"])
def _unit_kernel(
    queries,
    keys,
    unit_queries,
    unit_keys,
    num_rows,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    """A few rows of one of the two."""
    if tl.program_id(1) == 0:
        rows, output = queries, unit_queries
    else:
        rows, output = keys, unit_keys
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    column = tl.arange(0, BLOCK)
    place = row.to(tl.int64)[:, None] * SIZE + column[None, :]
    mask = (row < num_rows)[:, None] & (column < SIZE)[None, :]
    value = tl.load(rows + place, mask=mask, other=0.0).to(tl.float32)
    value *= tl.rsqrt(tl.sum(value * value, 1) + eps)[:, None]
    tl.store(output + place, value.to(output.dtype.element_ty), mask=mask)
