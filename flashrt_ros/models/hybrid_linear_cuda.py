"""The gated delta rule over a chunk by flash-linear-attention's Triton kernels; CUDA only.

The package is imported where it is chosen, because it takes seconds.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping

from torch import Tensor

from flashrt_ros.models.hybrid_delta_cuda import unit_pair
from flashrt_ros.models.hybrid_library_cuda import operator
from flashrt_ros.models.hybrid_linear import DeltaInputs

_LAUNCHES: Mapping[str, tuple[str, dict[str, int], int, int]] = {
    "chunk_local_cumsum_scalar_kernel": ("fla.ops.utils.cumsum", {}, 4, 3),
    "chunk_gated_delta_rule_fwd_kkt_solve_kernel": (
        "fla.ops.gated_delta_rule.chunk_fwd",
        {"BK": 64},
        4,
        3,
    ),
    "recompute_w_u_fwd_kernel": ("fla.ops.gated_delta_rule.wy_fast", {}, 4, 3),
    "chunk_gated_delta_rule_fwd_kernel_h_blockdim64": (
        "fla.ops.common.chunk_delta_h",
        {"BV": 32},
        4,
        2,
    ),
    "chunk_fwd_kernel_o": ("fla.ops.common.chunk_o", {"BK": 64, "BV": 64}, 4, 3),
    "l2norm_fwd_kernel": ("fla.modules.norm.l2norm", {"BT": 32}, 4, 3),
}
"""Of the kernels of a forward pass: module, block sizes, warps and stages of their launches."""


def fla_delta_chunk(inputs: DeltaInputs, state: Tensor) -> Tensor:
    """Apply the rule to a chunk; as :func:`~.hybrid_linear.torch_delta_chunk`."""
    output: Tensor = _delta_chunk(
        inputs.queries, inputs.keys, inputs.values, inputs.decay, inputs.strength, state
    )
    return output


@functools.cache
def fix_launches() -> tuple[str, ...]:
    """Give the package's kernels one launch setting each, in place of a search.

    By itself it compiles up to 25 variants of each kernel and times them at the first call of
    every shape: about a minute, in which nothing is heard of it. And which one wins differs
    from process to process, and with it the last bits.

    Returns:
        Names of the kernels that were fixed. One that the installed version lacks, or that
        has no such setting, is left to its search.
    """
    fixed = []
    for name, (module, blocks, num_warps, num_stages) in _LAUNCHES.items():
        try:
            kernel = getattr(importlib.import_module(module), name, None)
        except ImportError:
            continue
        while kernel is not None and not hasattr(kernel, "configs"):
            kernel = getattr(kernel, "fn", None)
        wanted = [
            config
            for config in getattr(kernel, "configs", ())
            if config.num_warps == num_warps
            and blocks.items() <= config.kwargs.items()
            and config.num_stages == num_stages
        ]
        if kernel is not None and wanted:
            kernel.configs = wanted[:1]
            fixed.append(name)
    return tuple(fixed)


@operator(
    "delta_chunk(Tensor queries, Tensor keys, Tensor values, Tensor decay, Tensor strength, "
    "Tensor(a!) state) -> Tensor"
)
def _delta_chunk(
    queries: Tensor, keys: Tensor, values: Tensor, decay: Tensor, strength: Tensor, state: Tensor
) -> Tensor:
    rule = importlib.import_module("fla.ops.gated_delta_rule").chunk_gated_delta_rule
    # Made unit here: the package's own kernel for it adds up in another order where there are
    # many rows. What it returns as state is new memory, and is copied back to its address.
    unit_queries, unit_keys = unit_pair(queries, keys)
    output, following = rule(
        unit_queries[None],
        unit_keys[None],
        values[None].contiguous(),
        g=decay[None].contiguous(),
        beta=strength[None].contiguous(),
        initial_state=state[None],
        output_final_state=True,
        use_qk_l2norm_in_kernel=False,
    )
    state.copy_(following[0])
    result: Tensor = output[0]
    return result
