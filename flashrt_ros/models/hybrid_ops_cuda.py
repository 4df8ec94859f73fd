"""The operations of a hybrid model's layers as Triton kernels; CUDA only.

One token is hundreds of small operations: a kernel for each would cost more in launches
than the weights cost to read. Here a layer is about a dozen.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from flashrt_ros.models.hybrid_attention_cuda import triton_attention
from flashrt_ros.models.hybrid_config import HybridConfig
from flashrt_ros.models.hybrid_kernels_cuda import (
    add_norm_kernel,
    convolve_kernel,
    gated_norm_kernel,
    gates_kernel,
    keep_past_kernel,
    place_heads_kernel,
    row_times_matrix_kernel,
    silu_product_kernel,
)
from flashrt_ros.models.hybrid_ops import TorchOps
from flashrt_ros.models.hybrid_weights import FullWeights, LinearWeights

_BLOCK = 1024
_WIDE_OUTPUT = 4096  # from here on a program takes more outputs


class TritonOps(TorchOps):
    """As :class:`TorchOps`; sums and gates are rounded once, at their end."""

    def project(self, rows: Tensor, weight: Tensor) -> Tensor:
        """Multiply rows by a matrix; one row by a kernel that reads each weight once."""
        if rows.shape[0] != 1:
            return super().project(rows, weight)
        num_outputs, width = weight.shape
        output = rows.new_empty((1, num_outputs))
        block = 4 if num_outputs <= _WIDE_OUTPUT else 8
        row_times_matrix_kernel[(triton.cdiv(num_outputs, block),)](
            rows.contiguous(),
            weight,
            output,
            num_outputs,
            WIDTH=width,
            BLOCK_OUTPUTS=block,
            BLOCK=min(512, triton.next_power_of_2(width)),
            num_warps=4,
        )
        return output

    def add_norm(
        self, rows: Tensor, change: Tensor | None, scale: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Add a layer's change to its input, and divide rows by their root mean square."""
        normal = torch.empty_like(rows)
        total = rows if change is None else torch.empty_like(rows)
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
        return total, normal

    def silu_product(self, projected: Tensor) -> Tensor:
        """Multiply one half of the columns by the SiLU of the other."""
        length, width = projected.shape[0], projected.shape[1] // 2
        output = projected.new_empty((length, width))
        silu_product_kernel[(length, triton.cdiv(width, _BLOCK))](
            projected, output, WIDTH=width, BLOCK=_BLOCK, num_warps=4
        )
        return output

    def convolve(
        self, projected: Tensor, taps: Tensor, past: Tensor, num_valid: Tensor | None
    ) -> Tensor:
        """Convolve each column with its own taps, causally, and apply SiLU."""
        length, (width, columns) = projected.shape[0], taps.shape
        output = projected.new_empty((length, columns))
        num_blocks = triton.cdiv(columns, _BLOCK)
        convolve_kernel[(length, num_blocks)](
            projected,
            taps,
            past,
            output,
            projected.stride(0),
            COLUMNS=columns,
            TAPS=width,
            BLOCK=_BLOCK,
            IS_TOKEN=num_valid is None,
            num_warps=4,
        )
        if num_valid is not None:
            # After the one above: its programs read the past that this one replaces.
            keep_past_kernel[(num_blocks,)](
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

    def gates(
        self, strength: Tensor, step: Tensor, weights: LinearWeights, num_valid: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return decay and write strength of each token and head."""
        length, heads = step.shape
        both = torch.empty((2, length, heads), dtype=torch.float32, device=step.device)
        gates_kernel[(length,)](
            strength,
            step,
            weights.decay,
            weights.step_bias,
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
        return both[0], both[1]

    def gated_norm(self, output: Tensor, gate: Tensor, scale: Tensor, eps: float) -> Tensor:
        """Divide each head by its root mean square, and multiply by the SiLU of its gate."""
        length, heads, size = output.shape
        result = output.new_empty((length, heads * size))
        gated_norm_kernel[(length * heads,)](
            output.contiguous(),
            gate,
            scale,
            result,
            gate.stride(0),
            eps,
            HEADS=heads,
            SIZE=size,
            BLOCK=triton.next_power_of_2(size),
            num_warps=1,
        )
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
        queries = projected.new_empty((length, heads, size))
        place_heads_kernel[(length, heads + config.num_kv_heads)](
            projected,
            weights.query_norm,
            weights.key_norm,
            weights.frequencies,
            position,
            queries,
            cache,
            projected.stride(0),
            cache.stride(0),
            cache.stride(1),
            cache.stride(2),
            config.norm_eps,
            HEADS=heads,
            SIZE=size,
            BLOCK=triton.next_power_of_2(size),
            HALF=config.rotary_dim // 2,
            num_warps=2,
        )
        gate = projected[:, heads * size : 2 * heads * size].view(length, heads, size)
        return queries, gate

    def attend(self, queries: Tensor, gate: Tensor, cache: Tensor, position: Tensor) -> Tensor:
        """Attend to all positions up to each token's own, and multiply by the gate."""
        return triton_attention(queries, gate, cache, position)
