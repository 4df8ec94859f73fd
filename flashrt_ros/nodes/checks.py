"""What can be said of nodes' parameters together, before anything starts and without ROS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.errors import ConfigError
from flashrt_ros.nodes.arbitration import parse_ranks
from flashrt_ros.nodes.entries import parse_entries
from flashrt_ros.nodes.frames import Frames
from flashrt_ros.nodes.limits import parse_limits
from flashrt_ros.nodes.names import is_topic
from flashrt_ros.nodes.parameters import Settings, Value
from flashrt_ros.nodes.schema import parse_schema
from flashrt_ros.nodes.words import parse_named_goals


def check_nodes(nodes: Mapping[str, Mapping[str, Value]], engines: Sequence[EngineConfig]) -> None:
    """Return unless a node could not work with its parameters, whatever model there is.

    Args:
        nodes: One value for every parameter, by section.
        engines: That they may connect to.

    Raises:
        ConfigError: A node could not; names it.
    """
    by_name = {engine.name.strip("/"): engine for engine in engines}
    if len(by_name) < len(engines):
        raise ConfigError(
            "two engines have one name",
            expected="a name of its own in each section",
            found=", ".join(engine.name for engine in engines),
        )
    served: dict[tuple[str, int], str] = {}
    for name, values in nodes.items():
        settings = Settings(values)
        engine = by_name.get(str(values.get("engine", "")).strip("/"))
        if "transforms" in values:
            try:
                Frames(settings.texts("transforms"))
            except ConfigError as error:
                raise ConfigError(f"{name}: {error}") from error
        if engine is not None and settings.integer("env_index") >= engine.num_environments:
            raise ConfigError(
                f"{name} serves an environment that the engine does not have",
                expected=f"env_index below num_environments, {engine.num_environments}",
                found=settings.integer("env_index"),
            )
        if "cameras" in values:
            _check_cameras(name, settings)
            place = (settings.text("engine").strip("/"), settings.integer("env_index"))
            if place in served:
                raise ConfigError(
                    f"{name} and {served[place]} serve one environment",
                    expected="one policy node for each: both would publish its actions",
                    found=f"environment {place[1]} of engine '{place[0]}' twice",
                )
            served[place] = name
        try:
            if "safe_pose" in values:
                check_conduct(settings)
            if "planners" in values:
                _check_planners(settings)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from error
        if name == "sim" and len(settings.texts("joint_names")) != 2:
            raise ConfigError(
                f"{name}: parameter 'joint_names' does not fit the simulated robot",
                expected="2 names",
                found=", ".join(settings.texts("joint_names")) or "none",
            )


def _check_cameras(name: str, settings: Settings) -> None:
    cameras, fields = settings.texts("cameras"), settings.texts("camera_fields")
    for camera in cameras:
        if not is_topic(camera):
            raise ConfigError(
                f"{name}: parameter 'cameras' holds what is no topic",
                expected="letters, digits and _ between single slashes",
                found=repr(camera),
            )
    if fields and len(fields) != len(cameras):
        raise ConfigError(
            f"{name}: parameters 'cameras' and 'camera_fields' don't go together",
            expected=f"no fields, or {len(cameras)} of them",
            found=", ".join(fields),
        )


def check_conduct(settings: Settings) -> None:
    """Return unless a policy node's safety parameters contradict each other.

    Raises:
        ConfigError: They do; names one.
    """
    limits = parse_limits(settings.texts("joint_limits"))
    pose = parse_entries("safe_pose", settings.texts("safe_pose"), ("position",))
    actions = [name for name in settings.names() if name.endswith("_action")]
    wanting = [name for name in actions if settings.text(name) == "safe_pose"]
    if wanting and not pose:
        raise ConfigError(
            f"parameter '{wanting[0]}' is 'safe_pose', and there is none",
            expected="parameter 'safe_pose' with every joint of a command",
        )
    if wanting and limits and settings.number("safety_rate_hz") <= 0:
        raise ConfigError(
            "a safe pose within joint limits is approached step by step",
            expected="a safety_rate_hz above 0",
            found=0,
        )
    action = settings.text("trajectory_action")
    if settings.text("trajectory_stop") == "cancel" and not is_topic(action):
        raise ConfigError(
            "parameter 'trajectory_action' is no name of an action to cancel",
            expected="letters, digits and _ between single slashes",
            found=repr(action),
        )


def _check_planners(settings: Settings) -> None:
    parse_schema(settings.texts("goal_schema"))
    parse_ranks(settings.texts("planners"), lease_ns=settings.seconds_ns("lease_s"))
    parse_named_goals(settings.texts("named_goals"))
