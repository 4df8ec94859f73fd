"""The programs as graphs: what they write, where their state lies, experts and long chunks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from flashrt_ros.models.base import NOISE_SEED, NOISE_SLOT
from flashrt_ros.models.hybrid_lm import (
    BIAS,
    CHOOSE,
    CONVOLUTION,
    DECODE,
    KEYS_VALUES,
    LOG_PROBABILITY,
    LOGITS,
    NEXT_TOKEN,
    NUM_VALID,
    POSITION,
    PREFILL,
    RECURRENT,
    TEMPERATURE,
    TOKENS,
)
from flashrt_ros.runtime.spec import Role
from test.models.hybrid.conftest import MAX_POSITIONS, SMALL, Rig, compute, decode, random_tokens

STATE = {POSITION, NEXT_TOKEN, LOG_PROBABILITY, NOISE_SEED, LOGITS, CONVOLUTION, RECURRENT}
ADVANCED = {POSITION, NEXT_TOKEN, LOG_PROBABILITY, LOGITS, CONVOLUTION, RECURRENT, KEYS_VALUES}


def test_all_that_a_replay_leaves_behind_is_state(make_rig: Callable[..., Rig]) -> None:
    graphs = make_rig().graphs
    assert graphs.keys == (PREFILL, DECODE, CHOOSE)
    assert graphs.graph(0, PREFILL).written_buffers == ADVANCED
    assert graphs.graph(0, DECODE).written_buffers == ADVANCED
    assert graphs.graph(0, CHOOSE).written_buffers == {NEXT_TOKEN, LOG_PROBABILITY}


def test_the_cache_grows_last_and_everything_else_is_small(make_rig: Callable[..., Rig]) -> None:
    layout = make_rig().arena.layout
    roles = {place.spec.name: place.spec.role for place in layout.placements}
    assert {name for name, role in roles.items() if role is Role.STATE} == STATE | {KEYS_VALUES}
    assert {name for name, role in roles.items() if role is Role.INPUT} == {TEMPERATURE}
    assert {name for name, role in roles.items() if role is Role.BINDING} == {
        TOKENS,
        NUM_VALID,
        NOISE_SLOT,
        BIAS,
    }
    assert layout.growing is not None
    assert layout.growing.spec.name == KEYS_VALUES
    row_bytes = 1 * 2 * 2 * 16 * 4  # one full layer, keys and values, two heads of 16 floats
    assert layout.used_bytes(100) - layout.used_bytes(99) == row_bytes
    # Padding of a last chunk lands past the positions that a text can reach.
    assert layout.growing.spec.shape[0] == MAX_POSITIONS + 64


def test_lengths_of_the_chunk_agree(make_rig: Callable[..., Rig]) -> None:
    tokens = random_tokens(400)
    texts = [
        compute(make_rig(chunk_length=length).sessions[0], tokens, 8) for length in (64, 128, 256)
    ]
    # Products and attention work on 64 rows at a time, so the bits are those of any chunk.
    assert texts[0] == texts[1] == texts[2]


EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}


@pytest.mark.parametrize(
    ("change", "dtype"),
    [
        (EXPERTS, torch.float32),
        ({}, torch.bfloat16),
        ({"model_type": "qwen3_5_text"}, torch.float32),
    ],
    ids=["experts", "bfloat16", "qwen3_5"],
)
def test_every_kind_restores_to_the_bit(
    make_rig: Callable[..., Rig], change: dict[str, object], dtype: torch.dtype
) -> None:
    session = make_rig(SMALL | change, chunk_length=128, dtype=dtype).sessions[0]
    tokens = random_tokens(200)
    cold = compute(session, tokens, 8)
    session.reset()
    session.append(tokens[:64])
    capsule = session.snapshot()
    session.append(random_tokens(100, seed=2))

    session.restore(capsule)
    session.append(tokens[64:])

    assert decode(session, 8) == cold
    capsule.close()
