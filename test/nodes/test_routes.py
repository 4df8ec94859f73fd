from __future__ import annotations

import pytest

from flashrt_ros.engine.protocol import ChannelInfo, FieldInfo, ModelInfo
from flashrt_ros.errors import ConfigError, PayloadShapeError, UnknownChannelError

pytest.importorskip("rclpy")

from flashrt_ros.nodes.routes import check_named_goals, parse_routes


def channel(name: str, num_values: int, role: str = "goal") -> ChannelInfo:
    part = FieldInfo("values", (num_values,), "float32", 0, -1.0, 1.0, "m")
    return ChannelInfo(name, role, "table", 256, 4, 4096, (part,))


def model(*channels: ChannelInfo) -> ModelInfo:
    return ModelInfo("m", 4, 2, 2, ("x", "y"), 1, channels, "f", 1, 0, 1024)


ONE = model(channel("goal", 2), channel("observation", 2, "observation"))
TWO = model(channel("goal", 2), channel("observation", 2, "observation"), channel("gripper", 1))


def test_the_only_one_takes_everything() -> None:
    routes = parse_routes([], "", ONE)
    for topic in ("subgoal", "goal_pose", "instruction"):
        assert routes.channel(topic).name == "goal"
    with pytest.raises(UnknownChannelError, match="does not serve channel 'observation'"):
        routes.channel("subgoal", "observation")


def test_of_several_one_has_to_be_said() -> None:
    routes = parse_routes([], "", TWO)
    assert routes.channel("subgoal", "gripper").name == "gripper"
    with pytest.raises(UnknownChannelError, match="names none of 2 channels"):
        routes.channel("subgoal")
    assert parse_routes([], "gripper", TWO).channel("goal_pose").name == "gripper"
    routes = parse_routes(["goal topics=goal_pose", "gripper"], "gripper", TWO)
    assert routes.channel("goal_pose").name == "goal"
    assert routes.channel("goal_pose", "gripper").name == "gripper"
    assert routes.channel("instruction").name == "gripper"


def test_what_is_left_out_is_not_served() -> None:
    routes = parse_routes(["gripper"], "", TWO)
    assert routes.channel("subgoal").name == "gripper"
    with pytest.raises(UnknownChannelError, match="does not serve channel 'goal'"):
        routes.channel("subgoal", "goal")


@pytest.mark.parametrize(
    ("texts", "default", "error", "match"),
    [
        (["gripper topics=image"], "", ConfigError, "topic 'image'"),
        (["goal topics=subgoal", "gripper topics=subgoal"], "", ConfigError, "topic 'subgoal'"),
        (["goal", "goal"], "", ConfigError, "two entries"),
        (["goal rate=3"], "", ConfigError, "can't be read"),
        (["arm"], "", UnknownChannelError, "'arm'"),
        (["observation"], "", UnknownChannelError, "'observation'"),
        (["gripper"], "goal", UnknownChannelError, "'goal'"),
        ([], "arm", UnknownChannelError, "'arm'"),
    ],
)
def test_what_can_not_be_is_refused_by_name(
    texts: list[str], default: str, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        parse_routes(texts, default, TWO)


def test_a_model_without_goals_is_refused() -> None:
    with pytest.raises(UnknownChannelError):
        parse_routes([], "", model(channel("observation", 2, "observation")))


def test_named_goals_fit_a_channel_that_is_served() -> None:
    named = {"open": (0.5,), "home": (0.0, 0.0)}
    check_named_goals(parse_routes([], "", TWO), named)
    with pytest.raises(PayloadShapeError, match="'home'"):
        check_named_goals(parse_routes(["gripper"], "", TWO), named)
