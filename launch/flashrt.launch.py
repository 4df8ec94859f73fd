"""Start the processes of ``flashrt-ros up`` with ROS's own launch, from the same YAML.

``ros2 launch flashrt_ros flashrt.launch.py [config:=FILE] [namespace:=NAME] [device:=cuda]
[sim:=true] [autostart:=false]``; also fit to be included in a group with a pushed namespace. The
end of any process ends the rest, and nothing is restarted.
"""

# mypy: disable-error-code="attr-defined,no-any-return"
# To mypy `launch` is this folder; the real one is not always installed, and has no types.

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from launch.actions import (
    DeclareLaunchArgument,
    ExecuteProcess,
    OpaqueFunction,
    RegisterEventHandler,
    Shutdown,
)
from launch.event_handlers import OnShutdown
from launch.launch_description_entity import LaunchDescriptionEntity
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from flashrt_ros.cli.processes import child_environment
from flashrt_ros.cli.up import engine_commands, module_of, node_parameters, remappings
from flashrt_ros.nodes.configuration import full_namespace, load
from launch import LaunchContext, LaunchDescription


def generate_launch_description() -> LaunchDescription:
    """Declare the arguments; the file is read and checked when they are known."""
    return LaunchDescription(
        [
            DeclareLaunchArgument(
                "config", default_value="", description="Parameter file; empty: the packaged one."
            ),
            DeclareLaunchArgument(
                "namespace", default_value="", description="Namespace of nodes and engine."
            ),
            DeclareLaunchArgument(
                "device",
                default_value="",
                description="Of the engine: cpu, cuda or cuda:N; empty: the file's.",
            ),
            DeclareLaunchArgument(
                "sim", default_value="false", description="Start the simulated robot too."
            ),
            DeclareLaunchArgument(
                "autostart",
                default_value="true",
                description="Let the nodes configure and activate themselves.",
            ),
            OpaqueFunction(function=_processes),
        ]
    )


def _processes(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    def argument(name: str) -> str:
        return LaunchConfiguration(name).perform(context)

    def is_true(name: str) -> bool:
        return argument(name).lower() in ("true", "1")

    configuration = load(Path(argument("config")) if argument("config") else None)
    namespace = argument("namespace")
    # What a surrounding group pushed; launch_ros puts it before a node's namespace by itself.
    pushed = context.launch_configurations.get("ros_namespace", "")
    folder = Path(tempfile.mkdtemp(prefix="flashrt_ros_"))
    environment = child_environment()
    full = full_namespace(pushed, namespace)
    commands = engine_commands(configuration, folder, full, argument("device"))
    entities: list[LaunchDescriptionEntity] = [
        RegisterEventHandler(OnShutdown(on_shutdown=_remover(folder))),
        *(
            ExecuteProcess(
                cmd=list(command),
                name=name,
                output="screen",
                additional_env=environment,
                on_exit=Shutdown(reason=f"the {name} ended"),
            )
            for name, command in commands.items()
        ),
    ]
    for name in configuration.nodes:
        if name == "sim" and not is_true("sim"):
            continue
        parameters = node_parameters(configuration, name, is_true("autostart"))
        entities.append(
            Node(
                executable=sys.executable,
                arguments=["-m", module_of(name)],
                name=name,
                namespace=namespace,
                parameters=[parameters],
                remappings=[tuple(rule.split(":=")) for rule in remappings(configuration, name)],
                output="screen",
                additional_env=environment,
                on_exit=Shutdown(reason=f"{name} ended"),
            )
        )
    return entities


def _remover(folder: Path) -> OpaqueFunction:
    def remove(context: LaunchContext) -> None:
        shutil.rmtree(folder, ignore_errors=True)

    return OpaqueFunction(function=remove)
