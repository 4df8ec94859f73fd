"""What each node declares; ``config/flashrt.yaml`` holds the same names and values."""

from __future__ import annotations

import typing

import msgspec

from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.nodes.parameters import Kind, ParameterSpec
from flashrt_ros.nodes.planner_parameters import PLANNER
from flashrt_ros.nodes.policy_parameters import POLICY
from flashrt_ros.planner.config import PlannerConfig

__all__ = ["ENGINE", "PLANNER", "PLANNER_ENGINE", "POLICY", "SECTIONS", "SIM", "kind_of"]

SIM: tuple[ParameterSpec, ...] = (
    ParameterSpec(
        "mode",
        "str",
        "realtime",
        "realtime advances at rate_hz, lockstep once for each command.",
        choices=("realtime", "lockstep"),
    ),
    ParameterSpec("rate_hz", "float", 10.0, "Rate of steps in real time.", "Hz", 0.1, 1000.0),
    ParameterSpec("seed", "int", 0, "Seed of the first episode.", "", 0, 2**63 - 1),
    ParameterSpec("camera_frame", "str", "camera", "Frame in the header of images."),
    ParameterSpec("table_frame", "str", "table", "Frame of positions and ground truth."),
    ParameterSpec(
        "joint_names", "str[]", ["agent_x", "agent_y"], "Names of the two axes in joint_states."
    ),
    ParameterSpec(
        "republish_s",
        "float",
        0.5,
        "In lockstep and while paused, the observation is sent again after so long without a "
        "command, with its stamp unchanged.",
        "s",
        0.02,
        60.0,
    ),
)


def _engine(config: type[EngineConfig | PlannerConfig]) -> tuple[ParameterSpec, ...]:
    kinds: dict[object, Kind] = {
        bool: "bool",
        int: "int",
        float: "float",
        str: "str",
        tuple[float, ...]: "float[]",
    }
    specs = []
    for field in msgspec.structs.fields(config):
        default = list(field.default) if isinstance(field.default, tuple) else field.default
        choices: tuple[str, ...] = ()
        kind: Kind
        if typing.get_origin(field.type) is typing.Literal:
            kind, choices = "str", typing.get_args(field.type)
        else:
            kind = kinds.get(field.type, "str[]")
        text = f"As {config.__name__}.{field.name}."
        specs.append(ParameterSpec(field.name, kind, default, text, choices=choices))
    return tuple(specs)


ENGINE: tuple[ParameterSpec, ...] = _engine(EngineConfig)
"""The engine is no ROS node, but its section is checked alike; ranges are EngineConfig's."""

PLANNER_ENGINE: tuple[ParameterSpec, ...] = _engine(PlannerConfig)
"""Likewise; a file without this section starts no planner engine."""

SECTIONS: dict[str, tuple[ParameterSpec, ...]] = {
    "engine": ENGINE,
    "planner_engine": PLANNER_ENGINE,
    "policy_node": POLICY,
    "planner_node": PLANNER,
    "sim": SIM,
}
"""Sections of ``config/flashrt.yaml``; the key is the node's name."""

_SEVERAL = ("engine", "policy_node", "planner_node")


def kind_of(section: str) -> str:
    """Return which of :data:`SECTIONS` a section is one of, "" for none.

    There may be several engines and nodes of both kinds: ``policy_node_left`` is a policy node.
    """
    if section in SECTIONS:
        return section
    return next((kind for kind in _SEVERAL if section.startswith(f"{kind}_")), "")
