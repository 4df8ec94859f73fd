"""Which implementations a hybrid model runs on."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from flashrt_ros.errors import ConfigError
from flashrt_ros.models.hybrid_linear import DeltaRule, torch_delta_chunk, torch_delta_step
from flashrt_ros.models.hybrid_ops import TorchOps


@dataclass(frozen=True, slots=True)
class HybridKernels:
    """One choice of implementations; part of what a capsule's bytes depend on.

    Attributes:
        name: For fingerprints and reports, e.g. "triton+fla".
        ops: Matrices, attention over the cache, and what lies between.
        delta_chunk: Linear attention over a chunk.
        delta_step: Linear attention over one token.
    """

    name: str
    ops: TorchOps
    delta_chunk: DeltaRule
    delta_step: DeltaRule


TORCH_KERNELS = HybridKernels("torch", TorchOps(), torch_delta_chunk, torch_delta_step)
"""Runs on every device."""


def select_kernels(device: str, *, ops: str = "auto", linear: str = "auto") -> HybridKernels:
    """Pick implementations for a device.

    Args:
        device: As torch names it; anything but "cuda" runs on torch.
        ops: "triton", "torch", or "auto": Triton where it is installed.
        linear: "fla" (flash-linear-attention, for chunks), "torch", or "auto": the former
            where it is installed. One token is a Triton kernel of our own, unless it is
            "torch".

    Raises:
        ConfigError: An unknown name, or an implementation that is not installed or not
            of this device.
    """
    is_cuda = device.split(":")[0] == "cuda"
    use_triton = _wants("ops", ops, "triton", is_cuda=is_cuda)
    use_fla = _wants("linear", linear, "fla", is_cuda=is_cuda)
    chosen = TORCH_KERNELS.ops
    chunk, step = TORCH_KERNELS.delta_chunk, TORCH_KERNELS.delta_step
    # Imported where they are wanted: neither package is a dependency.
    if use_triton:
        from flashrt_ros.models.hybrid_ops_cuda import TritonOps

        chosen = TritonOps()
    if use_fla:
        from flashrt_ros.models.hybrid_linear_cuda import fix_launches, fla_delta_chunk

        fix_launches()  # now, not in the middle of a capture: it imports the package
        chunk = fla_delta_chunk
    if use_fla or (use_triton and linear != "torch"):
        from flashrt_ros.models.hybrid_delta_cuda import triton_delta_step

        step = triton_delta_step
    name = "+".join(["triton"] * use_triton + ["fla"] * use_fla) or "torch"
    return HybridKernels(name, chosen, chunk, step) if name != "torch" else TORCH_KERNELS


def _wants(what: str, asked: str, package: str, *, is_cuda: bool) -> bool:
    if asked not in ("auto", "torch", package):
        raise ConfigError(
            f"no such implementation of '{what}'", expected=f"auto, torch or {package}", found=asked
        )
    has = is_cuda and importlib.util.find_spec(package) is not None
    if asked == package and not has:
        raise ConfigError(
            f"'{package}' can't run '{what}' here",
            expected="a CUDA device and the package installed",
            fix="use auto or torch",
        )
    return has and asked != "torch"
