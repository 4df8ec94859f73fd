"""Parameters of the policy node."""

from __future__ import annotations

from flashrt_ros.nodes.parameters import ParameterSpec
from flashrt_ros.nodes.safety import KINDS, TRAJECTORY_STOPS
from flashrt_ros.nodes.shared_parameters import GOALS, SESSION

POLICY: tuple[ParameterSpec, ...] = (
    *SESSION,
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
    ParameterSpec(
        "partner_timeout_s",
        "float",
        0.5,
        "How long a part of an observation waits for the others, by stamps; then it is dropped "
        "and counted.",
        "s",
        0.001,
        60.0,
    ),
    ParameterSpec("action_frame", "str", "", "Frame in the header of chunks and trajectories."),
    ParameterSpec(
        "publish_joint_trajectory",
        "bool",
        True,
        "Publish each chunk as ~/joint_trajectory too, where commands are positions.",
    ),
    ParameterSpec(
        "safety_action",
        "str",
        "hold",
        "What goes to ~/commands when the node is deactivated or loses the engine, and for every "
        "cause below that says default: the joint positions measured last, zeros, nothing, or "
        "safe_pose.",
        choices=KINDS,
    ),
    ParameterSpec(
        "stale_observation_action",
        "str",
        "default",
        "Safety action when the newest observation is older than observation_lifetime_s.",
        choices=("default", *KINDS),
    ),
    ParameterSpec(
        "stale_goal_action",
        "str",
        "default",
        "Safety action when the goal acted on has outlived its lifetime.",
        choices=("default", *KINDS),
    ),
    ParameterSpec(
        "engine_silent_action",
        "str",
        "default",
        "Safety action when nothing came from the engine for watchdog_ticks.",
        choices=("default", *KINDS),
    ),
    ParameterSpec(
        "limit_action",
        "str",
        "default",
        "Safety action when a limit stops the policy.",
        choices=("default", *KINDS),
    ),
    ParameterSpec(
        "safety_rate_hz",
        "float",
        10.0,
        "How often a safety action is repeated while its cause lasts; 0 sends it once.",
        "Hz",
        0.0,
        1000.0,
    ),
    ParameterSpec(
        "safe_pose",
        "str[]",
        [],
        "Where safe_pose leads, 'joint position=0.1' for each joint of a command.",
        "m or rad",
    ),
    ParameterSpec(
        "safe_pose_time_s",
        "float",
        5.0,
        "Time that a trajectory to the safe pose takes.",
        "s",
        0.001,
        3600.0,
    ),
    ParameterSpec(
        "observation_lifetime_s",
        "float",
        2.0,
        "Age of the newest observation at which the policy stops acting; 0 for never. Judged with "
        "tick source timer.",
        "s",
        0.0,
        86400.0,
    ),
    ParameterSpec(
        "acting_lifetime_s",
        "float",
        0.0,
        "Age at which a goal without a lifetime of its own is acted on no more; 0 for never. "
        "Judged with tick source timer.",
        "s",
        0.0,
        86400.0,
    ),
    ParameterSpec(
        "accepted_topic",
        "str",
        "planner_node/accepted",
        "Topic that tells the lifetimes of goals, a planner node's ~/accepted; empty for none.",
    ),
    ParameterSpec(
        "watchdog_ticks",
        "int",
        20,
        "Ticks without anything from the engine after which the policy stops; 0 for never. Counts "
        "with tick source timer.",
        "",
        0,
        100000,
    ),
    ParameterSpec(
        "joint_limits",
        "str[]",
        [],
        "Limits of what is published, 'joint lower=-1 upper=1 velocity=0.5 step=0.05' each, any "
        "key left out, '*' for the other joints.",
        "m or rad",
    ),
    ParameterSpec(
        "limit_mode",
        "str",
        "clamp",
        "What becomes of a command beyond a limit: it is brought within, or the policy stops.",
        choices=("clamp", "stop"),
    ),
    ParameterSpec(
        "command_kind",
        "str",
        "position",
        "What a command is: the first one's step is measured from the joint positions, or from "
        "zero.",
        choices=("position", "velocity"),
    ),
    ParameterSpec(
        "trajectory_stop",
        "str",
        "none",
        "What a trajectory controller gets with a safety action, a reset, restore or rollback: "
        "nothing, the measured positions on ~/joint_trajectory, or these and the cancellation of "
        "its action's goals.",
        choices=TRAJECTORY_STOPS,
    ),
    ParameterSpec(
        "trajectory_action",
        "str",
        "joint_trajectory_controller/follow_joint_trajectory",
        "The controller's action, for trajectory_stop cancel: whoever sent its goals, they end.",
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
    ParameterSpec(
        "episode_parts",
        "str[]",
        ["planner service=planner_node/episode/part", "sim service=sim/episode/part"],
        "Who takes part in episodes beside the policy, 'name service=...' each, in the order in "
        "which they are held; those that are not there are noted as absent.",
    ),
    ParameterSpec(
        "episode_timeout_s",
        "float",
        15.0,
        "Longest wait for one answer of a participant in an episode; a planner's turn under way "
        "is waited for.",
        "s",
        0.1,
        3600.0,
    ),
    *GOALS,
)
