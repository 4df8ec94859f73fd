"""The policy node's parameters into what acts by them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rclpy.publisher import Publisher

from flashrt_ros.engine.protocol import ModelInfo
from flashrt_ros.nodes.acting import Acting, Approach, Conduct, Outlets
from flashrt_ros.nodes.checks import check_conduct
from flashrt_ros.nodes.controllers import GoalCanceller, TrajectoryOutlet
from flashrt_ros.nodes.fence import Fence
from flashrt_ros.nodes.guard import Cause, Guard, GuardSettings
from flashrt_ros.nodes.lifetimes import GoalLifetimes
from flashrt_ros.nodes.limits import Limits, parse_limits
from flashrt_ros.nodes.parameters import Settings
from flashrt_ros.nodes.safety import Command, SafetyAction, parse_pose

_PARAMETERS = {
    "default": "safety_action",
    Cause.OBSERVATION: "stale_observation_action",
    Cause.GOAL: "stale_goal_action",
    Cause.SILENCE: "engine_silent_action",
    Cause.LIMIT: "limit_action",
}


def make_trajectory_outlet(
    settings: Settings, model: ModelInfo, publisher: Publisher, canceller: GoalCanceller
) -> TrajectoryOutlet:
    """Return the way to a trajectory controller by a policy node's parameters.

    Velocities are no trajectory of positions: none is sent where commands are such.

    Args:
        settings: Of the node.
        model: Whose actions they are.
        publisher: Of ``trajectory_msgs/JointTrajectory``.
        canceller: Of the node.
    """
    stop, action = settings.text("trajectory_stop"), settings.text("trajectory_action")
    if stop == "cancel":
        canceller.meet(action)
    is_position = settings.text("command_kind") == "position"
    return TrajectoryOutlet(
        publisher,
        model,
        sends_chunks=settings.boolean("publish_joint_trajectory") and is_position,
        stop=stop,
        pose_time_s=settings.number("safe_pose_time_s"),
        cancel=partial(canceller.cancel, action),
    )


def make_acting(
    settings: Settings,
    model: ModelInfo,
    fence: Fence,
    lifetimes: GoalLifetimes,
    outlets: Outlets,
    *,
    now_ns: Callable[[], int],
    has_real_ages: bool,
    say: Callable[[str, str], None],
) -> Acting:
    """Return what acts by a policy node's parameters.

    Args:
        settings: Of the node.
        model: Whose actions they are.
        fence: Of the node.
        lifetimes: Of goals.
        outlets: Where to publish.
        now_ns: The node's clock.
        has_real_ages: As to :class:`Acting`.
        say: As to :class:`Acting`.

    Raises:
        ConfigError: Limits or pose name other joints than the model has, or the pose is
            missing, out of its limits, or can't be approached within them.
    """
    actions = {cause: settings.text(name) for cause, name in _PARAMETERS.items()}
    said = {str(cause): kind for cause, kind in actions.items() if kind != "default"}
    limits = Limits(parse_limits(settings.texts("joint_limits")), model.joint_names)
    pose = parse_pose(settings.texts("safe_pose"), model.joint_names)
    check_conduct(settings)
    if pose is not None:
        limits.require_within(pose, "safe_pose")
    rate_hz = settings.number("safety_rate_hz")

    def make_safety(send: Callable[[Command], None], approach: Approach) -> SafetyAction:
        return SafetyAction(
            send,
            num_joints=model.action_dim,
            rate_hz=rate_hz,
            pose=pose,
            approach=approach,
        )

    guard = Guard(
        GuardSettings(
            observation_ns=settings.seconds_ns("observation_lifetime_s"),
            future_ns=settings.seconds_ns("future_tolerance_s"),
        ),
        lifetimes,
    )
    conduct = Conduct(
        said,
        clamps=settings.text("limit_mode") == "clamp",
        is_position=settings.text("command_kind") == "position",
        watchdog_ticks=settings.integer("watchdog_ticks"),
        frame=settings.text("action_frame"),
    )
    return Acting(
        outlets,
        model,
        fence,
        guard,
        limits,
        make_safety=make_safety,
        conduct=conduct,
        now_ns=now_ns,
        has_real_ages=has_real_ages,
        say=say,
    )
