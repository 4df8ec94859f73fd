"""The operations of a hybrid model's layers as Triton kernels; CUDA only.

One token is hundreds of small operations: a kernel for each would cost more in launches
than the weights cost to read. Here a layer is about a dozen. A chunk of any length gives a
row the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F  # noqa: N812
import triton
from torch import Tensor

from flashrt_ros.models.hybrid_attention_cuda import triton_attention
from flashrt_ros.models.hybrid_choose_cuda import choose
from flashrt_ros.models.hybrid_config import BORDER_TOKENS, HybridConfig
from flashrt_ros.models.hybrid_kernels_cuda import (
    add_norm_kernel,
    convolve_kernel,
    convolve_token_kernel,
    gated_norm_kernel,
    gates_kernel,
    keep_past_kernel,
    place_heads_kernel,
    silu_product_kernel,
)
from flashrt_ros.models.hybrid_library_cuda import operator
from flashrt_ros.models.hybrid_matrix_cuda import (
    agrees_with_library,
    row_times_matrix,
    rows_times_matrix,
)
from flashrt_ros.models.hybrid_ops import TorchOps
from flashrt_ros.models.hybrid_weights import FullWeights, LinearWeights

_BLOCK = 1024
_CHUNK_BLOCK, _CHUNK_TOKENS = 128, 16
_CHUNK_HEADS = 8
_NARROW = (torch.bfloat16, torch.float16)

_Product = tuple[tuple[int, ...], torch.dtype, int]
"""Shape and dtype of a matrix, and rows that it is multiplied with."""


class TritonOps(TorchOps):
    """As :class:`TorchOps`; sums and gates are rounded once, at their end."""

    def __init__(self) -> None:
        self._by_library: set[_Product] = set()

    @property
    def by_library(self) -> frozenset[tuple[int, ...]]:
        """Shapes of the matrices whose long products the library makes."""
        return frozenset(shape for shape, _, _ in self._by_library)

    def prepare(self, matrices: Iterable[Tensor], length: int) -> None:
        """Find the matrices whose long products the library may make: see ``project``."""
        if length <= BORDER_TOKENS:
            return
        seen: set[_Product] = set()
        for matrix in matrices:
            key = (tuple(matrix.shape), matrix.dtype, length)
            if matrix.dtype in _NARROW and matrix.is_cuda and key not in seen:
                seen.add(key)
                if agrees_with_library(matrix, length):
                    self._by_library.add(key)

    def project(self, rows: Tensor, weight: Tensor) -> Tensor:
        """Multiply rows by a matrix; a row's bytes don't depend on how many rows there are.

        In float32 64 rows at a time; in 16 bits by a kernel of our own, or by the library
        where :meth:`prepare` found that its product of so many rows is the same.
        """
        length = rows.shape[0]
        if length == 1:
            output: Tensor = row_times_matrix(rows, weight)
        elif weight.dtype not in _NARROW:
            output = torch.cat([F.linear(tile, weight) for tile in _tiled(rows)])
        elif (tuple(weight.shape), weight.dtype, length) in self._by_library:
            output = F.linear(rows, weight)
        else:
            output = rows_times_matrix(rows, weight)
        return output

    def add_norm(
        self, rows: Tensor, change: Tensor | None, scale: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Add a layer's change to its input, and divide rows by their root mean square."""
        if change is None:
            return rows, _norm(rows, scale, eps)
        total, normal = _add_norm(rows, change, scale, eps)
        return total, normal

    def silu_product(self, projected: Tensor) -> Tensor:
        """Multiply one half of the columns by the SiLU of the other."""
        output: Tensor = _silu_product(projected)
        return output

    def convolve(
        self,
        projected: Tensor,
        taps: Tensor,
        past: Tensor,
        num_valid: Tensor | None,
        sizes: tuple[int, ...],
    ) -> tuple[Tensor, ...]:
        """Convolve each column with its own taps, causally, and apply SiLU; each part whole."""
        length = projected.shape[0]
        flat: Tensor = _convolve(projected, taps, past, num_valid, list(sizes))
        parts = torch.split_with_sizes(flat, [length * size for size in sizes])
        return tuple(part.view(length, size) for part, size in zip(parts, sizes, strict=True))

    def gates(
        self, strength: Tensor, step: Tensor, weights: LinearWeights, num_valid: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return decay and write strength of each token and head."""
        both: Tensor = _gates(strength, step, weights.decay, weights.step_bias, num_valid)
        return both[0], both[1]

    def gated_norm(self, output: Tensor, gate: Tensor, scale: Tensor, eps: float) -> Tensor:
        """Divide each head by its root mean square, and multiply by the SiLU of its gate."""
        result: Tensor = _gated_norm(output, gate, scale, eps)
        return result

    def place_heads(
        self,
        projected: Tensor,
        weights: FullWeights,
        config: HybridConfig,
        cache: Tensor,
        position: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Norm and rotate queries and keys, and write keys and values into the cache."""
        length, heads, size = projected.shape[0], config.num_heads, config.head_dim
        queries: Tensor = _place_heads(
            projected,
            weights.query_norm,
            weights.key_norm,
            weights.frequencies,
            cache,
            position,
            heads,
            config.norm_eps,
        )
        gate = projected[:, heads * size : 2 * heads * size].view(length, heads, size)
        return queries, gate

    def attend(self, queries: Tensor, gate: Tensor, cache: Tensor, position: Tensor) -> Tensor:
        """Attend to all positions up to each token's own, and multiply by the gate."""
        output: Tensor = triton_attention(queries, gate, cache, position)
        return output

    def choose(
        self, logits: Tensor, bias: Tensor, log_noise: Tensor, temperature: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Choose a token; candidates are looked for above temperature 0 only."""
        token, log_probability = choose(logits, bias, log_noise, temperature)
        return token, log_probability


@operator("norm(Tensor rows, Tensor scale, float eps) -> Tensor")
def _norm(rows: Tensor, scale: Tensor, eps: float) -> Tensor:
    normal = torch.empty_like(rows)
    _launch_norm(rows, None, scale, rows, normal, eps)
    return normal


@operator("add_norm(Tensor rows, Tensor change, Tensor scale, float eps) -> (Tensor, Tensor)")
def _add_norm(rows: Tensor, change: Tensor, scale: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total, normal = torch.empty_like(rows), torch.empty_like(rows)
    _launch_norm(rows, change, scale, total, normal, eps)
    return total, normal


def _launch_norm(
    rows: Tensor, change: Tensor | None, scale: Tensor, total: Tensor, normal: Tensor, eps: float
) -> None:
    add_norm_kernel[(rows.shape[0],)](
        rows,
        change,
        scale,
        total,
        normal,
        eps,
        WIDTH=rows.shape[1],
        BLOCK=triton.next_power_of_2(rows.shape[1]),
        HAS_CHANGE=change is not None,
        num_warps=4,
    )


@operator("silu_product(Tensor projected) -> Tensor")
def _silu_product(projected: Tensor) -> Tensor:
    length, width = projected.shape[0], projected.shape[1] // 2
    output = projected.new_empty((length, width))
    silu_product_kernel[(length, triton.cdiv(width, _BLOCK))](
        projected, output, WIDTH=width, BLOCK=_BLOCK, num_warps=4
    )
    return output


@operator(
    "convolve(Tensor projected, Tensor taps, Tensor(a!) past, Tensor? num_valid, int[] sizes) "
    "-> Tensor"
)
def _convolve(
    projected: Tensor, taps: Tensor, past: Tensor, num_valid: Tensor | None, sizes: list[int]
) -> Tensor:
    length, (width, columns) = projected.shape[0], taps.shape
    output = projected.new_empty(length * columns)
    if num_valid is None:
        # Of one token the parts lie as its columns do.
        convolve_token_kernel[(triton.cdiv(columns, _BLOCK),)](
            projected, taps, past, output, COLUMNS=columns, TAPS=width, BLOCK=_BLOCK, num_warps=4
        )
        return output
    first, second, _ = sizes
    convolve_kernel[(triton.cdiv(length, _CHUNK_TOKENS), triton.cdiv(columns, _CHUNK_BLOCK))](
        projected,
        taps,
        past,
        output,
        length,
        projected.stride(0),
        FIRST=first,
        SECOND=first + second,
        COLUMNS=columns,
        TAPS=width,
        BLOCK=_CHUNK_BLOCK,
        BLOCK_TOKENS=_CHUNK_TOKENS,
        num_warps=4,
    )
    # After the one above: its programs read the past that this one replaces.
    keep_past_kernel[(triton.cdiv(columns, _BLOCK),)](
        projected,
        past,
        num_valid,
        projected.stride(0),
        COLUMNS=columns,
        TAPS=width,
        BLOCK=_BLOCK,
        num_warps=4,
    )
    return output


@operator(
    "gates(Tensor strength, Tensor step, Tensor rate, Tensor bias, Tensor? num_valid) -> Tensor"
)
def _gates(
    strength: Tensor, step: Tensor, rate: Tensor, bias: Tensor, num_valid: Tensor | None
) -> Tensor:
    length, heads = step.shape
    both = torch.empty((2, length, heads), dtype=torch.float32, device=step.device)
    gates_kernel[(length,)](
        strength,
        step,
        rate,
        bias,
        num_valid,
        both,
        length,
        strength.stride(0),
        step.stride(0),
        HEADS=heads,
        BLOCK=triton.next_power_of_2(heads),
        HAS_PADDING=num_valid is not None,
        num_warps=1,
    )
    return both


@operator("gated_norm(Tensor output, Tensor gate, Tensor scale, float eps) -> Tensor")
def _gated_norm(output: Tensor, gate: Tensor, scale: Tensor, eps: float) -> Tensor:
    length, heads, size = output.shape
    result = output.new_empty((length, heads * size))
    block_heads = 1 if length == 1 else _CHUNK_HEADS
    gated_norm_kernel[(length, triton.cdiv(heads, block_heads))](
        output.contiguous(),
        gate,
        scale,
        result,
        gate.stride(0),
        eps,
        HEADS=heads,
        SIZE=size,
        BLOCK=triton.next_power_of_2(size),
        BLOCK_HEADS=block_heads,
        num_warps=1 if length == 1 else 4,
    )
    return result


@operator(
    "place_heads(Tensor projected, Tensor query_norm, Tensor key_norm, Tensor frequencies, "
    "Tensor(a!) cache, Tensor position, int num_heads, float eps) -> Tensor"
)
def _place_heads(
    projected: Tensor,
    query_norm: Tensor,
    key_norm: Tensor,
    frequencies: Tensor,
    cache: Tensor,
    position: Tensor,
    num_heads: int,
    eps: float,
) -> Tensor:
    length, num_kv_heads, size = projected.shape[0], cache.shape[2], cache.shape[3]
    queries = projected.new_empty((length, num_heads, size))
    place_heads_kernel[(length, num_heads + num_kv_heads)](
        projected,
        query_norm,
        key_norm,
        frequencies,
        position,
        queries,
        cache,
        projected.stride(0),
        cache.stride(0),
        cache.stride(1),
        cache.stride(2),
        eps,
        HEADS=num_heads,
        SIZE=size,
        BLOCK=triton.next_power_of_2(size),
        HALF=frequencies.shape[0],
        num_warps=2,
    )
    return queries


def _tiled(rows: Tensor) -> tuple[Tensor, ...]:
    """Cut rows into tiles of 64, the last one shorter where they are no multiple."""
    starts = range(0, rows.shape[0], BORDER_TOKENS)
    return tuple(rows[start : start + BORDER_TOKENS] for start in starts)
