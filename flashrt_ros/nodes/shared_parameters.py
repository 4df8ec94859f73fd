"""Parameters that policy and planner node share."""

from __future__ import annotations

from flashrt_ros.engine.wire import BUSY_POLL_US
from flashrt_ros.nodes.parameters import ParameterSpec

SESSION = (
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
        "busy_poll_us",
        "int",
        BUSY_POLL_US,
        "How long a call to the engine looks for its answer without a pause before it sleeps.",
        "us",
        0,
        10_000,
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
"""Of every node with a session at an engine."""

GOALS = (
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
        "transform_lifetime_s",
        "float",
        5.0,
        "Age at which a transform that tf2 knows and that moves is no longer one; 0 for never.",
        "s",
        0.0,
        86400.0,
    ),
    ParameterSpec(
        "transforms",
        "str[]",
        [],
        "Static transforms for goals, 'parent child x y z qx qy qz qw' each.",
        "m",
    ),
)
"""Of every node that takes goals."""
