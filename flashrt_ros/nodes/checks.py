"""What can be said of nodes' parameters together, before anything starts and without ROS."""

from __future__ import annotations

from collections.abc import Mapping

from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.errors import ConfigError
from flashrt_ros.nodes.frames import Frames
from flashrt_ros.nodes.names import is_topic
from flashrt_ros.nodes.parameters import Settings, Value


def check_nodes(nodes: Mapping[str, Mapping[str, Value]], engine: EngineConfig) -> None:
    """Return unless a node could not work with its parameters, whatever model there is.

    Args:
        nodes: One value for every parameter, by section.
        engine: That they connect to.

    Raises:
        ConfigError: A node could not; names it.
    """
    for name, values in nodes.items():
        settings = Settings(values)
        if "transforms" in values:
            try:
                Frames(settings.texts("transforms"))
            except ConfigError as error:
                raise ConfigError(f"{name}: {error}") from error
        if "env_index" in values and settings.integer("env_index") >= engine.num_environments:
            raise ConfigError(
                f"{name} serves an environment that the engine does not have",
                expected=f"env_index below num_environments, {engine.num_environments}",
                found=settings.integer("env_index"),
            )
        if "cameras" in values:
            _check_cameras(name, settings)
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
