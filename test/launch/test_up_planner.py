"""A planner engine beside the others, where the file has a section for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashrt_ros.cli.processes import ProcessSpec
from flashrt_ros.cli.up import process_specs
from flashrt_ros.engine.hosting import read_settings
from flashrt_ros.errors import ConfigError, UnknownParameterError
from flashrt_ros.nodes.configuration import load
from flashrt_ros.planner.config import PlannerConfig

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
