"""``flashrt-ros demo``: drives the simulated robot, and checks what must hold."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flashrt_ros.cli.extras import require
from flashrt_ros.cli.files import check_picture, check_target, target
from flashrt_ros.cli.processes import Processes, ProcessSpec, child_environment
from flashrt_ros.cli.up import process_specs
from flashrt_ros.errors import ConfigError
from flashrt_ros.nodes.commands import python_module
from flashrt_ros.nodes.configuration import Configuration, default_config_path, load

if TYPE_CHECKING:
    from flashrt_ros.demo.stage import Crew

CONFIG_NAME = "demo.yaml"
PLANNER = "demo_planner"
MIN_BRANCH_LANES = 4
"""The demo forks into as many branches."""

MIN_PLANNER_ENVIRONMENTS = 2
"""One for words to the robot, and one for controls beside it."""

NEEDED = {"rclpy": "ros", "gym_pusht": "demo", "matplotlib": "demo", "tokenizers": "demo"}
"""Modules without which there is no demo, with the extra that installs each."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``demo``."""
    parser.add_argument(
        "--headless", action="store_true", help="plain lines instead of a live table"
    )
    parser.add_argument(
        "--episodes", type=_count, default=20, metavar="N", help="episodes to run; 20 if left out"
    )
    parser.add_argument("--json", type=target, metavar="FILE", help="write every figure here")
    parser.add_argument(
        "--plot",
        type=target,
        metavar="FILE",
        help="draw the picture here; flashrt_demo.png if left out, nowhere with --headless",
    )
    parser.add_argument(
        "--config", type=Path, help="ROS parameter file; the packaged demo.yaml if left out"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the demo.

    Returns:
        0 if every check and every control held, else 1.

    Raises:
        ConfigError: Something that the demo needs is not installed, or the parameter file
            leaves the engine without something that it looks at.
    """
    require("the demo", NEEDED)
    if arguments.json is not None:
        check_target(arguments.json)
    if arguments.plot is not None:
        check_picture(arguments.plot)
    configuration = load(arguments.config or default_config_path().with_name(CONFIG_NAME))
    require_hooks(configuration)
    from flashrt_ros.demo.run import Options, run_demo

    options = Options(
        num_episodes=arguments.episodes,
        is_headless=arguments.headless,
        json_file=arguments.json,
        plot_file=arguments.plot,
    )
    return run_demo(options, configuration, hire)


def require_hooks(configuration: Configuration) -> None:
    """Return if a configuration has what the demo looks at and forks into.

    Raises:
        ConfigError: Lines are missing; names them.
    """
    engine = configuration.engine
    missing = []
    if not engine.test_hooks:
        missing.append("test_hooks: true")
    if engine.num_branch_lanes < MIN_BRANCH_LANES:
        missing.append(f"num_branch_lanes: {MIN_BRANCH_LANES}")
    if missing:
        raise ConfigError(
            f"the demo can't run with {configuration.path}",
            expected=f"{' and '.join(missing)} for the engine",
            found=f"test_hooks: {str(engine.test_hooks).lower()}, "
            f"num_branch_lanes: {engine.num_branch_lanes}",
            fix=f"put into /**/engine: ros__parameters: {', '.join(missing)}",
        )
    planner = configuration.planner_engine
    if planner is None or planner.num_environments < MIN_PLANNER_ENVIRONMENTS:
        raise ConfigError(
            f"the demo can't run with {configuration.path}",
            expected=f"a planner engine of {MIN_PLANNER_ENVIRONMENTS} environments",
            found="none" if planner is None else f"num_environments: {planner.num_environments}",
            fix="put into /**/planner_engine: ros__parameters: num_environments: "
            f"{MIN_PLANNER_ENVIRONMENTS}",
        )


def hire(
    configuration: Configuration,
    folder: Path,
    emit: Callable[[str], None],
    variables: Mapping[str, str],
) -> Crew:
    """Start engine, nodes and robot as ``up`` does, and the planner process beside them."""
    specs = process_specs(configuration, folder, namespace="", with_sim=True, autostart=True)
    planner = python_module("flashrt_ros.demo.planner_process")
    processes = Processes(emit, environment={**child_environment(), **variables})
    try:
        processes.start([*specs, ProcessSpec(PLANNER, planner)])
    except BaseException:
        processes.stop()
        raise
    return processes


def _count(text: str) -> int:
    count = int(text) if text.isdecimal() else 0
    if not 1 <= count <= 1000:
        raise argparse.ArgumentTypeError(f"expected 1 to 1000, found {text!r}")
    return count
