"""The gated delta rule by flash-linear-attention's Triton kernels; CUDA only.

The package picks its kernels' launch settings by timing them at their first calls: run a
program before it is captured. It is imported at the first call, because it takes seconds.
"""

from __future__ import annotations

from torch import Tensor

from flashrt_ros.models.hybrid_linear import DeltaInputs


def fla_delta_chunk(inputs: DeltaInputs, state: Tensor) -> Tensor:
    """Apply the rule to a chunk; as :func:`~.hybrid_linear.torch_delta_chunk`."""
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    return _apply(chunk_gated_delta_rule, inputs, state)


def fla_delta_step(inputs: DeltaInputs, state: Tensor) -> Tensor:
    """Apply the rule to one token; as :func:`~.hybrid_linear.torch_delta_step`."""
    from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule

    return _apply(fused_recurrent_gated_delta_rule, inputs, state)


def _apply(rule, inputs: DeltaInputs, state: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
    # The kernels allocate the state they return: it is copied back to its fixed address.
    output, following = rule(
        inputs.queries[None].contiguous(),
        inputs.keys[None].contiguous(),
        inputs.values[None].contiguous(),
        g=inputs.decay[None].contiguous(),
        beta=inputs.strength[None].contiguous(),
        initial_state=state[None],
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    state.copy_(following[0])
    result: Tensor = output[0]
    return result
