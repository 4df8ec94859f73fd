"""A planner engine beside the others, where the file has a section for it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flashrt_ros.cli.processes import ProcessSpec
from flashrt_ros.cli.up import process_specs
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.hosting import read_settings
from flashrt_ros.errors import ConfigError, UnknownParameterError
from flashrt_ros.nodes.configuration import load
from flashrt_ros.planner.config import PlannerConfig

if TYPE_CHECKING:
    from test.nodes.conftest import Bench, Peer

SECTION = """
/**/planner_engine:
  ros__parameters:
    name: thinker
    prefixes: ["persona = You move a pusher.", "map = The table is wide."]
    scorers: [""]
    temperature: 1
"""
NODE = """
/**/planner_node:
  ros__parameters:
    model_engine: thinker
"""


def specs_of(text: str, folder: Path, namespace: str = "") -> dict[str, ProcessSpec]:
    file = folder / "flashrt.yaml"
    file.write_text(text)
    specs = process_specs(load(file), folder, namespace=namespace, with_sim=False, autostart=True)
    return {spec.name: spec for spec in specs}


def test_a_section_starts_the_engine_before_the_nodes(tmp_path: Path) -> None:
    specs = specs_of(SECTION + NODE, tmp_path, "robot1")
    assert list(specs) == ["engine", "planner_engine", "policy_node", "planner_node"]
    command = specs["planner_engine"].argv
    assert "flashrt_ros.planner" in command
    config = read_settings(command[-1], PlannerConfig)
    assert config.name == "robot1/thinker"
    assert config.prefixes == ("persona = You move a pusher.", "map = The table is wide.")
    assert config.scorers == ()
    assert config.temperature == 1.0


def test_with_a_host_one_process_runs_both(tmp_path: Path) -> None:
    section = SECTION + "    host: engine\n"
    file = tmp_path / "flashrt.yaml"
    file.write_text(section + NODE)
    specs = process_specs(
        load(file), tmp_path, namespace="robot1", device="cuda:1", with_sim=False, autostart=True
    )
    assert [spec.name for spec in specs] == ["engine", "policy_node", "planner_node"]
    command = specs[0].argv
    assert "flashrt_ros.planner" in command
    planner = read_settings(command[-1], PlannerConfig)
    engine = read_settings(command[command.index("--engine-config") + 1], EngineConfig)
    assert (engine.name, engine.device) == ("robot1/engine", "cuda:1")
    assert (planner.name, planner.device) == ("robot1/thinker", "cuda:1")
    assert planner.host == engine.name


def test_another_host_than_the_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected engine, found other"):
        specs_of(SECTION + "    host: other\n" + NODE, tmp_path)


def test_without_a_section_there_is_none(tmp_path: Path) -> None:
    assert "planner_engine" not in specs_of(NODE, tmp_path)


@pytest.mark.parametrize("node", ["", NODE.replace("thinker", "other")])
def test_a_node_that_looks_elsewhere_is_refused(tmp_path: Path, node: str) -> None:
    with pytest.raises(ConfigError, match="expected thinker"):
        specs_of(SECTION + node, tmp_path)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("prefix: [a]", UnknownParameterError),
        ('prefixes: ["no sign"]', ConfigError),
        ("max_tokens: 0", ConfigError),
    ],
)
def test_a_bad_section_is_refused_before_anything_starts(
    tmp_path: Path, line: str, error: type[Exception]
) -> None:
    section = SECTION.replace("name: thinker", f"name: thinker\n    {line}").replace(
        '    prefixes: ["persona', '    # ["persona', 1 if line.startswith("prefixes") else 0
    )
    with pytest.raises(error):
        specs_of(section + NODE, tmp_path)


WHOLE = """
/**/engine:
  ros__parameters: {model: minimal}
/**/planner_engine:
  ros__parameters: {name: planner_engine}
/**/policy_node:
  ros__parameters: {cameras: [], status_period_s: 0.1}
/**/planner_node:
  ros__parameters: {model_engine: planner_engine, status_period_s: 0.1, subgoal_dwell_s: 0.01}
"""


def test_up_takes_an_instruction_to_the_goal_channel(
    fresh_bench: Bench, fresh_peer: Peer, tmp_path: Path
) -> None:
    """With the model that ships: what is said is where the goals are."""
    pytest.importorskip("rclpy")
    pytest.importorskip("tokenizers", reason="pip install flashrt_ros[lm] would run it")
    from std_msgs.msg import String

    from flashrt_ros.msg import Subgoal

    file = tmp_path / "config.yaml"
    file.write_text(WHOLE)
    command = [sys.executable, "-m", "flashrt_ros.cli.main", "up", "--config", str(file)]
    launcher = fresh_bench.start(command)
    fresh_peer.until(lambda: fresh_peer.state("planner_node") == "active")
    accepted = fresh_peer.listen(Subgoal, "planner_node/accepted")
    node = fresh_peer.node
    fresh_peer.until(lambda: node.count_publishers("planner_node/accepted") > 0)
    publisher = fresh_peer.publisher(String, "instruction")
    publisher.publish(String(data="go to the upper left, then to the lower right"))
    fresh_peer.until(lambda: len(accepted) >= 2, "two goals")
    goals = [tuple(round(value, 3) for value in goal.values) for goal in accepted]
    assert goals == [(0.128, 0.128), (0.384, 0.384)]
    launcher.process.send_signal(signal.SIGINT)
    assert launcher.wait() == 0, launcher.output
    assert "Traceback" not in launcher.output
