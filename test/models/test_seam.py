"""Bridged seams, over plain tensors: bounded, blended, and nothing else changed."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashrt_ros.models.action_queue import QUEUE, bridge
from flashrt_ros.models.base import LAST_ACTION, QUEUE_HEAD

HORIZON, JOINTS = 8, 2
PLACES = torch.arange(HORIZON, dtype=torch.float32)

numbers = st.floats(-4, 4, width=32)
pairs = st.tuples(numbers, numbers)


def make(
    chunk: list[tuple[float, float]], last: tuple[float, float] | None, head: int
) -> dict[str, torch.Tensor]:
    known = [*(last or (7.0, 7.0)), float(last is not None)]
    return {
        QUEUE: torch.tensor(chunk),
        QUEUE_HEAD: torch.tensor([head]),
        LAST_ACTION: torch.tensor(known),
    }


@settings(deadline=None)
@given(
    chunk=st.lists(pairs, min_size=HORIZON, max_size=HORIZON),
    last=pairs,
    head=st.integers(0, HORIZON),
    blend_steps=st.integers(0, 10),
    bound=st.none()
    | st.tuples(st.floats(0.0078125, 1, width=32), st.floats(0.0078125, 1, width=32)),
)
def test_every_jump_from_the_last_action_on_is_bounded(
    chunk: list[tuple[float, float]],
    last: tuple[float, float],
    head: int,
    blend_steps: int,
    bound: tuple[float, float] | None,
) -> None:
    buffers = make(chunk, last, head)
    before = buffers[QUEUE].clone()
    max_step = None if bound is None else torch.tensor(bound)
    bridge(buffers, places=PLACES, blend_steps=blend_steps, max_step=max_step)
    queue = buffers[QUEUE]
    assert torch.equal(queue[:head], before[:head])  # what was executed stays as it was
    if max_step is not None:
        path = torch.cat([torch.tensor([last]), queue[head:]]).to(torch.float64)
        assert bool((path.diff(dim=0).abs() <= max_step.to(torch.float64) + 1e-6).all())
    elif not blend_steps:
        assert torch.equal(queue, before)
    else:
        for ahead in range(HORIZON - head):
            share = max(0.0, (blend_steps - ahead) / (blend_steps + 1))
            row = before[head + ahead]
            torch.testing.assert_close(
                queue[head + ahead], row + share * (torch.tensor(last) - row), rtol=0, atol=1e-5
            )
    # from the end of the blend on, and once it is caught up, the chunk is the policy's own
    if bound is None:
        assert torch.equal(queue[head + blend_steps :], before[head + blend_steps :])


@settings(deadline=None)
@given(
    chunk=st.lists(pairs, min_size=HORIZON, max_size=HORIZON),
    blend_steps=st.integers(0, 10),
    bound=st.none() | st.just((0.01, 0.01)),
)
def test_before_the_first_action_nothing_is_bridged(
    chunk: list[tuple[float, float]], blend_steps: int, bound: tuple[float, float] | None
) -> None:
    buffers = make(chunk, None, 0)
    before = buffers[QUEUE].clone()
    max_step = None if bound is None else torch.tensor(bound)
    bridge(buffers, places=PLACES, blend_steps=blend_steps, max_step=max_step)
    assert torch.equal(buffers[QUEUE], before)


def test_a_chunk_that_keeps_to_the_bound_is_left_as_it_is() -> None:
    steps = [(0.1 * index, -0.1 * index) for index in range(HORIZON)]
    buffers = make(steps, (-0.05, 0.05), 0)
    before = buffers[QUEUE].clone()
    bridge(buffers, places=PLACES, blend_steps=0, max_step=torch.tensor([0.11, 0.11]))
    assert torch.equal(buffers[QUEUE], before)
