"""Lines of execution: an environment, and the branches forked beside it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from flashrt_ros.capsule.capsule import Capsule, GoalOrigin, Origin, Position
from flashrt_ros.engine.channels import SlotMeta
from flashrt_ros.engine.protocol import Moved
from flashrt_ros.errors import UnknownEnvironmentError
from flashrt_ros.runtime.backend import PASSED, Fence
from flashrt_ros.runtime.lanes import Lane

ENVIRONMENT = -1
"""Branch index that means the environment itself."""


GoalCopies = Mapping[str, tuple[bytes, SlotMeta]]
"""Copies of goals, by channel: payload and meta; a channel without one is left out."""


@dataclass(slots=True)
class Latched:
    """A slot that a timeline reads, and holds a reference to.

    Attributes:
        slot: Index in the channel's whole range.
        meta: Of the commit it came from.
        check: Copy of the payload at the latch, where torn reads are looked for.
        fence: Done once the device has read it.
        filled: Done once its bytes are there; only a goal brought back from a capsule is
            written by the device.
    """

    slot: int
    meta: SlotMeta
    check: bytes = b""
    fence: Fence = PASSED
    filled: Fence = PASSED

    @property
    def is_idle(self) -> bool:
        """Whether the device has done with it: somebody else may write it."""
        return self.fence.is_done and self.filled.is_done


@dataclass(slots=True)
class Timeline:
    """State on one lane, moving forward by ticks.

    Attributes:
        env_index: Environment it belongs to.
        branch: Branch index, :data:`ENVIRONMENT` for the environment itself.
        lane: Where its buffers are; a flip replaces it.
        position: Host copy of the counters in STATE.
        parent: Id of the capsule its state descends from, "" for none.
        brought_back: Id of the capsule that a verb last put under it, "" for none; it
            may have been dropped since.
        latched: What it reads, by channel; absent before the first latch.
    """

    env_index: int
    branch: int
    lane: Lane
    position: Position = field(default_factory=Position)
    parent: str = ""
    brought_back: str = ""
    latched: dict[str, Latched] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Name it in a message."""
        branch = "" if self.branch == ENVIRONMENT else f"branch {self.branch} of "
        return f"{branch}environment {self.env_index}"


@dataclass(slots=True)
class Branch(Timeline):
    """A timeline that runs only when it is stepped.

    Attributes:
        source: Capsule it was forked from.
    """

    source: Capsule | None = None


@dataclass(slots=True)
class Interruption:
    """An entry of the interrupt stack.

    Attributes:
        capsule: The interrupted boundary.
        goals: Those in force then.
        goal_bounds: Stamp that goals had to have reached then, by channel.
        reason: As the caller gave it.
        was_held: An interrupt before it had asked for a pause that nothing had ended.
    """

    capsule: Capsule
    goals: GoalCopies
    goal_bounds: Mapping[str, int]
    reason: str
    was_held: bool


@dataclass(frozen=True, slots=True)
class EpisodeReset:
    """The last reset that named an episode, so that a repeated one answers alike.

    Attributes:
        episode_id: As the caller gave it.
        asked: Capsule, keep_goal and seed of the request.
        answer: What was answered.
    """

    episode_id: str
    asked: tuple[str, bool, int | None]
    answer: Moved


@dataclass(slots=True)
class Environment(Timeline):
    """What a caller resets and steps.

    Attributes:
        generation: Grows with every reset, restore, rollback, select, interrupt and resume.
        is_active: Ticks may run.
        is_held: An interrupt asked for a pause.
        stale: Channel of the input whose age keeps plans from starting, "" for none.
        tick_source: "timer" or "step".
        period_ns: Time between ticks of the timer, ns.
        next_tick_ns: Deadline of the next tick, engine clock.
        boundaries: Rollback ring, oldest first.
        interruptions: Interrupt stack, newest last.
        last_reset: Forgotten once the environment moves otherwise.
    """

    generation: int = 1
    is_active: bool = False
    is_held: bool = False
    stale: str = ""
    tick_source: str = "step"
    period_ns: int = 0
    next_tick_ns: int = 0
    boundaries: deque[Capsule] = field(default_factory=deque)
    interruptions: list[Interruption] = field(default_factory=list)
    last_reset: EpisodeReset | None = None


_Environment = TypeVar("_Environment", bound=Environment)


def environment_of(environments: Sequence[_Environment], env_index: int) -> _Environment:
    """Return the environment of an index.

    Raises:
        UnknownEnvironmentError: There is none.
    """
    if not 0 <= env_index < len(environments):
        raise UnknownEnvironmentError(
            f"there is no environment {env_index}", expected=f"0 to {len(environments) - 1}"
        )
    return environments[env_index]


def origin_of(goals: Mapping[str, SlotMeta], observation: SlotMeta | None, tick: int) -> Origin:
    """Note what a plan that latched these at ``tick`` is made from; goals in the model's order."""
    origin = Origin(
        observation_sequence=observation.sequence if observation else 0,
        observation_stamp_ns=observation.stamp_ns if observation else 0,
        latched_tick=tick,
    )
    return origin_under(origin, goals) if goals else origin


def origin_under(origin: Origin, goals: Mapping[str, SlotMeta]) -> Origin:
    """Note that a plan goes on under other goals, one of each of the model's channels."""
    (_, goal), *others = goals.items()
    return replace(
        origin,
        goal_sequence=goal.sequence,
        goal_source_sequence=goal.source_sequence,
        goal_stamp_ns=goal.stamp_ns,
        goal_expires_ns=goal.expires_ns,
        other_goals=tuple(
            GoalOrigin(name, m.sequence, m.source_sequence, m.stamp_ns, m.expires_ns)
            for name, m in others
        )
        if others
        else (),
    )
