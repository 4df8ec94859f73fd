"""What each node declares; ``config/flashrt.yaml`` holds the same names and values."""

from __future__ import annotations

import typing

import msgspec

from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.nodes.parameters import Kind, ParameterSpec

_SESSION = (
    ParameterSpec(
        "autostart",
        "bool",
        False,
        "Configure and activate without a lifecycle manager, once, at the start of the process.",
    ),
    ParameterSpec(
        "engine",
        "str",
        "engine",
        "Name of the engine; a relative one stands in the node's namespace.",
    ),
    ParameterSpec("env_index", "int", 0, "Environment that the node serves.", "", 0, 63),
    ParameterSpec(
        "connect_timeout_s",
        "float",
        60.0,
        "How long configure waits for the engine to load, capture and answer.",
        "s",
        0.0,
        3600.0,
    ),
    ParameterSpec(
        "request_timeout_s",
        "float",
        10.0,
        "Longest wait for the engine's answer to one verb.",
        "s",
        0.01,
        3600.0,
    ),
    ParameterSpec(
        "status_period_s",
        "float",
        0.5,
        "Time between two messages on ~/status and /diagnostics.",
        "s",
        0.05,
        60.0,
    ),
)

_GOALS = (
    ParameterSpec(
        "goal_lifetime_s",
        "float",
        5.0,
        "Age at which a goal without a lifetime of its own is refused.",
        "s",
        0.001,
        86400.0,
    ),
    ParameterSpec(
        "future_tolerance_s",
        "float",
        0.1,
        "How far ahead of the node's clock a goal's stamp may be.",
        "s",
        0.0,
        60.0,
    ),
    ParameterSpec(
        "transforms",
        "str[]",
        [],
        "Static transforms for goals, 'parent child x y z qx qy qz qw' each.",
        "m",
    ),
)

POLICY: tuple[ParameterSpec, ...] = (
    *_SESSION,
    ParameterSpec(
        "tick_source",
        "str",
        "timer",
        "What asks for control ticks: the engine's timer or calls of ~/step.",
        choices=("timer", "step"),
    ),
    ParameterSpec(
        "rate_hz", "float", 10.0, "Control rate with tick source timer.", "Hz", 0.1, 1000.0
    ),
    ParameterSpec("cameras", "str[]", ["image"], "Image topics, relative names."),
    ParameterSpec(
        "camera_fields",
        "str[]",
        [],
        "Observation field that each camera fills; empty: the field named like the topic, "
        "or the only field of uint8.",
    ),
    ParameterSpec(
        "joint_field",
        "str",
        "",
        "Observation field that joint_states fills; empty: the only float field.",
    ),
    ParameterSpec(
        "joint_names",
        "str[]",
        [],
        "Joints of that field, in its order; empty: the model's joints.",
    ),
    ParameterSpec(
        "slop_s",
        "float",
        0.02,
        "Largest difference between the stamps of one observation's parts; "
        "equal stamps are preferred.",
        "s",
        0.0,
        10.0,
    ),
    ParameterSpec("action_frame", "str", "", "Frame in the header of chunks and trajectories."),
    ParameterSpec(
        "publish_joint_trajectory", "bool", True, "Publish each chunk as ~/joint_trajectory too."
    ),
    ParameterSpec(
        "safety_action",
        "str",
        "hold",
        "What goes to ~/commands when the node is deactivated or loses the engine: the joint "
        "positions measured last, zeros, or nothing.",
        choices=("hold", "zeros", "stop"),
    ),
    ParameterSpec(
        "safety_rate_hz",
        "float",
        10.0,
        "How often the safety action is repeated while the engine is lost; 0 sends it once.",
        "Hz",
        0.0,
        1000.0,
    ),
    ParameterSpec(
        "step_timeout_s",
        "float",
        5.0,
        "Longest wait of ~/step where the request names none.",
        "s",
        0.001,
        3600.0,
    ),
    *_GOALS,
)

PLANNER: tuple[ParameterSpec, ...] = (
    *_SESSION,
    ParameterSpec("channel", "str", "", "Goal channel to write; empty: the model's only one."),
    ParameterSpec(
        "joint_names",
        "str[]",
        [],
        "Joints that goal_joints must name, in the order of the goal; empty: the model's joints.",
    ),
    *_GOALS,
)

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


def _engine() -> tuple[ParameterSpec, ...]:
    kinds: dict[object, Kind] = {bool: "bool", int: "int", float: "float", str: "str"}
    specs = []
    for field in msgspec.structs.fields(EngineConfig):
        default = list(field.default) if isinstance(field.default, tuple) else field.default
        choices: tuple[str, ...] = ()
        kind: Kind
        if typing.get_origin(field.type) is typing.Literal:
            kind, choices = "str", typing.get_args(field.type)
        else:
            kind = kinds.get(field.type, "str[]")
        text = f"As EngineConfig.{field.name}."
        specs.append(ParameterSpec(field.name, kind, default, text, choices=choices))
    return tuple(specs)


ENGINE: tuple[ParameterSpec, ...] = _engine()
"""The engine is no ROS node, but its section is checked alike; ranges are EngineConfig's."""

SECTIONS: dict[str, tuple[ParameterSpec, ...]] = {
    "engine": ENGINE,
    "policy_node": POLICY,
    "planner_node": PLANNER,
    "sim": SIM,
}
"""Sections of ``config/flashrt.yaml``; the key is the node's name."""
