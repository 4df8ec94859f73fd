"""Where there is no ROS, every bench imports; only what runs in ROS processes does not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flashrt_ros.bench.engines import why_no_ros
from flashrt_ros.bench.registry import BENCHES

CODE = """
import importlib, sys
class NoRos:
    def find_spec(self, name, path=None, target=None):
        if name in ("rclpy", "std_msgs", "std_srvs", "sensor_msgs", "flashrt_ros.msg"):
            raise ImportError(f"{name} is hidden from this test")
sys.meta_path.insert(0, NoRos())
for name in NAMES:
    importlib.import_module(f"flashrt_ros.bench.{name}")
importlib.import_module("flashrt_ros.cli.bench_crew")
"""


def run(names: list[str]) -> subprocess.CompletedProcess[str]:
    code = CODE.replace("NAMES", repr(names))
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )


def test_benches_import_without_ros() -> None:
    result = run([*(bench.module for bench in BENCHES.values()), "plotting"])
    assert result.returncode == 0, result.stderr


def test_a_ros_import_is_found() -> None:
    assert "hidden" in run(["topic_link"]).stderr


@pytest.mark.parametrize(
    ("missing", "why"),
    [
        ({"rclpy", "flashrt_ros.msg"}, "no ROS"),
        ({"flashrt_ros.msg"}, "ROS without the messages of flashrt_ros"),
        (set(), ""),
    ],
)
def test_what_is_missing_of_ros_is_said(
    missing: set[str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name in missing else object()
    )
    assert why_no_ros() == why
