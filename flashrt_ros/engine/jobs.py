"""What a scheduler has in hand: steps that were asked for, and the plan in flight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from flashrt_ros.capsule.capsule import Origin
from flashrt_ros.engine.protocol import (
    MAX_MESSAGE_BYTES,
    ActionRecord,
    ChunkRecord,
    Stepped,
)
from flashrt_ros.engine.timeline import Timeline
from flashrt_ros.errors import FlashrtError
from flashrt_ros.models.base import PolicyModel
from flashrt_ros.runtime.plan import PlanRun

RECORD_BYTES = 192
"""Bound of what an action or chunk takes in an answer, besides its values."""

StepDone = Callable[[Stepped | FlashrtError], None]
"""Takes the answer to a step, once."""


@dataclass(slots=True, eq=False)
class StepJob:
    """A step that waits for its observation, or runs.

    Attributes:
        timeline: The environment or branch that is stepped.
        remaining: Ticks still to run.
        min_stamp_ns: Oldest observation that may start it.
        expires_ns: Engine clock at which it gives up waiting.
        done: Takes the answer.
        plan_only: A step of zero ticks: make the chunk that is due, pop nothing.
    """

    timeline: Timeline
    remaining: int
    min_stamp_ns: int
    expires_ns: int
    done: StepDone
    plan_only: bool
    chunks: list[ChunkRecord] = field(default_factory=list)
    actions: list[ActionRecord] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Flight:
    """A chunk plan under way on a timeline.

    Attributes:
        step: The step that asked for it, None for the timer.
        pops: The tick that asked for it pops when it is done.
    """

    timeline: Timeline
    run: PlanRun
    origin: Origin
    started_ns: int
    busy_ns: int
    step: StepJob | None
    pops: bool


def ignore_answer(answer: Stepped | FlashrtError) -> None:
    """Answer nobody."""


def max_step_count(model: PolicyModel, replan_threshold: int) -> int:
    """Count the ticks whose actions and chunks fit one answer."""
    action_bytes = RECORD_BYTES + 4 * model.action_dim
    chunk_bytes = RECORD_BYTES + 4 * model.horizon * model.action_dim
    chunk_share = chunk_bytes / (model.execute_horizon - replan_threshold)
    room = MAX_MESSAGE_BYTES - RECORD_BYTES - 2 * chunk_bytes
    return max(1, int(room / (action_bytes + chunk_share)))
