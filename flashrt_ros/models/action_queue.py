"""The action queue that every policy keeps in STATE, and the counters beside it."""

from __future__ import annotations

import torch

from flashrt_ros.models.base import (
    ACTION,
    ELAPSED,
    GOAL_SEQUENCE,
    GOAL_SEQUENCE_IN,
    LAST_ACTION,
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


def policy_counters(*, draws_noise: bool = True) -> tuple[BufferSpec, ...]:
    """Declare the well-known counters of ``models.base`` that every policy has.

    Args:
        draws_noise: Whether the model has a ``noise_shape``. Without one, seed and counter of
            its noise are only reported, and there is no slot to read.
    """
    seed = counter(
        NOISE_SEED, inert=None if draws_noise else Inert.PROVENANCE, feeds_noise=draws_noise
    )
    drawn = counter(
        NOISE_COUNTER, inert=None if draws_noise else Inert.COUNTER, feeds_noise=draws_noise
    )
    return (
        counter(TICK, inert=Inert.COUNTER),
        counter(QUEUE_HEAD),
        counter(QUEUE_LENGTH),
        seed,
        drawn,
        counter(GOAL_SEQUENCE, inert=Inert.PROVENANCE),
        counter(ELAPSED, Role.BINDING),
        counter(GOAL_SEQUENCE_IN, Role.BINDING),
        *((counter(NOISE_SLOT, Role.BINDING),) if draws_noise else ()),
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
    """Queue a chunk, past the actions whose ticks have gone by; count noise, if any, and goal.

    Those were popped from the chunk before, and are not changed: what a controller was given
    stays as it was, and the queue goes on at the tick that comes.

    Args:
        buffers: Of the lane, with a :data:`QUEUE` of ``float32[H, A]``.
        chunk: ``float32[H, A]``.
        execute_horizon: Actions of it to queue.
    """
    buffers[QUEUE].copy_(chunk)
    buffers[QUEUE_HEAD].copy_(buffers[ELAPSED].clamp(max=execute_horizon))
    buffers[QUEUE_LENGTH].fill_(execute_horizon)
    if NOISE_SLOT in buffers:  # draws noise
        buffers[NOISE_COUNTER].add_(1)
    buffers[GOAL_SEQUENCE].copy_(buffers[GOAL_SEQUENCE_IN])


def last_action(action_dim: int) -> BufferSpec:
    """Declare :data:`~flashrt_ros.models.base.LAST_ACTION`, for models that bridge seams."""
    return BufferSpec(LAST_ACTION, (action_dim + 1,), "float32", Role.STATE)


def remember_action(buffers: Buffers) -> None:
    """Keep what was just popped as the action executed last."""
    buffers[LAST_ACTION][:-1].copy_(buffers[ACTION])
    buffers[LAST_ACTION][-1:].fill_(1.0)


def bridge(
    buffers: Buffers,
    *,
    places: torch.Tensor,
    blend_steps: int,
    max_step: torch.Tensor | None,
) -> None:
    """Have the queue begin at the action executed last; nothing happens before the first.

    Of the ``blend_steps`` actions that come next, number ``i`` from 0 is moved towards the one
    executed last by the share ``(blend_steps - i) / (blend_steps + 1)``. Then, with a bound,
    each action from the next one on is brought within ``max_step`` of the one before it, the
    first within that of the one executed last. Actions before the head stay as they are.

    Args:
        buffers: Of the lane; its queue is rewritten.
        places: ``float32[H]``, 0 to ``H - 1``, on the lane's device.
        blend_steps: See above; 0 for no blend.
        max_step: ``float32[A]``, in the unit of the action, or None for no bound.
    """
    queue, last = buffers[QUEUE], buffers[LAST_ACTION][:-1]
    is_known = buffers[LAST_ACTION][-1:] > 0.0
    ahead = places - buffers[QUEUE_HEAD]
    to_come = (ahead >= 0.0) & is_known
    share = ((blend_steps - ahead) / (blend_steps + 1)).clamp(min=0.0)
    blended = torch.where(to_come[:, None], queue + share[:, None] * (last - queue), queue)
    if max_step is not None:
        rows, previous = [], last
        for row, comes in zip(blended.unbind(0), to_come.unbind(0), strict=True):
            bounded = torch.minimum(torch.maximum(row, previous - max_step), previous + max_step)
            row = torch.where(comes, bounded, row)
            previous = torch.where(comes, row, last)
            rows.append(row)
        blended = torch.stack(rows)
    queue.copy_(blended)
