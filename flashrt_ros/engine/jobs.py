"""Steps that were asked for, and what may be asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from flashrt_ros.engine.protocol import (
    MAX_MESSAGE_BYTES,
    ActionRecord,
    Activate,
    ChunkRecord,
    Stepped,
)
from flashrt_ros.engine.timeline import Timeline
from flashrt_ros.errors import AbandonedError, ConfigError, FlashrtError
from flashrt_ros.models.base import PolicyModel

MIN_RATE_HZ = 0.001
MAX_RATE_HZ = 10_000.0

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

    def finish(self, generation: int) -> None:
        """Answer with what was made, under the environment's generation."""
        self.done(
            Stepped(
                rid=0,
                tick=self.timeline.position.tick,
                generation=generation,
                chunks=tuple(self.chunks),
                actions=tuple(self.actions),
            )
        )


def answer_abandoned(step: StepJob | None) -> None:
    """Tell a step that a verb ended it."""
    if step is not None:
        step.done(
            AbandonedError(
                "the step was ended by a verb that moved or stopped its timeline",
                fix="step again from where the environment stands now",
            )
        )


def ignore_answer(answer: Stepped | FlashrtError) -> None:
    """Answer nobody."""


def max_step_count(model: PolicyModel, replan_threshold: int) -> int:
    """Count the ticks whose actions and chunks fit one answer."""
    action_bytes = RECORD_BYTES + 4 * model.action_dim
    chunk_bytes = RECORD_BYTES + 4 * model.horizon * model.action_dim
    chunk_share = chunk_bytes / max(1, model.execute_horizon - replan_threshold)
    room = MAX_MESSAGE_BYTES - RECORD_BYTES - 2 * chunk_bytes
    return max(1, int(room / (action_bytes + chunk_share)))


def check_tick_source(request: Activate) -> bool:
    """Refuse an unknown tick source, or a rate out of range; tell whether it is the timer.

    Raises:
        ConfigError: Either is the case.
    """
    if request.tick_source not in ("timer", "step"):
        raise ConfigError(
            "unknown tick source", expected="'timer' or 'step'", found=request.tick_source
        )
    is_timed = request.tick_source == "timer"
    if is_timed and not MIN_RATE_HZ <= request.rate_hz <= MAX_RATE_HZ:
        raise ConfigError(
            "the tick rate is out of range",
            expected=f"{MIN_RATE_HZ:g} to {MAX_RATE_HZ:g} Hz",
            found=request.rate_hz,
        )
    return is_timed
