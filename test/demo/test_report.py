from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from flashrt_ros.demo.report import REQUIRED, TIMED, Check, Control, Report, quantiles


def full_report() -> Report:
    report = Report()
    for name in REQUIRED:
        report.check(name, 0, expected="0", is_held=True)
        report.control(f"{name}_broken", name, "broken", 1, expected="1", is_held=True)
    for name in TIMED:
        report.note(name, quantiles([1000, 2000]))
    return report


def test_a_full_report_passes() -> None:
    report = full_report()
    assert report.is_passed
    assert report.missing == []


@pytest.mark.parametrize("name", REQUIRED)
def test_a_figure_that_nobody_measured_fails(name: str) -> None:
    report = full_report()
    del report.checks[name]
    assert not report.is_passed
    assert name in report.missing


@pytest.mark.parametrize("name", REQUIRED)
def test_a_figure_without_a_control_fails(name: str) -> None:
    report = full_report()
    del report.controls[f"{name}_broken"]
    assert not report.is_passed
    assert report.missing == [f"control of {name}"]


@pytest.mark.parametrize("name", TIMED)
def test_a_time_that_nobody_measured_fails(name: str) -> None:
    report = full_report()
    del report.figures[name]
    assert not report.is_passed


def test_a_check_that_does_not_hold_fails() -> None:
    report = full_report()
    report.check("torn_goals", 3, expected="0", is_held=False)
    assert not report.is_passed


def test_a_control_that_notices_nothing_fails() -> None:
    report = full_report()
    report.control("x", "torn_goals", "scribbled", 0, expected="1", is_held=False)
    assert not report.is_passed


def test_a_part_that_broke_off_fails() -> None:
    report = full_report()
    report.fail("the robot fell silent")
    assert not report.is_passed


def test_each_entry_is_told() -> None:
    told: list[Check | Control] = []
    report = Report(on_change=told.append)
    report.check("episodes", 3, expected="3", is_held=True)
    report.control("c", "episodes", "w", 2, expected="fewer", is_held=True)
    assert [entry.name for entry in told] == ["episodes", "c"]


def test_the_file_has_figures_and_controls(tmp_path: Path) -> None:
    report = full_report()
    report.note("array", np.arange(2))
    report.note("number", np.float32(0.5))
    file = tmp_path / "demo.json"
    report.write(file, command="demo")
    found = json.loads(file.read_text())
    assert found["passed"] is True
    assert found["torn_goals"] == 0
    assert found["controls"]["torn_goals_broken"]["figure"] == "torn_goals"
    assert found["checks"]["torn_goals"]["held"] is True
    assert found["ping_us"] == {"p50": 1.5, "p99": 2.0, "count": 2}
    assert found["array"] == [0, 1]
    assert found["number"] == 0.5
    assert found["command"] == "demo"
    assert found["host"]["num_cpus"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["demo.json"]


def test_a_file_that_can_not_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    report = full_report()
    file = tmp_path / "demo.json"
    report.write(file)
    old = file.read_text()
    report.note("odd", object())
    with pytest.raises(TypeError, match="object"):
        report.write(file)
    assert file.read_text() == old
