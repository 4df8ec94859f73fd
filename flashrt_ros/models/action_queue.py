"""The action queue that every policy keeps in STATE, and the counters beside it."""

from __future__ import annotations

import torch

from flashrt_ros.models.base import (
    ACTION,
    ELAPSED,
    GOAL_SEQUENCE,
    GOAL_SEQUENCE_IN,
    NOISE_COUNTER,
    NOISE_SEED,
    NOISE_SLOT,
    QUEUE_HEAD,
    QUEUE_LENGTH,
    TICK,
    Buffers,
    Slots,
)
from flashrt_ros.runtime.spec import BufferSpec, Inert, Role

QUEUE = "queue"
"""STATE, ``float32[H, A]``: the last chunk; actions from head to length are still to come."""


def counter(
    name: str,
    role: Role = Role.STATE,
    *,
    inert: Inert | None = None,
    feeds_noise: bool = False,
) -> BufferSpec:
    """Declare one ``int64[1]``; the marks are those of ``BufferSpec``."""
    return BufferSpec(name, (1,), "int64", role, inert=inert, feeds_noise=feeds_noise)


def policy_counters() -> tuple[BufferSpec, ...]:
    """Declare the well-known counters of ``models.base`` that every policy has."""
    return (
        counter(TICK, inert=Inert.COUNTER),
        counter(QUEUE_HEAD),
        counter(QUEUE_LENGTH),
        counter(NOISE_SEED, feeds_noise=True),
        counter(NOISE_COUNTER, feeds_noise=True),
        counter(GOAL_SEQUENCE, inert=Inert.PROVENANCE),
        counter(ELAPSED, Role.BINDING),
        counter(GOAL_SEQUENCE_IN, Role.BINDING),
        counter(NOISE_SLOT, Role.BINDING),
    )


def pop(buffers: Buffers, slots: Slots) -> None:
    """Take the next action from the queue; past its end, the last one again."""
    last = buffers[QUEUE_LENGTH] - 1
    index = torch.minimum(buffers[QUEUE_HEAD], last).clamp(min=0)
    buffers[ACTION].copy_(buffers[QUEUE].index_select(0, index)[0])
    buffers[QUEUE_HEAD].add_(1)
    buffers[TICK].add_(1)


def flush(buffers: Buffers, slots: Slots) -> None:
    """Empty the queue."""
    buffers[QUEUE_HEAD].zero_()
    buffers[QUEUE_LENGTH].zero_()


def commit_queue(buffers: Buffers, chunk: torch.Tensor, execute_horizon: int) -> None:
    """Queue a chunk, past the actions whose ticks have gone by; count noise and goal.

    Args:
        buffers: Of the lane, with a :data:`QUEUE` of ``float32[H, A]``.
        chunk: ``float32[H, A]``.
        execute_horizon: Actions of it to queue.
    """
    buffers[QUEUE].copy_(chunk)
    buffers[QUEUE_HEAD].copy_(buffers[ELAPSED].clamp(max=execute_horizon))
    buffers[QUEUE_LENGTH].fill_(execute_horizon)
    buffers[NOISE_COUNTER].add_(1)
    buffers[GOAL_SEQUENCE].copy_(buffers[GOAL_SEQUENCE_IN])
