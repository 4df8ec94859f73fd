"""Compares the Triton operations with the torch ones on a device, or in Triton's interpreter.

Run as a program, because Triton decides what it is when it is imported::

    python triton_check.py cuda
    TRITON_INTERPRET=1 python triton_check.py cpu
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from flashrt_ros.models.hybrid_checkpoint import random_tensors
from flashrt_ros.models.hybrid_config import HybridConfig
from flashrt_ros.models.hybrid_ops import TorchOps
from flashrt_ros.models.hybrid_ops_cuda import TritonOps
from flashrt_ros.models.hybrid_weights import FullWeights, LinearWeights, pack

CONFIG = HybridConfig.from_json(
    {
        "model_type": "qwen3_next",
        "vocab_size": 32,
        "hidden_size": 40,  # no power of two, nor is the next
        "intermediate_size": 24,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 12,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_conv_kernel_dim": 4,
    }
)
EPS = 1e-6


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def check(device: str) -> None:
    """Compare every operation, on a token and on a few with padding."""
    ours, theirs = TritonOps(), TorchOps()
    weights = pack(random_tensors(CONFIG, 0), CONFIG, dtype=torch.float32, device=device)
    linear, full = weights.layers[0].mixer, weights.layers[3].mixer
    assert isinstance(linear, LinearWeights)
    assert isinstance(full, FullWeights)
    generator = torch.Generator(device).manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    for length, valid in ((1, None), (5, 3), (5, 5), (5, 1), (5, 0)):
        num_valid = None if valid is None else torch.tensor([valid], device=device)
        rows, change = draw(length, 40), draw(length, 40)
        close(ours.project(rows, linear.projection), theirs.project(rows, linear.projection))
        for added in (None, change):
            pair = [ops.add_norm(rows, added, weights.final_norm, EPS) for ops in (ours, theirs)]
            for found, expected in zip(*pair, strict=True):
                close(found, expected)
        halves = draw(length, 48)
        close(ours.silu_product(halves), theirs.silu_product(halves))

        projected = draw(length, CONFIG.conv_dim + CONFIG.value_dim + 8)
        past = draw(3, CONFIG.conv_dim)
        pasts = [past, past.clone()]
        close(
            ours.convolve(projected, linear.conv, pasts[0], num_valid),
            theirs.convolve(projected, linear.conv, pasts[1], num_valid),
        )
        assert torch.equal(pasts[0], pasts[1])
        step, strength = projected[:, :4] * 8, projected[:, -4:]
        for found, expected in zip(
            ours.gates(strength, step, linear, num_valid),
            theirs.gates(strength, step, linear, num_valid),
            strict=True,
        ):
            close(found, expected)
        output, gate = draw(length, 4, 12), projected[:, -CONFIG.value_dim :]
        close(
            ours.gated_norm(output, gate, linear.norm, EPS),
            theirs.gated_norm(output, gate, linear.norm, EPS),
        )

    for length, at in ((1, 0), (1, 150), (70, 130)):
        position = torch.tensor([at], device=device)
        projected = draw(length, 2 * 96 + 2 * 48)
        whole_cache = draw(256, 3, 2, 2, 24)
        caches = [whole_cache, whole_cache.clone()]
        views = [each[:, 1] for each in caches]
        mixed = []
        for ops, view in zip((ours, theirs), views, strict=True):
            queries, gate = ops.place_heads(projected, full, CONFIG, view, position)
            mixed.append((queries, ops.attend(queries, gate, view, position)))
        close(caches[0], caches[1])
        close(mixed[0][0], mixed[1][0])
        close(mixed[0][1], mixed[1][1])

    # A row has the same bytes wherever it stands in its chunk.
    queries, gate, cache = draw(128, 4, 24), draw(128, 4, 24), draw(256, 2, 2, 24)
    later, its_gate = (torch.cat([each[64:], each[:64]]) for each in (queries, gate))
    whole = ours.attend(queries, gate, cache, torch.tensor([0], device=device))
    part = ours.attend(later, its_gate, cache, torch.tensor([64], device=device))
    assert torch.equal(whole[64:], part[:64])


if __name__ == "__main__":
    check(sys.argv[1])
