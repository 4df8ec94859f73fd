"""What there is for timelines to read: committed, latched, or missing."""

from __future__ import annotations

from collections.abc import Mapping

from flashrt_ros.engine.fed import FedConsumer
from flashrt_ros.engine.readable import Readable
from flashrt_ros.engine.ring import SlotMeta
from flashrt_ros.engine.timeline import Branch, Environment, Timeline
from flashrt_ros.errors import UnknownChannelError
from flashrt_ros.runtime.spec import ChannelRole, ChannelSpec


class Inbox:
    """The channels of a model, seen from its timelines; nothing here changes them.

    Args:
        channels: By name.

    Attributes:
        specs: Of the channels, by name.
        first_goal: Name of the first one that takes goals, "" for none.
    """

    def __init__(self, channels: Mapping[str, Readable]) -> None:
        self.specs: dict[str, ChannelSpec] = {
            name: channel.spec for name, channel in channels.items()
        }
        self._channels = channels
        self._fed = {name: one for name, one in channels.items() if isinstance(one, FedConsumer)}
        self._goals, self._observations = (
            tuple(name for name, spec in self.specs.items() if spec.role is role)
            for role in (ChannelRole.GOAL, ChannelRole.OBSERVATION)
        )
        self.first_goal = self._goals[0] if self._goals else ""

    def channel(self, name: str) -> Readable:
        """Return a channel by name.

        Raises:
            UnknownChannelError: The model has none of this name.
        """
        try:
            return self._channels[name]
        except KeyError:
            raise UnknownChannelError(
                f"the model has no channel '{name}'", expected=", ".join(self._channels)
            ) from None

    def named(self, role: ChannelRole) -> tuple[str, ...]:
        """Return the names of a role's channels."""
        return self._goals if role is ChannelRole.GOAL else self._observations

    def missing(self, timeline: Timeline, env: Environment) -> str:
        """Name the first channel with nothing to read, "" when there is none.

        Args:
            timeline: The environment or one of its branches.
            env: The environment, whose observations a branch reads.
        """
        for name, spec in self.specs.items():
            source = env if spec.role is ChannelRole.OBSERVATION else timeline
            if name not in source.latched and not self._has_pending(source, name):
                return name
        return ""

    def has_new_goal(self, env: Environment) -> bool:
        """Tell whether a goal was committed that no plan has latched yet."""
        return any(self._has_pending(env, name) for name in self.named(ChannelRole.GOAL))

    def newest(self, timeline: Timeline, name: str) -> SlotMeta:
        """Return the meta of what the next plan would latch; stamp -1 where there is nothing."""
        if self._has_pending(timeline, name):
            channel = self.channel(name)
            slot = channel.pending(timeline.env_index)
            assert slot is not None
            return channel.meta(slot)
        latched = timeline.latched.get(name)
        return latched.meta if latched else SlotMeta(0, 0, -1, 0, 0)

    def newest_stamp_ns(self, timeline: Timeline, role: ChannelRole) -> int:
        """Return the oldest, over the role's channels, of the newest stamps; -1 for none."""
        stamps = [self.newest(timeline, name).stamp_ns for name in self.named(role)]
        return min(stamps, default=-1)

    def committed_ns(self, timeline: Timeline, role: ChannelRole) -> int:
        """Return the oldest, over the role's channels, of the newest commits, engine clock.

        0 where one of them has none.
        """
        return min(
            (self.newest(timeline, name).committed_ns for name in self.named(role)), default=0
        )

    def goals_of(self, timeline: Timeline) -> dict[str, SlotMeta]:
        """Return the metas of the goals that a timeline reads, in the model's order."""
        latched = timeline.latched
        return {name: latched[name].meta for name in self._goals if name in latched}

    def fed(self, timeline: Timeline) -> frozenset[str]:
        """Name the channels on which a timeline reads a row of another model's outlet."""
        latched = timeline.latched
        return frozenset(
            name
            for name, channel in self._fed.items()
            if name in latched and channel.is_fed(latched[name].slot)
        )

    def observation_of(self, timeline: Timeline) -> SlotMeta | None:
        """Return the meta of the first observation that a timeline reads."""
        for name in self._observations:
            latched = timeline.latched.get(name)
            if latched is not None:
                return latched.meta
        return None

    def _has_pending(self, timeline: Timeline, name: str) -> bool:
        if isinstance(timeline, Branch) and self.specs[name].role is ChannelRole.GOAL:
            return False
        return self.channel(name).pending(timeline.env_index) is not None
