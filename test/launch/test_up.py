from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
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
        if "-m" in words:  # else it is between fork and exec
            found[words[words.index("-m") + 1]] = child
    return found


def test_a_device_takes_the_place_of_the_files(config: Path, tmp_path: Path) -> None:
    def written(device: str) -> str:
        options = {"namespace": "", "with_sim": False, "autostart": True}
        process_specs(load(config), tmp_path, device=device, **options)  # type: ignore[arg-type]
        return str(json.loads((tmp_path / "engine.json").read_text())["device"])

    assert [written(device) for device in ("", "cuda:1", "cpu")] == ["cpu", "cuda:1", "cpu"]
    with pytest.raises(ConfigError, match="'cuda:N'"):
        written("gpu")


def test_the_engine_comes_first_and_names_agree(config: Path, tmp_path: Path) -> None:
    specs = process_specs(
        load(config), tmp_path, namespace="/robot1", with_sim=True, autostart=True
    )
    assert [spec.name for spec in specs] == ["engine", "policy_node", "planner_node", "sim"]
    written = json.loads((tmp_path / "engine.json").read_text())
    assert (written["name"], written["device"]) == ("robot1/engine", "cpu")
    assert "commands:=policy_node/commands" in specs[3].argv
    assert all("__ns:=/robot1" in spec.argv for spec in specs[1:])
    assert "autostart: true" in (tmp_path / "policy_node.yaml").read_text()


def test_a_node_that_looks_for_another_engine_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("/**/planner_node:\n  ros__parameters: {engine: other}\n")
    with pytest.raises(ConfigError, match="planner_node"):
        process_specs(load(file), tmp_path, namespace="", with_sim=False, autostart=True)


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
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


def test_more_signals_change_nothing(fresh_bench: Bench, fresh_peer: Peer, config: Path) -> None:
    pytest.importorskip("rclpy")
    launcher = up(fresh_bench, "--config", str(config))
    fresh_peer.until(lambda: fresh_peer.state("policy_node") == "active")
    fresh_peer.until(lambda: fresh_peer.state("planner_node") == "active")
    launcher.process.send_signal(signal.SIGINT)
    while launcher.process.poll() is None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            launcher.process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            launcher.process.wait(0.01)
    assert launcher.wait() == 0, launcher.output
    assert "Traceback" not in launcher.output


def test_a_signal_while_children_start_ends_them_without_a_word(
    fresh_bench: Bench, config: Path
) -> None:
    launcher = up(fresh_bench, "--config", str(config))
    deadline = time.monotonic() + 60
    while "flashrt_ros.nodes.planner_node" not in children_of(launcher.process.pid):
        assert time.monotonic() < deadline
    launcher.process.send_signal(signal.SIGINT)
    assert launcher.wait() == 0, launcher.output
    assert "Traceback" not in launcher.output
    assert "KeyboardInterrupt" not in launcher.output


def test_a_hung_engine_keeps_nobody_from_the_safety_action(
    fresh_bench: Bench, fresh_peer: Peer, tmp_path: Path
) -> None:
    pytest.importorskip("rclpy")
    from std_msgs.msg import Float64MultiArray

    from flashrt_ros.msg import ExecutionEvent

    file = tmp_path / "config.yaml"
    file.write_text(CONFIG.replace("status_period_s", "safety_action: zeros, status_period_s", 1))
    launcher = up(fresh_bench, "--config", str(file))
    fresh_peer.until(lambda: fresh_peer.state("policy_node") == "active")
    commands = fresh_peer.listen(Float64MultiArray, "policy_node/commands")
    events = fresh_peer.listen(ExecutionEvent, "policy_node/events")
    # The first safety action shows that both topics reach us.
    assert fresh_peer.change("policy_node", "deactivate")
    fresh_peer.until(lambda: commands and events, "the safety action of a deactivation")
    assert fresh_peer.change("policy_node", "activate")
    commands.clear()
    events.clear()
    engine = children_of(launcher.process.pid)["flashrt_ros.engine"]
    os.kill(engine, signal.SIGSTOP)
    launcher.process.send_signal(signal.SIGINT)
    fresh_peer.until(lambda: launcher.process.poll() is not None, "the end")
    fresh_peer.spin_some()
    assert launcher.wait() == 1
    assert "] engine" not in launcher.output
    assert "engine did not end in time and is killed" in launcher.output
    assert "node did not end in time" not in launcher.output
    assert list(commands[-1].data) == [0.0, 0.0]
    assert ExecutionEvent.SAFETY in [event.kind for event in events]


def test_a_reader_that_goes_away_stops_nothing(
    fresh_bench: Bench, fresh_peer: Peer, config: Path
) -> None:
    pytest.importorskip("rclpy")
    read_end, write_end = os.pipe()
    words = [sys.executable, "-m", "flashrt_ros.cli.main", "up", "--config", str(config)]
    launcher = subprocess.Popen(
        words, env=fresh_bench.environment, stdout=write_end, stderr=subprocess.PIPE
    )
    os.close(write_end)
    try:
        os.read(read_end, 1)
        os.close(read_end)
        fresh_peer.until(lambda: fresh_peer.state("policy_node") == "active")
        fresh_peer.until(lambda: fresh_peer.state("planner_node") == "active")
        launcher.send_signal(signal.SIGINT)
        _, complaint = launcher.communicate(timeout=60)
    finally:
        launcher.kill()
    assert launcher.returncode == 0
    assert complaint == b""


def test_a_node_that_can_not_start_itself_ends_the_rest(fresh_bench: Bench, tmp_path: Path) -> None:
    pytest.importorskip("rclpy")
    file = tmp_path / "config.yaml"
    file.write_text(CONFIG.replace("cameras: []", "cameras: [], joint_names: [x]"))
    launcher = up(fresh_bench, "--config", str(file))
    assert launcher.wait() == 1
    assert "could not configure and activate itself" in launcher.output
    assert "policy_node ended with exit code 3; stopping the rest" in launcher.output


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


@pytest.mark.parametrize("namespace", ["a b", "a//b", "9bad", "../..", "rob\u00f6t"])
def test_a_bad_namespace_starts_nothing(fresh_bench: Bench, config: Path, namespace: str) -> None:
    launcher = up(fresh_bench, "--config", str(config), "--namespace", namespace)
    assert launcher.wait() == 1
    assert "CONFIG" in launcher.output
    assert "Traceback" not in launcher.output
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
