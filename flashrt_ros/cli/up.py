"""``flashrt-ros up``: engine and nodes as processes, from the same YAML as the launch file."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import yaml

from flashrt_ros.cli.extras import require
from flashrt_ros.cli.printer import write_line
from flashrt_ros.cli.processes import Processes, ProcessSpec
from flashrt_ros.cli.signals import STOP_SIGNALS
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.errors import ConfigError
from flashrt_ros.nodes.commands import python_module
from flashrt_ros.nodes.configuration import Configuration, engine_name, load
from flashrt_ros.nodes.declarations import kind_of
from flashrt_ros.nodes.folders import run_folder
from flashrt_ros.nodes.names import check_namespace
from flashrt_ros.nodes.parameters import Value
from flashrt_ros.planner.config import PlannerConfig

NODE_MODULES = {
    "policy_node": "flashrt_ros.nodes.policy_node",
    "planner_node": "flashrt_ros.nodes.planner_node",
    "sim": "flashrt_ros.sim.node",
}
"""Nodes, by kind of the section of the YAML; the simulated robot only where it was asked for."""


def module_of(name: str) -> str:
    """Return the module that runs a node, by its section of the YAML."""
    return NODE_MODULES[kind_of(name)]


def remappings(configuration: Configuration, name: str) -> tuple[str, ...]:
    """Return how a node's topics are connected: the simulated robot follows the first policy."""
    if name != "sim":
        return ()
    policy = next(name for name in configuration.nodes if kind_of(name) == "policy_node")
    return (f"commands:={policy}/commands",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``up``."""
    parser.add_argument(
        "--config", type=Path, help="ROS parameter file; the packaged flashrt.yaml if left out"
    )
    parser.add_argument(
        "--device",
        default="",
        help="of the engine, and of a planner engine in its process: cpu, cuda or cuda:N, instead "
        "of the file's",
    )
    parser.add_argument("--namespace", default="", help="namespace of nodes and engine")
    parser.add_argument("--sim", action="store_true", help="start the simulated robot too")
    parser.add_argument(
        "--manual",
        action="store_true",
        help="leave configure and activate to a lifecycle manager",
    )


def run(arguments: argparse.Namespace) -> int:
    """Start everything, wait for a signal or the first child that ends, stop everything.

    Ctrl-C, SIGTERM and a closed terminal are the same; once one came, more do nothing, and
    they stay ignored until the process has left. A reader of the output that pauses or goes
    away stops nothing.

    Returns:
        0 after a signal, 1 if a child ended by itself or had to be killed.

    Raises:
        ConfigError: The file or the namespace can't be used, or what it needs is not
            installed; nothing was started.
    """
    configuration = load(arguments.config)
    require("'up'", {"rclpy": "ros"})
    if arguments.sim:
        require("the simulated robot", {"gym_pusht": "demo"})
    if configuration.planner_engine is not None:
        require("a planner engine", {"tokenizers": "lm"})
    output = sys.stdout.fileno()
    with Processes(lambda line: write_line(output, line)) as processes, run_folder() as folder:
        specs = process_specs(
            configuration,
            folder,
            namespace=arguments.namespace,
            device=arguments.device,
            with_sim=arguments.sim,
            autostart=not arguments.manual,
        )
        processes.start(specs)
        ended = processes.wait()
        if ended is not None:
            processes.say(f"{ended}; stopping the rest")
        killed = processes.stop()
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    return 1 if ended is not None or killed else 0


def process_specs(
    configuration: Configuration,
    folder: Path,
    *,
    namespace: str,
    with_sim: bool,
    autostart: bool,
    device: str = "",
) -> tuple[ProcessSpec, ...]:
    """Return what to start, engines first; parameter files go to ``folder``.

    Args:
        configuration: Checked.
        folder: Must live until every process has read its file.
        namespace: Of nodes and engine.
        with_sim: Whether the simulated robot is one of them.
        autostart: Whether the lifecycle nodes configure and activate themselves.
        device: Of the engine, instead of the configuration's; "" for that one.

    Raises:
        ConfigError: The namespace or the device is none, or a node looks for an engine of
            another name.
    """
    commands = engine_commands(configuration, folder, namespace, device)
    specs = [ProcessSpec(name, command) for name, command in commands.items()]
    for name in configuration.nodes:
        if name == "sim" and not with_sim:
            continue
        file = folder / f"{name}.yaml"
        values = {"/**": {"ros__parameters": node_parameters(configuration, name, autostart)}}
        file.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
        rules = [f"__ns:=/{namespace.strip('/')}", *remappings(configuration, name)]
        if name not in NODE_MODULES:
            rules.append(f"__node:={name}")
        command = python_module(module_of(name), "--ros-args", *_each("-r", rules))
        specs.append(ProcessSpec(name, (*command, "--params-file", str(file))))
    return tuple(specs)


def engine_commands(
    configuration: Configuration, folder: Path, namespace: str, device: str = ""
) -> dict[str, tuple[str, ...]]:
    """Return the command lines of the engines' processes, names resolved; files go to ``folder``.

    All engines of policies are members of one process, so that they can share channels. A
    planner engine with a host has no process of its own: that of its host runs both.

    Args:
        configuration: Checked.
        folder: Must live until every process has read its file.
        namespace: Of the engines.
        device: Of the policies' engines, and of a planner engine in their process, instead of
            the configuration's; "" for that one.

    Raises:
        ConfigError: The namespace or the device is none, a node looks for an engine of another
            name, or a planner engine is to join another process than that of the engine.
    """
    check_namespace(namespace)
    engines = [
        msgspec.structs.replace(
            engine, name=engine_name(namespace, engine.name), device=device or engine.device
        )
        for engine in configuration.engines
    ]
    names = [engine.name for engine in engines]
    for name, values in configuration.nodes.items():
        wanted = engine_name(namespace, str(values["engine"])) if "engine" in values else names[0]
        if wanted not in names:
            raise ConfigError(
                f"{name} looks for another engine than the one started",
                expected=" or ".join(names),
                found=wanted,
                fix="make 'engine' of the node and 'name' of the engine agree",
            )
    files = [_write(folder / f"engine{i or ''}.json", one) for i, one in enumerate(engines)]
    alone = python_module("flashrt_ros.engine", *_each("--config", files))
    planner = _planner_engine(configuration, namespace)
    if planner is None:
        return {"engine": alone}
    if planner.host:
        if planner.host not in names:
            raise ConfigError(
                f"planner engine '{planner.name}' is to join a process that is not started",
                expected=" or ".join(names),
                found=planner.host,
                fix="make 'host' of the planner engine and 'name' of the engine agree",
            )
        planner = msgspec.structs.replace(planner, device=device or planner.device)
    file = _write(folder / "planner_engine.json", planner)
    if planner.host:
        words = (*_each("--engine-config", files), "--config", file)
        return {"engine": python_module("flashrt_ros.planner", *words)}
    return {
        "engine": alone,
        "planner_engine": python_module("flashrt_ros.planner", "--config", file),
    }


def _write(path: Path, config: EngineConfig | PlannerConfig) -> str:
    path.write_bytes(msgspec.json.encode(config))
    return str(path)


def _each(option: str, values: Sequence[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def _planner_engine(configuration: Configuration, namespace: str) -> PlannerConfig | None:
    """Return what the planner engine is told, names resolved; None where the file has none.

    Raises:
        ConfigError: The planner node looks for another planner engine, or for none.
    """
    planner = configuration.planner_engine
    if planner is None:
        return None
    name = engine_name(namespace, planner.name)
    wanted = [
        str(values["model_engine"])
        for values in configuration.nodes.values()
        if values.get("model_engine")
    ]
    found = {engine_name(namespace, one) for one in wanted} or {"none"}
    if found != {name}:
        raise ConfigError(
            "planner_node looks for another planner engine than the one started",
            expected=name,
            found=", ".join(sorted(found)),
            fix="make 'model_engine' of the node and 'name' of the planner engine agree",
        )
    host = engine_name(namespace, planner.host) if planner.host else ""
    return msgspec.structs.replace(planner, name=name, host=host)


def node_parameters(configuration: Configuration, name: str, autostart: bool) -> dict[str, Value]:
    """Return a node's parameters for a file or launch, where ``[""]`` is the empty list."""
    values = {
        key: [""] if value == [] else value for key, value in configuration.nodes[name].items()
    }
    if "autostart" in values:
        values["autostart"] = autostart
    return values
