"""Which goal channels a planner node serves, and which of them a topic's messages go to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flashrt_ros.engine.payload import check_payload
from flashrt_ros.engine.protocol import ChannelInfo, ModelInfo
from flashrt_ros.errors import FlashrtError, UnknownChannelError
from flashrt_ros.nodes.entries import parse_entries
from flashrt_ros.nodes.goals import goal_channel, only_field
from flashrt_ros.nodes.words import word_values

TOPICS = ("subgoal", "goal_pose", "goal_joints", "instruction")


@dataclass(frozen=True, slots=True)
class Routes:
    """Channels that a node serves.

    Attributes:
        channels: By name, in the model's order.
        topics: Channel of messages that name none, by topic.
        default: Channel of those on other topics, "" for the only one served.
        first: The model's first goal channel, served or not; what is told of goals names the
            others.
    """

    channels: Mapping[str, ChannelInfo]
    topics: Mapping[str, str]
    default: str
    first: str

    def channel(self, topic: str, name: str = "") -> ChannelInfo:
        """Return the channel that a message on a topic goes to.

        Args:
            topic: One of :data:`TOPICS`.
            name: As the message names it, "" where it names none.

        Raises:
            UnknownChannelError: The node does not serve it, or it is not said which of several.
        """
        name = name or self.topics.get(topic, self.default)
        if not name and len(self.channels) == 1:
            return next(iter(self.channels.values()))
        if name not in self.channels:
            raise UnknownChannelError(
                f"the node does not serve channel '{name}'"
                if name
                else f"a goal on '{topic}' names none of {len(self.channels)} channels",
                expected="one of " + ", ".join(self.channels),
                fix=None
                if name
                else f"name it in the message, or with 'topics={topic}' in parameter 'channels'",
            )
        return self.channels[name]


def parse_routes(texts: Sequence[str], default: str, model: ModelInfo) -> Routes:
    """Read the parameters ``channels`` and ``channel``.

    Args:
        texts: ``"gripper topics=instruction+goal_joints"`` each, topics left out or not; none
            for every goal channel of the model.
        default: Channel of goals that nothing names one for; "" for the only one served.
        model: What the engine said of its model.

    Raises:
        ConfigError: An entry can't be read or comes twice, or names a topic that there is not
            or that another has.
        UnknownChannelError: The model has no such goal channel, or none at all.
    """
    entries = parse_entries("channels", texts, ("topics",))
    served = {channel.name: channel for channel in model.channels if channel.role == "goal"}
    topics: dict[str, str] = {}
    names: list[str] = []
    for entry in entries:
        goal_channel(model, entry.name)  # refuses one that there is not
        if entry.name in names:
            raise entry.refused("a channel has two entries", expected="one")
        names.append(entry.name)
        for topic in filter(None, entry.values.get("topics", "").split("+")):
            if topic not in TOPICS or topic in topics:
                raise entry.refused(
                    f"topic '{topic}' is unknown or has a channel already",
                    expected="each of " + ", ".join(TOPICS) + " once at most",
                )
            topics[topic] = entry.name
    if not served:
        goal_channel(model)  # says that the model takes no goals
    channels = {name: one for name, one in served.items() if name in names or not names}
    routes = Routes(channels, topics, default, next(iter(served)))
    if default:
        routes.channel("subgoal", default)
    return routes


def check_named_goals(routes: Routes, named: Mapping[str, tuple[float, ...]]) -> None:
    """Refuse words that are no goal of any channel served, rather than when first needed.

    Raises:
        FlashrtError: As the first channel refuses them.
    """
    for words in named:
        refusals: list[FlashrtError] = []
        for channel in routes.channels.values():
            try:
                field = only_field(channel)
                check_payload(channel, {field.name: word_values(words, field, named)})
                break
            except FlashrtError as error:
                refusals.append(error)
        else:
            raise refusals[0]
