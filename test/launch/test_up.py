from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flashrt_ros.cli.main import COMMANDS, main
from flashrt_ros.cli.up import process_specs
from flashrt_ros.errors import ConfigError
from flashrt_ros.nodes.configuration import load

if TYPE_CHECKING:
    from test.nodes.conftest import Bench, Child, Peer

CONFIG = """
/**/engine:
  ros__parameters: {model: minimal}
/**/policy_node:
  ros__parameters: {cameras: [], status_period_s: 0.1}
/**/planner_node:
  ros__parameters: {status_period_s: 0.1}
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG)
    return file


def up(bench: Bench, *words: str) -> Child:
    return bench.start([sys.executable, "-m", "flashrt_ros.cli.main", "up", *words])


def children_of(process_id: int) -> dict[str, int]:
    """Process ids of the children, by the module that they run."""
    found = {}
    text = Path(f"/proc/{process_id}/task/{process_id}/children").read_text()
    for child in map(int, text.split()):
        words = Path(f"/proc/{child}/cmdline").read_text().split("\0")
        found[words[words.index("-m") + 1]] = child
    return found


def test_the_engine_comes_first_and_names_agree(config: Path, tmp_path: Path) -> None:
    specs = process_specs(
        load(config), tmp_path, namespace="/robot1", with_sim=True, autostart=True
    )
    assert [spec.name for spec in specs] == ["engine", "policy_node", "planner_node", "sim"]
    assert '"robot1/engine"' in (tmp_path / "engine.json").read_text()
    assert "commands:=policy_node/commands" in specs[3].argv
    assert all("__ns:=/robot1" in spec.argv for spec in specs[1:])
    assert "autostart: true" in (tmp_path / "policy_node.yaml").read_text()


def test_a_node_that_looks_for_another_engine_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("/**/planner_node:\n  ros__parameters: {engine: other}\n")
    with pytest.raises(ConfigError, match="planner_node"):
        process_specs(load(file), tmp_path, namespace="", with_sim=False, autostart=True)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_up_starts_everything_and_a_signal_ends_everything(
    fresh_bench: Bench, fresh_peer: Peer, config: Path, stop: signal.Signals
) -> None:
    pytest.importorskip("rclpy")
    launcher = up(fresh_bench, "--config", str(config), "--namespace", "robot1")
    fresh_peer.until(lambda: fresh_peer.state("/robot1/policy_node") == "active")
    fresh_peer.until(lambda: fresh_peer.state("/robot1/planner_node") == "active")
    children = children_of(launcher.process.pid)
    assert len(children) == 3
    descriptors = [os.pidfd_open(child) for child in children.values()]
    launcher.process.send_signal(stop)
    assert launcher.wait() == 0, launcher.output
    assert "Traceback" not in launcher.output
    assert "is killed" not in launcher.output
    for descriptor in descriptors:
        with pytest.raises(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, 0)
        os.close(descriptor)


@pytest.mark.parametrize("module", ["flashrt_ros.nodes.policy_node", "flashrt_ros.engine"])
def test_a_child_that_dies_ends_the_rest(
    fresh_bench: Bench, fresh_peer: Peer, config: Path, module: str
) -> None:
    pytest.importorskip("rclpy")
    launcher = up(fresh_bench, "--config", str(config), "--manual")
    fresh_peer.until(lambda: fresh_peer.state("policy_node") == "unconfigured")
    os.kill(children_of(launcher.process.pid)[module], signal.SIGKILL)
    assert launcher.wait() == 1
    name = "engine" if module.endswith("engine") else "policy_node"
    assert f"{name} was killed by SIGKILL; stopping the rest" in launcher.output


@pytest.mark.parametrize(
    ("text", "code"),
    [("policy_node: {ros__parameters: {rate_hy: 1}}", "UNKNOWN_PARAMETER (501)"), ("[", "CONFIG")],
)
def test_a_bad_file_starts_nothing(
    fresh_bench: Bench, tmp_path: Path, text: str, code: str
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    launcher = up(fresh_bench, "--config", str(file))
    assert launcher.wait() == 1
    assert code in launcher.output
    assert "ready" not in launcher.output


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)


def test_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["fly"])
    assert caught.value.code == 2
    assert "fly" in capsys.readouterr().err
