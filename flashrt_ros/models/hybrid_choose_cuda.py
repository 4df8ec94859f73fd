"""Choosing a token in two kernels; CUDA only.

In torch it is some twenty small kernels, and a sort of the candidates that only sampling
needs. Here the scores are read once, and candidates are looked for where the temperature
on the device is above 0.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashrt_ros.models.hybrid_library_cuda import operator
from flashrt_ros.models.hybrid_ops import SMALLEST_TEMPERATURE

_BLOCK = 1024


@operator(
    "choose(Tensor logits, Tensor bias, Tensor log_noise, Tensor temperature) -> (Tensor, Tensor)"
)
def choose(
    logits: Tensor, bias: Tensor, log_noise: Tensor, temperature: Tensor
) -> tuple[Tensor, Tensor]:
    """Choose a token; as ``TorchOps.choose``."""
    vocab_size = logits.shape[0]
    num_blocks = triton.cdiv(vocab_size, _BLOCK)
    # Largest score, where it stands, and sum of exponentials over it, of each block.
    marks = torch.empty((3, num_blocks), dtype=torch.float32, device=logits.device)
    token = torch.empty(1, dtype=torch.int64, device=logits.device)
    log_probability = torch.empty(1, dtype=torch.float32, device=logits.device)
    _scan_kernel[(num_blocks,)](logits, bias, marks, vocab_size, num_blocks, BLOCK=_BLOCK)
    _choose_kernel[(1,)](
        logits,
        bias,
        log_noise,
        temperature,
        marks,
        token,
        log_probability,
        vocab_size,
        num_blocks,
        NUM_CANDIDATES=log_noise.shape[0],
        SMALLEST_TEMPERATURE=SMALLEST_TEMPERATURE,
        BLOCK=_BLOCK,
        BLOCK_MARKS=triton.next_power_of_2(num_blocks),
        num_warps=4,
    )
    return token, log_probability


@triton.jit
def _scan_kernel(logits, bias, marks, vocab_size, num_blocks, BLOCK: tl.constexpr):
    """One block of the vocabulary."""
    block = tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    is_token = at < vocab_size
    score = tl.load(logits + at, mask=is_token, other=float("-inf"))
    score += tl.load(bias + at, mask=is_token, other=0.0)
    largest = tl.max(score, 0)
    # A block that is forbidden as a whole must not take infinity from infinity.
    base = tl.where(largest == float("-inf"), 0.0, largest)
    tl.store(marks + block, largest)
    # Places within a block are exact in float32.
    tl.store(marks + num_blocks + block, tl.argmax(score, 0).to(tl.float32))
    tl.store(marks + 2 * num_blocks + block, tl.sum(tl.exp(score - base), 0))


@triton.jit
def _choose_kernel(
    logits,
    bias,
    log_noise,
    temperature,
    marks,
    token,
    log_probability,
    vocab_size,
    num_blocks,
    NUM_CANDIDATES: tl.constexpr,
    SMALLEST_TEMPERATURE: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_MARKS: tl.constexpr,
):
    """Bring the blocks together; above temperature 0 draw among the likeliest."""
    block = tl.arange(0, BLOCK_MARKS)
    is_block = block < num_blocks
    largest = tl.load(marks + block, mask=is_block, other=float("-inf"))
    place = tl.load(marks + num_blocks + block, mask=is_block, other=0.0).to(tl.int32)
    total = tl.load(marks + 2 * num_blocks + block, mask=is_block, other=0.0)
    top = tl.max(largest, 0)
    total = tl.sum(tl.where(largest == float("-inf"), 0.0, total * tl.exp(largest - top)), 0)
    log_total = top + tl.log(total)
    first = tl.argmax(largest, 0)
    chosen = first * BLOCK + tl.sum(tl.where(block == first, place, 0), 0)
    score = top
    heat = tl.load(temperature)
    if heat > 0.0:
        heat = tl.maximum(heat, SMALLEST_TEMPERATURE)
        best = float("-inf") + heat * 0.0  # a scalar of the device, as the loop changes it
        inside = tl.arange(0, BLOCK)
        for rank in range(NUM_CANDIDATES):
            # The likeliest that is left, and the next one of its block after it.
            value = tl.max(largest, 0)
            held = tl.argmax(largest, 0)
            spot = tl.sum(tl.where(block == held, place, 0), 0)
            noisy = value / heat - tl.log(-tl.load(log_noise + rank))
            is_better = noisy > best
            chosen = tl.where(is_better, held * BLOCK + spot, chosen)
            score = tl.where(is_better, value, score)
            best = tl.where(is_better, noisy, best)
            at = held * BLOCK + inside
            is_token = at < vocab_size
            scores = tl.load(logits + at, mask=is_token, other=float("-inf"))
            scores += tl.load(bias + at, mask=is_token, other=0.0)
            is_left = (scores < value) | ((scores == value) & (inside > spot))
            scores = tl.where(is_left, scores, float("-inf"))
            largest = tl.where(block == held, tl.max(scores, 0), largest)
            place = tl.where(block == held, tl.argmax(scores, 0).to(tl.int32), place)
    tl.store(token, chosen.to(tl.int64))
    tl.store(log_probability, score - log_total)
