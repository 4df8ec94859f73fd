"""A file with several engines and policy nodes."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flashrt_ros.cli.up import process_specs
from flashrt_ros.errors import ConfigError, UnknownParameterError
from flashrt_ros.nodes.configuration import load

if TYPE_CHECKING:
    from test.nodes.conftest import Bench, Peer

CONFIG = """
/**/engine_left:
  ros__parameters: {model: minimal, shared_channels: [goal]}
/**/engine_right:
  ros__parameters: {model: minimal, shared_channels: [goal]}
/**/policy_node_left:
  ros__parameters: {engine: engine_left, cameras: [], accepted_topic: ""}
/**/policy_node_right:
  ros__parameters: {engine: engine_right, cameras: [], accepted_topic: ""}
/**/planner_node:
  ros__parameters: {engine: engine_left}
"""


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    return file


def test_engines_share_a_process_and_every_node_has_its_own(tmp_path: Path) -> None:
    configuration = load(written(tmp_path, CONFIG))
    specs = process_specs(
        configuration, tmp_path, namespace="robot1", with_sim=True, autostart=True, device="cuda"
    )
    names = ["engine", "policy_node_left", "policy_node_right", "planner_node", "sim"]
    assert [spec.name for spec in specs] == names
    files = [word for word in specs[0].argv if word.endswith(".json")]
    told = [json.loads(Path(file).read_text()) for file in files]
    assert [one["name"] for one in told] == ["robot1/engine_left", "robot1/engine_right"]
    assert {one["device"] for one in told} == {"cuda"}
    assert "__node:=policy_node_left" in specs[1].argv
    assert not [word for word in specs[3].argv if "__node" in word]
    assert "commands:=policy_node_left/commands" in specs[4].argv


def test_what_stands_beside_the_plain_sections_is_added(tmp_path: Path) -> None:
    text = """
/**/engine:
  ros__parameters: {num_environments: 2}
/**/policy_node:
  ros__parameters: {rate_hz: 5}
/**/policy_node_2:
  ros__parameters: {env_index: 1}
"""
    configuration = load(written(tmp_path, text))
    assert list(configuration.nodes) == ["policy_node", "policy_node_2", "planner_node", "sim"]
    assert [one.name for one in configuration.engines] == ["engine"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "/**/policy_node_2: {ros__parameters: {}}\n/**/policy_node: {ros__parameters: {}}",
            ConfigError,
        ),
        ("/**/policy_node_2: {ros__parameters: {env_index: 1}}", ConfigError),
        ("/**/policy_node_2: {ros__parameters: {rate_hy: 1}}", UnknownParameterError),
        ("/**/policy_node2: {ros__parameters: {}}", UnknownParameterError),
        ("/**/sim_2: {ros__parameters: {}}", UnknownParameterError),
        (
            "engine_a: {ros__parameters: {name: e}}\nengine_b: {ros__parameters: {name: e}}",
            ConfigError,
        ),
    ],
)
def test_what_can_not_be_is_refused(tmp_path: Path, text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        load(written(tmp_path, text))


def test_a_node_must_look_for_an_engine_that_is_started(tmp_path: Path) -> None:
    configuration = load(written(tmp_path, CONFIG.replace("engine: engine_right", "engine: other")))
    with pytest.raises(ConfigError, match="engine_left or engine_right"):
        process_specs(configuration, tmp_path, namespace="", with_sim=False, autostart=True)


def test_one_goal_moves_two_policies(fresh_bench: Bench, fresh_peer: Peer, tmp_path: Path) -> None:
    from sensor_msgs.msg import JointState

    from flashrt_ros.msg import ActionChunk, Subgoal

    peer = fresh_peer
    words = ["-m", "flashrt_ros.cli.main", "up", "--config", str(written(tmp_path, CONFIG))]
    child = fresh_bench.start([sys.executable, *words])
    chunks = [
        peer.listen(ActionChunk, f"policy_node_{side}/action_chunk") for side in ("left", "right")
    ]
    joints = peer.node.create_publisher(JointState, "joint_states", 10)
    goals = peer.publisher(Subgoal, "subgoal")
    number, stands_until = 0, 0.0

    def both_act() -> bool:
        """The first goal may come before a node is active; each stands for a few chunks."""
        nonlocal number, stands_until
        if time.monotonic() >= stands_until:
            number, stands_until = number + 1, time.monotonic() + 2.0
            goal = Subgoal(planner="test", sequence=number, values=[0.5, -0.5])
            goal.header.stamp = peer.now()
            goal.header.frame_id = "table"
            goals.publish(goal)
        state = JointState(name=["x", "y"], position=[0.0, 0.0])
        state.header.stamp = peer.now()
        joints.publish(state)
        left, right = ({chunk.goal_source_sequence for chunk in side} for side in chunks)
        return bool(left & right)

    peer.until(both_act, "chunks of both under one goal")
    words = ["trace", "--ros", "--policy-node", "policy_node_right", "--seconds", "0"]
    trace = fresh_bench.start([sys.executable, "-m", "flashrt_ros.cli.main", *words])
    trace.wait_for_line("listening to /policy_node_right/action_chunk")
    assert trace.interrupt() == 0, trace.output
    assert {chunk.engine_epoch for chunk in chunks[0]} != {c.engine_epoch for c in chunks[1]}
    assert child.interrupt() == 0, child.output
