"""Triton kernels between a hybrid model's matrices; ``hybrid_ops_cuda`` says what each does.

All arithmetic is float32; what is stored is rounded once. ``BLOCK`` is a power of two that
covers the extent it is masked to.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Names in capitals are constants of a compiled kernel, as Triton's own code has them.
# ruff: noqa: N803


@triton.jit
def add_norm_kernel(
    rows,
    change,
    scale,
    total,
    normal,
    eps,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_CHANGE: tl.constexpr,
):
    """One row: the sum, rounded as it is stored, and its norm."""
    start = tl.program_id(0).to(tl.int64) * WIDTH
    column = tl.arange(0, BLOCK)
    is_column = column < WIDTH
    value = tl.load(rows + start + column, mask=is_column, other=0.0).to(tl.float32)
    if HAS_CHANGE:
        value += tl.load(change + start + column, mask=is_column, other=0.0).to(tl.float32)
        rounded = value.to(total.dtype.element_ty)
        tl.store(total + start + column, rounded, mask=is_column)
        value = rounded.to(tl.float32)
    value *= tl.rsqrt(tl.sum(value * value, 0) / WIDTH + eps)
    value *= tl.load(scale + column, mask=is_column, other=0.0)
    tl.store(normal + start + column, value.to(normal.dtype.element_ty), mask=is_column)


@triton.jit
def silu_product_kernel(projected, output, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """A block of one row."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = column < WIDTH
    source = projected + row * 2 * WIDTH + column
    gate = tl.load(source, mask=is_column, other=0.0).to(tl.float32)
    value = tl.load(source + WIDTH, mask=is_column, other=0.0).to(tl.float32)
    result = gate * tl.sigmoid(gate) * value
    tl.store(output + row * WIDTH + column, result.to(output.dtype.element_ty), mask=is_column)


@triton.jit
def convolve_token_kernel(
    projected,
    taps,
    past,
    output,
    COLUMNS: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A block of columns of the only token; their past moves on."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_column = column < COLUMNS
    newest = tl.load(projected + column, mask=is_column, other=0.0)
    total = tl.zeros([BLOCK], tl.float32)
    for at in tl.static_range(TAPS - 1):
        # A row is read before the one before it takes its place.
        old = tl.load(past + at * COLUMNS + column, mask=is_column, other=0.0)
        tap = tl.load(taps + at * COLUMNS + column, mask=is_column, other=0.0)
        total += old.to(tl.float32) * tap.to(tl.float32)
        tl.debug_barrier()  # for threads that share columns
        if at > 0:
            tl.store(past + (at - 1) * COLUMNS + column, old, mask=is_column)
    tap = tl.load(taps + (TAPS - 1) * COLUMNS + column, mask=is_column, other=0.0)
    total += newest.to(tl.float32) * tap.to(tl.float32)
    tl.store(past + (TAPS - 2) * COLUMNS + column, newest, mask=is_column)
    result = total * tl.sigmoid(total)
    tl.store(output + column, result.to(output.dtype.element_ty), mask=is_column)


@triton.jit(do_not_specialize=["length"])
def convolve_kernel(
    projected,
    taps,
    past,
    output,
    length,
    row_stride,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    COLUMNS: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
):
    """A block of columns of a few tokens; the output is three parts, one after the other.

    The first takes the columns up to ``FIRST``, the second those up to ``SECOND``.
    """
    token = (tl.program_id(0) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS))[:, None]
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    is_column = column < COLUMNS
    total = tl.zeros([BLOCK_TOKENS, BLOCK], tl.float32)
    for at in tl.static_range(TAPS):
        source = token + at - (TAPS - 1)
        new = tl.load(
            projected + source.to(tl.int64) * row_stride + column,
            mask=is_column & (source >= 0) & (source < length),
            other=0.0,
        )
        old = tl.load(
            past + (source + TAPS - 1) * COLUMNS + column,
            mask=is_column & (source < 0),
            other=0.0,
        )
        tap = tl.load(taps + at * COLUMNS + column, mask=is_column, other=0.0).to(tl.float32)
        total += (new.to(tl.float32) + old.to(tl.float32)) * tap
    result = total * tl.sigmoid(total)
    start = tl.where(column < FIRST, 0, tl.where(column < SECOND, FIRST, SECOND))
    end = tl.where(column < FIRST, FIRST, tl.where(column < SECOND, SECOND, COLUMNS))
    place = length * start + token * (end - start) + column - start
    mask = is_column & (token < length)
    tl.store(output + place, result.to(output.dtype.element_ty), mask=mask)


@triton.jit
def keep_past_kernel(
    projected,
    past,
    num_valid,
    row_stride,
    COLUMNS: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A block of columns: the last valid inputs, from these tokens or from before them."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_column = column < COLUMNS
    valid = tl.load(num_valid) + tl.zeros([BLOCK], tl.int64)  # a vector, as masks are
    # A row is read from its own place or a later one, so that none is overwritten unread.
    for at in tl.static_range(TAPS - 1):
        source = valid + at - (TAPS - 1)
        new = tl.load(
            projected + source * row_stride + column,
            mask=is_column & (source >= 0),
            other=0.0,
        )
        old = tl.load(
            past + (valid + at) * COLUMNS + column, mask=is_column & (source < 0), other=0.0
        )
        kept = tl.where(source >= 0, new, old)
        tl.debug_barrier()  # for threads that share columns
        tl.store(past + at * COLUMNS + column, kept, mask=is_column)


@triton.jit
def gates_kernel(
    strength,
    step,
    rate,
    bias,
    num_valid,
    both,
    length,
    strength_stride,
    step_stride,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_PADDING: tl.constexpr,
):
    """One token: decay ``rate * softplus(step + bias)`` and write strength, 0 in padding."""
    token = tl.program_id(0)
    head = tl.arange(0, BLOCK)
    is_head = head < HEADS
    write = tl.load(strength + token * strength_stride + head, mask=is_head, other=0.0)
    write = tl.sigmoid(write.to(tl.float32))
    x = tl.load(step + token * step_stride + head, mask=is_head, other=0.0).to(tl.float32)
    x += tl.load(bias + head, mask=is_head, other=0.0)
    power = tl.exp(tl.minimum(x, 20.0))
    # log(1 + e) loses a small e; the series is exact to float32 below a hundredth.
    series = power * (1.0 - power * (0.5 - power * (1.0 / 3.0)))
    soft = tl.where(power < 0.01, series, tl.log(1.0 + power))
    decay = tl.where(x > 20.0, x, soft) * tl.load(rate + head, mask=is_head, other=0.0)
    if HAS_PADDING:
        counts = token < tl.load(num_valid)
        write = tl.where(counts, write, 0.0)
        decay = tl.where(counts, decay, 0.0)
    tl.store(both + token * HEADS + head, decay, mask=is_head)
    tl.store(both + (length + token) * HEADS + head, write, mask=is_head)


@triton.jit
def gated_norm_kernel(
    values,
    gate,
    scale,
    result,
    gate_stride,
    eps,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
):
    """A few heads of one token."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    column = tl.arange(0, BLOCK)
    is_column = column < SIZE
    mask = (head < HEADS)[:, None] & is_column[None, :]
    inside = head[:, None] * SIZE + column[None, :]
    value = tl.load(values + token * HEADS * SIZE + inside, mask=mask, other=0.0).to(tl.float32)
    value *= tl.rsqrt(tl.sum(value * value, 1) / SIZE + eps)[:, None]
    value *= tl.load(scale + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    z = tl.load(gate + token * gate_stride + inside, mask=mask, other=0.0).to(tl.float32)
    value *= z * tl.sigmoid(z)
    place = result + token * HEADS * SIZE + inside
    tl.store(place, value.to(result.dtype.element_ty), mask=mask)


@triton.jit
def place_heads_kernel(
    projected,
    query_norm,
    key_norm,
    frequencies,
    position,
    queries,
    cache,
    row_stride,
    position_stride,
    kind_stride,
    head_stride,
    eps,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    HALF: tl.constexpr,
):
    """One query head, or one head of keys and values, of one token."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    at = tl.load(position) + token
    column = tl.arange(0, BLOCK)
    is_column = column < SIZE
    is_turned = column < 2 * HALF
    partner = tl.where(column < HALF, column + HALF, tl.where(is_turned, column - HALF, column))
    is_query = head < HEADS
    heads = head + tl.zeros([BLOCK], tl.int32)  # a vector, as masks are
    source = projected + token * row_stride
    source += tl.where(is_query, head, HEADS + head) * SIZE  # past queries and their gates
    x = tl.load(source + column, mask=is_column, other=0.0).to(tl.float32)
    y = tl.load(source + partner, mask=is_column, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(x * x, 0) / SIZE + eps)
    query_scale = tl.load(query_norm + column, mask=is_column & (heads < HEADS), other=0.0)
    key_scale = tl.load(key_norm + column, mask=is_column & (heads >= HEADS), other=0.0)
    x *= inverse * (query_scale + key_scale)
    query_scale = tl.load(query_norm + partner, mask=is_column & (heads < HEADS), other=0.0)
    key_scale = tl.load(key_norm + partner, mask=is_column & (heads >= HEADS), other=0.0)
    y *= inverse * (query_scale + key_scale)
    angle = at.to(tl.float32) * tl.load(frequencies + column % HALF, mask=is_turned, other=0.0)
    sine = tl.where(column < HALF, -tl.sin(angle), tl.sin(angle))
    turned = (x * tl.cos(angle) + y * sine).to(queries.dtype.element_ty)
    if is_query:
        tl.store(queries + (token * HEADS + head) * SIZE + column, turned, mask=is_column)
    else:
        place = cache + at * position_stride + (head - HEADS) * head_stride + column
        tl.store(place, turned, mask=is_column)
        value = tl.load(source + (tl.num_programs(1) - HEADS) * SIZE + column, mask=is_column)
        tl.store(place + kind_stride, value, mask=is_column)
