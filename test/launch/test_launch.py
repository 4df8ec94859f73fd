from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("launch_ros")
pytest.importorskip("rclpy")

if TYPE_CHECKING:
    from test.nodes.conftest import Bench, Child, Peer

LAUNCH_FILE = Path(__file__).resolve().parents[2] / "launch" / "flashrt.launch.py"

CONFIG = """
/**/engine:
  ros__parameters: {model: minimal}
/**/policy_node:
  ros__parameters: {cameras: [], status_period_s: 0.1}
"""

RUNNER = """
import sys
from launch import LaunchDescription, LaunchService
from launch.actions import GroupAction, IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch_ros.actions import PushRosNamespace
path, pushed, *words = sys.argv[1:]
include = IncludeLaunchDescription(
    PythonLaunchDescriptionSource(path), launch_arguments=[w.split(":=") for w in words]
)
around = [PushRosNamespace(pushed)] if pushed else []
service = LaunchService()
service.include_launch_description(LaunchDescription([GroupAction([*around, include])]))
sys.exit(service.run())
"""


def launch(bench: Bench, tmp_path: Path, *words: str, pushed: str = "") -> Child:
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG)
    script = [sys.executable, "-c", RUNNER, str(LAUNCH_FILE), pushed, f"config:={file}", *words]
    return bench.start(script)


@pytest.mark.parametrize(
    ("pushed", "namespace", "full"),
    [
        ("", "", ""),
        ("", "robot1", "/robot1"),
        ("fleet", "robot1", "/fleet/robot1"),
        ("fleet", "/robot1", "/robot1"),
    ],
)
def test_launch_starts_what_up_starts(
    fresh_bench: Bench, fresh_peer: Peer, tmp_path: Path, pushed: str, namespace: str, full: str
) -> None:
    launcher = launch(fresh_bench, tmp_path, f"namespace:={namespace}", pushed=pushed)
    fresh_peer.until(lambda: fresh_peer.state(f"{full}/policy_node") == "active")
    fresh_peer.until(lambda: fresh_peer.state(f"{full}/planner_node") == "active")
    launcher.process.send_signal(signal.SIGINT)
    assert launcher.wait() == 0, launcher.output


def test_launch_leaves_the_nodes_to_a_manager(
    fresh_bench: Bench, fresh_peer: Peer, tmp_path: Path
) -> None:
    launcher = launch(fresh_bench, tmp_path, "autostart:=false")
    launcher.wait_for_line("ready")
    fresh_peer.bring_up("policy_node")
    launcher.process.send_signal(signal.SIGINT)
    assert launcher.wait() == 0, launcher.output
