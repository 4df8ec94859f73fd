"""The command itself: what it refuses, and that Ctrl-C leaves nothing behind."""

from __future__ import annotations

import importlib.util
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from flashrt_ros.cli import demo
from flashrt_ros.cli.main import main
from flashrt_ros.demo.census import marked_processes
from flashrt_ros.nodes.configuration import default_config_path, load

MARK = "FLASHRT_ROS_TEST_DEMO"
UP_S = 120.0

needs_robot = pytest.mark.skipif(
    not all(importlib.util.find_spec(module) for module in demo.NEEDED),
    reason="the demo needs the extras 'ros' and 'demo'",
)


@pytest.mark.parametrize("count", ["0", "-1", "1001", "three"])
def test_a_count_that_makes_no_sense_is_refused(
    count: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["demo", "--episodes", count])
    assert caught.value.code == 2
    assert "--episodes" in capsys.readouterr().err


def test_what_is_not_installed_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(demo.NEEDED, "no_such_module", "demo")
    assert main(["demo", "--headless"]) == 1
    error = capsys.readouterr().err
    assert "no_such_module" in error
    assert "flashrt_ros[demo]" in error


@needs_robot
def test_a_file_in_a_folder_that_is_not_there_is_refused_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "nowhere" / "demo.json"
    assert main(["demo", "--headless", "--json", str(file)]) == 1
    assert "nowhere" in capsys.readouterr().err


@needs_robot
@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"num_branch_lanes": 4}, "test_hooks: true"),
        ({"test_hooks": True, "num_branch_lanes": 3}, "num_branch_lanes: 4"),
        ({"num_branch_lanes": 0}, "test_hooks: true, num_branch_lanes: 4"),
    ],
)
def test_a_file_without_what_the_demo_needs_is_refused_first(
    given: dict[str, object],
    missing: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump({"/**/engine": {"ros__parameters": given}}))
    monkeypatch.setattr(demo, "hire", lambda *_: pytest.fail("a process was started"))
    assert main(["demo", "--headless", "--config", str(file)]) == 1
    error = capsys.readouterr().err
    assert str(file) in error
    assert f"ros__parameters: {missing}" in error


@needs_robot
@pytest.mark.parametrize(
    ("planner", "found"), [(None, "none"), ({"num_environments": 1}, "num_environments: 1")]
)
def test_a_file_without_a_planner_for_words_is_refused_first(
    planner: dict[str, object] | None,
    found: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "own.yaml"
    sections: dict[str, object] = {
        "/**/engine": {"ros__parameters": {"test_hooks": True, "num_branch_lanes": 4}}
    }
    if planner is not None:
        sections["/**/planner_engine"] = {"ros__parameters": planner}
    file.write_text(yaml.safe_dump(sections))
    monkeypatch.setattr(demo, "hire", lambda *_: pytest.fail("a process was started"))
    assert main(["demo", "--headless", "--config", str(file)]) == 1
    error = capsys.readouterr().err
    assert found in error
    assert "num_environments: 2" in error


def test_the_packaged_file_has_what_the_demo_needs() -> None:
    demo.require_hooks(load(default_config_path().with_name(demo.CONFIG_NAME)))


@needs_robot
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_everything(number: signal.Signals, tmp_path: Path) -> None:
    token = secrets.token_hex(8)
    with subprocess.Popen(
        [sys.executable, "-m", "flashrt_ros.cli.main", "demo", "--headless"],
        env={**os.environ, MARK: token, "PYTHONUNBUFFERED": "1"},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as command:
        assert command.stdout is not None
        lines = []
        for line in command.stdout:
            lines.append(line)
            if "up: engine" in line:
                break
        assert len(marked_processes(MARK, token)) >= 7, "".join(lines)
        command.send_signal(number)
        rest = command.communicate(timeout=UP_S)[0]
    assert command.returncode == 130, "".join(lines) + rest
    assert marked_processes(MARK, token) == []
    assert list(tmp_path.iterdir()) == []
