"""What makes a goal acceptable: known sender order, age, frame, shape, finite values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from flashrt_ros.engine.payload import check_payload
from flashrt_ros.engine.protocol import ChannelInfo, FieldInfo, ModelInfo
from flashrt_ros.errors import (
    FrameError,
    GoalExpiredError,
    PayloadRangeError,
    UnknownChannelError,
    UnsupportedError,
)
from flashrt_ros.msg import Subgoal
from flashrt_ros.nodes.arbitration import Arbiter, Ruling
from flashrt_ros.nodes.conversions import (
    Array,
    duration_to_ns,
    goal_array,
    stamp_to_ns,
)
from flashrt_ros.nodes.frames import Frames
from flashrt_ros.nodes.words import word_values


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal that passed every check, ready to be written.

    Attributes:
        channel: Channel of the model.
        field: Field of the channel that the values fill.
        values: In the field's shape, dtype and frame.
        stamp_ns: When it was made, on the node's clock.
        sequence: The planner's own number.
        ruling: Why its planner may write.
    """

    channel: str
    field: str
    values: Array
    stamp_ns: int
    sequence: int
    ruling: Ruling


def goal_channel(model: ModelInfo, name: str = "") -> ChannelInfo:
    """Return a goal channel of a model.

    Args:
        model: What the engine said of its model.
        name: Wanted channel; "" means the only one.

    Raises:
        UnknownChannelError: No goal channel has this name, or none was named and
            there is not exactly one.
    """
    channels = [channel for channel in model.channels if channel.role == "goal"]
    found = [channel for channel in channels if name in ("", channel.name)]
    if len(found) != 1:
        raise UnknownChannelError(
            f"model '{model.name}' has no goal channel '{name}'"
            if name
            else f"model '{model.name}' has {len(channels)} goal channels and the goal names none",
            expected="one of " + ", ".join(channel.name for channel in channels),
        )
    return found[0]


def only_field(channel: ChannelInfo) -> FieldInfo:
    """Return a goal channel's one field.

    Raises:
        UnsupportedError: It has several, which one row of values can't fill.
    """
    if len(channel.fields) != 1:
        raise UnsupportedError(
            f"goal channel '{channel.name}' can't be filled from a message",
            expected="one field",
            found=", ".join(field.name for field in channel.fields),
        )
    return channel.fields[0]


class GoalChecker:
    """Judges goals against a model, a clock reading, the frames known and the goals accepted.

    Environments have goals of their own: what was accepted for one says nothing of another.

    Args:
        model: What the engine said of its model, with ranges as the node narrowed them.
        frames: Transforms for goals in other frames.
        lifetime_ns: Lifetime of goals that name none.
        future_ns: How far ahead of now a stamp may be.
        arbiter: Decides between planners.
        channel: Channel for goals that name none; "" means the model's only one.
        named_goals: Values of goals in words.
    """

    def __init__(
        self,
        model: ModelInfo,
        frames: Frames,
        *,
        lifetime_ns: int,
        future_ns: int,
        arbiter: Arbiter,
        channel: str = "",
        named_goals: Mapping[str, tuple[float, ...]] = MappingProxyType({}),
    ) -> None:
        self._model = model
        self._frames = frames
        self._lifetime_ns = lifetime_ns
        self._future_ns = future_ns
        self._arbiter = arbiter
        self._channel = channel
        self._named_goals = named_goals

    def check(self, goal: Subgoal, *, env_index: int, now_ns: int) -> Goal:
        """Return a goal in the policy's frame and dtype; :meth:`accept` remembers it.

        A clock that was set back makes the goals accepted before be forgotten.

        Args:
            goal: As it came.
            env_index: Environment that it shall act in.
            now_ns: The node's clock.

        Raises:
            GoalExpiredError: Too old, without a stamp or stamped in the future, made before
                a goal accepted already, or not newer than the planner's last accepted one.
            BusyError: Another planner holds the channel, or too many write it.
            FrameError: Another frame than the channel's, with no transform known.
            PayloadShapeError: Wrong shape or number of values, or too long a text.
            NonFiniteError: NaN or Inf.
            PayloadRangeError: Out of the channel's range, of a negative lifetime, or for
                another environment.
            UnknownChannelError: The model has no such goal channel.
            UnsupportedError: A goal in words that nothing names and the model does not
                read, or with values beside them.
        """
        if goal.env_index != env_index:
            raise PayloadRangeError(
                "the goal is for another environment",
                expected=f"env_index {env_index}",
                found=goal.env_index,
            )
        channel = goal_channel(self._model, goal.channel or self._channel)
        stamp_ns = stamp_to_ns(goal.header.stamp)
        self._check_age(goal, stamp_ns, now_ns)
        field = only_field(channel)
        values = self._values(goal, channel, field)
        check_payload(channel, {field.name: values})
        ruling = self._arbiter.judge(
            (env_index, channel.name),
            goal.planner,
            stamp_ns=stamp_ns,
            sequence=int(goal.sequence),
            now_ns=now_ns,
        )
        return Goal(channel.name, field.name, values, stamp_ns, int(goal.sequence), ruling)

    def accept(self, goal: Subgoal, checked: Goal, *, now_ns: int) -> None:
        """Remember a goal as its planner's newest; call it once the engine has it."""
        self._arbiter.accept(
            (int(goal.env_index), checked.channel),
            goal.planner,
            stamp_ns=checked.stamp_ns,
            sequence=checked.sequence,
            now_ns=now_ns,
        )

    def next_sequence(self, planner: str, *, env_index: int, channel: str = "") -> int:
        """Return the next number of a channel for a sender whose messages carry none."""
        name = goal_channel(self._model, channel or self._channel).name
        return self._arbiter.next_sequence((env_index, name), planner)

    def forget(self) -> None:
        """Let planners number from the start again; nobody holds a channel."""
        self._arbiter.forget()

    def _values(self, goal: Subgoal, channel: ChannelInfo, field: FieldInfo) -> Array:
        if goal.text:
            if len(goal.values):
                raise UnsupportedError(
                    "the goal is in words and in values",
                    expected="one of them",
                    found=f"text {goal.text!r} and {len(goal.values)} values",
                )
            return word_values(goal.text, field, self._named_goals)
        values = goal_array(goal.values, goal.shape, field)
        frame = goal.header.frame_id
        if channel.frame and frame != channel.frame:
            require_frame(frame, channel.frame)
            moved = self._frames.points(
                values.astype(np.float64), source=frame, target=channel.frame
            )
            values = moved.astype(values.dtype)
        return values

    def _check_age(self, goal: Subgoal, stamp_ns: int, now_ns: int) -> None:
        lifetime_ns = duration_to_ns(goal.lifetime) or self._lifetime_ns
        age_ns = now_ns - stamp_ns
        if lifetime_ns < 0:
            raise PayloadRangeError(
                "the goal's lifetime is negative",
                expected="0 s or more",
                found=f"{lifetime_ns / 1e9:g} s",
            )
        if not stamp_ns:  # simulated time may be as near to it as a lifetime
            raise GoalExpiredError("the goal has no stamp", fix="stamp it with the node's clock")
        if age_ns > lifetime_ns:
            raise GoalExpiredError(
                "the goal is older than its lifetime",
                expected=f"at most {lifetime_ns / 1e9:.3f} s",
                found=f"{age_ns / 1e9:.3f} s",
            )
        if -age_ns > self._future_ns:
            raise GoalExpiredError(
                "the goal's stamp lies in the future",
                expected=f"at most {self._future_ns / 1e9:.3f} s ahead of the node's clock",
                found=f"{-age_ns / 1e9:.3f} s ahead",
                fix="synchronise the clocks, or raise future_tolerance_s",
            )


def require_frame(frame: str, channel_frame: str) -> None:
    """Return unless a goal names no frame where the channel has one.

    Raises:
        FrameError: It names none.
    """
    if channel_frame and not frame:
        raise FrameError(
            "the goal names no frame", expected=repr(channel_frame), fix="set header.frame_id"
        )
