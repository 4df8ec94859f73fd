"""Matrix products whose rows have the same bytes however many rows there are; CUDA only.

A library picks its kernel by the number of rows, and kernels add up in different orders.
Here a row's products are added in steps of one size, from the first to the last, whatever
the tiles, so that a long prefill and a short one agree to the bit. Where the library's
product of many rows turns out to be the same, it is used: it is faster.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# Names in capitals are constants of a compiled kernel, as Triton's own code has them.
# ruff: noqa: N803

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
import triton
import triton.language as tl
from torch import Tensor

from flashrt_ros.models.hybrid_config import BORDER_TOKENS
from flashrt_ros.models.hybrid_library_cuda import operator
from flashrt_ros.models.hybrid_ops import tiles

_WIDE_OUTPUT = 4096  # from here on a program takes more outputs
_STEP = 64  # columns that are added up at a time; part of what a row's bytes are


@operator("row_times_matrix(Tensor row, Tensor weight) -> Tensor")
def row_times_matrix(row: Tensor, weight: Tensor) -> Tensor:
    """Multiply ``[1, N]`` by ``[M, N]``, reading each weight once."""
    num_outputs, width = weight.shape
    output = row.new_empty((1, num_outputs))
    block = 4 if num_outputs <= _WIDE_OUTPUT else 8
    _row_kernel[(triton.cdiv(num_outputs, block),)](
        row.contiguous(),
        weight,
        output,
        num_outputs,
        WIDTH=width,
        BLOCK_OUTPUTS=block,
        BLOCK=min(512, triton.next_power_of_2(width)),
        num_warps=4,
    )
    return output


@operator("rows_times_matrix(Tensor rows, Tensor weight) -> Tensor")
def rows_times_matrix(rows: Tensor, weight: Tensor) -> Tensor:
    """Multiply ``[T, N]`` by ``[M, N]``; a row's bytes depend on neither ``T`` nor its place."""
    length, width = rows.shape
    num_outputs = weight.shape[0]
    output = rows.new_empty((length, num_outputs))
    is_wide = num_outputs > _WIDE_OUTPUT
    if length <= BORDER_TOKENS:
        # As many programs as a large device has processors, also for the narrow outputs; the
        # smaller the pieces, the more of them have to be under way.
        block_rows, num_warps = BORDER_TOKENS, 4
        block_outputs, num_stages = (64, 5) if is_wide else (16, 8)
    else:
        block_rows, block_outputs = 128, 256 if is_wide else 128
        num_warps, num_stages = 8, 3
    # Tiles of rows first: those of one piece of the weights run at the same time.
    grid = (triton.cdiv(length, block_rows), triton.cdiv(num_outputs, block_outputs))
    _rows_kernel[grid](
        rows.contiguous(),
        weight,
        output,
        length,
        num_outputs,
        WIDTH=width,
        BLOCK_ROWS=block_rows,
        BLOCK_OUTPUTS=block_outputs,
        BLOCK=_STEP,
        IS_EVEN=width % _STEP == 0,
        num_warps=num_warps,
        num_stages=num_stages,
    )
    return output


def agrees_with_library(weight: Tensor, length: int) -> bool:
    """Tell whether the library's product of ``length`` rows is :func:`rows_times_matrix`'s.

    To the bit, for random rows in every place: in which order a kernel adds does not depend
    on what it adds, and another order shows in some of the many results.
    """
    generator = torch.Generator(weight.device).manual_seed(0)
    rows = torch.randn((length, weight.shape[1]), generator=generator, device=weight.device).to(
        weight.dtype
    )
    short = torch.cat([rows_times_matrix(tile, weight) for tile in tiles(rows)])
    return torch.equal(F.linear(rows, weight), short)


@triton.jit
def _row_kernel(
    row,
    weight,
    output,
    num_outputs,
    WIDTH: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``[1, WIDTH]`` times ``[num_outputs, WIDTH]`` transposed."""
    at = tl.program_id(0) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    total = tl.zeros([BLOCK_OUTPUTS, BLOCK], tl.float32)
    for start in range(0, WIDTH, BLOCK):
        column = start + tl.arange(0, BLOCK)
        is_column = column < WIDTH
        factor = tl.load(row + column, mask=is_column, other=0.0).to(tl.float32)
        part = tl.load(
            weight + at[:, None].to(tl.int64) * WIDTH + column[None, :],
            mask=(at < num_outputs)[:, None] & is_column[None, :],
            other=0.0,
        )
        total += factor[None, :] * part.to(tl.float32)
    result = tl.sum(total, 1).to(output.dtype.element_ty)
    tl.store(output + at, result, mask=at < num_outputs)


@triton.jit(do_not_specialize=["num_rows"])
def _rows_kernel(
    rows,
    weight,
    output,
    num_rows,
    num_outputs,
    WIDTH: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_EVEN: tl.constexpr,
):
    """One tile of ``[num_rows, WIDTH]`` times ``[num_outputs, WIDTH]`` transposed."""
    row = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    at = tl.program_id(1) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    column = tl.arange(0, BLOCK)
    # Past the ends the last row and output are read again: no mask within the loop.
    read_row = tl.minimum(row, num_rows - 1).to(tl.int64)
    read_at = tl.minimum(at, num_outputs - 1).to(tl.int64)
    left = rows + read_row[:, None] * WIDTH + column[None, :]
    right = weight + read_at[:, None] * WIDTH + column[None, :]
    total = tl.zeros([BLOCK_ROWS, BLOCK_OUTPUTS], tl.float32)
    for start in range(0, WIDTH, BLOCK):
        if IS_EVEN:
            factors = tl.load(left + start)
            weights = tl.load(right + start)
        else:
            is_column = (start + column < WIDTH)[None, :]
            factors = tl.load(left + start, mask=is_column, other=0.0)
            weights = tl.load(right + start, mask=is_column, other=0.0)
        total = tl.dot(factors, tl.trans(weights), total, input_precision="ieee")
    place = output + row.to(tl.int64)[:, None] * num_outputs + at[None, :]
    tl.store(
        place,
        total.to(output.dtype.element_ty),
        mask=(row < num_rows)[:, None] & (at < num_outputs)[None, :],
    )
