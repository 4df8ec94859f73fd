"""The language model on a device, in 16 bits: the same bytes by every way to a text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import closing

import pytest
import torch

from flashrt_ros.bench.devices import GpuDevice
from flashrt_ros.bench.ttft_models import TINY, TextScale, random_tokens
from flashrt_ros.bench.ttft_stand import TextStand
from flashrt_ros.models.hybrid_ablation import Ablation, run_ablations
from flashrt_ros.models.hybrid_borders import SessionCapsule
from flashrt_ros.models.hybrid_lm import KEYS_VALUES, RECURRENT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

SCALE = dataclasses.replace(
    TINY,
    sizes={
        **TINY.sizes,
        "vocab_size": 2000,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "head_dim": 64,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
    },
    dtype=torch.bfloat16,
    prefixes=(512, 2048),
    chunk_length=512,
    decode_at=512,
)
SUFFIX = random_tokens(64, SCALE, 4)


@pytest.fixture(scope="module", params=[512, 1024])
def stand(request: pytest.FixtureRequest) -> Iterator[TextStand]:
    scale: TextScale = dataclasses.replace(SCALE, chunk_length=request.param)
    with TextStand(GpuDevice(), scale) as made:
        yield made


@pytest.fixture(params=[512, 1088, 2048])
def prefix(request: pytest.FixtureRequest) -> list[int]:
    return random_tokens(request.param, SCALE, 3)


def test_restored_eager_and_computed_texts_are_the_same(
    stand: TextStand, prefix: list[int]
) -> None:
    with closing(stand.capsule_of(prefix)) as capsule:
        stand.check(prefix, SUFFIX, capsule)


def test_long_and_short_chunks_give_the_same_bytes(stand: TextStand, prefix: list[int]) -> None:
    def state() -> dict[str, bytes]:
        rows = session.layout.by_name[KEYS_VALUES].spec
        used = rows.num_bytes // rows.shape[0] * session.position
        return {RECURRENT: session.read(RECURRENT), KEYS_VALUES: session.read(KEYS_VALUES)[:used]}

    session = stand.captured
    session.reset()
    session.append(prefix)
    whole = state()
    session.reset()
    for start in range(0, len(prefix), 64):
        session.append(prefix[start : start + 64])
    found = state()
    assert [name for name in whole if found[name] != whole[name]] == []


def test_tokens_decoded_ahead_are_those_decoded_one_by_one(stand: TextStand) -> None:
    prefix = random_tokens(512, SCALE, 3)
    session = stand.captured

    def begin(capsule: SessionCapsule) -> None:
        session.restore(capsule)
        session.append(SUFFIX[:50])

    with closing(stand.capsule_of(prefix)) as capsule:
        begin(capsule)
        each = [session.decode(1)[0] for _ in range(100)]
        begin(capsule)
        assert session.decode(100) == each
        begin(capsule)
        session.set_sampling(temperature=1.0, seed=5)
        drawn = session.decode(20)
        begin(capsule)
        session.set_sampling(temperature=1.0, seed=5)
        assert session.decode(20) == drawn
        assert drawn != each[:20]


def test_without_a_part_of_the_state_a_text_diverges(stand: TextStand) -> None:
    prefix = random_tokens(256, SCALE, 3)
    found = run_ablations(stand.captured, prefix, SUFFIX, num_tokens=32)
    assert found.pop(Ablation.NOTHING).logits is None
    assert all(divergence.logits == 0 for divergence in found.values())
