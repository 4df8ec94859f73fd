"""``flashrt-ros up``: engine and nodes as processes, from the same YAML as the launch file."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

import msgspec
import yaml

from flashrt_ros.cli.printer import write_line
from flashrt_ros.cli.processes import Processes, ProcessSpec
from flashrt_ros.cli.signals import STOP_SIGNALS
from flashrt_ros.errors import ConfigError
from flashrt_ros.nodes.commands import python_module
from flashrt_ros.nodes.configuration import Configuration, engine_name, load
from flashrt_ros.nodes.folders import run_folder
from flashrt_ros.nodes.names import check_namespace
from flashrt_ros.nodes.parameters import Value
from flashrt_ros.planner.config import PlannerConfig

NODE_MODULES = {
    "policy_node": "flashrt_ros.nodes.policy_node",
    "planner_node": "flashrt_ros.nodes.planner_node",
    "sim": "flashrt_ros.sim.node",
}
"""Nodes, by section of the YAML; the simulated robot only where it was asked for."""

REMAPPINGS = {"sim": ("commands:=policy_node/commands",)}
"""The simulated robot follows the policy."""


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
    """
    configuration = load(arguments.config)
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
    for name, module in NODE_MODULES.items():
        if name == "sim" and not with_sim:
            continue
        file = folder / f"{name}.yaml"
        values = {"/**": {"ros__parameters": node_parameters(configuration, name, autostart)}}
        file.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
        rules = [f"__ns:=/{namespace.strip('/')}", *REMAPPINGS.get(name, ())]
        words = [word for rule in rules for word in ("-r", rule)]
        command = python_module(module, "--ros-args", *words)
        specs.append(ProcessSpec(name, (*command, "--params-file", str(file))))
    return tuple(specs)


def engine_commands(
    configuration: Configuration, folder: Path, namespace: str, device: str = ""
) -> dict[str, tuple[str, ...]]:
    """Return the command lines of the engines' processes, names resolved; files go to ``folder``.

    A planner engine with a host has no process of its own: that of its host runs both.

    Args:
        configuration: Checked.
        folder: Must live until every process has read its file.
        namespace: Of the engines.
        device: Of the policy's engine, and of a planner engine in its process, instead of the
            configuration's; "" for that one.

    Raises:
        ConfigError: The namespace or the device is none, a node looks for an engine of another
            name, or a planner engine is to join another process than that of the engine.
    """
    check_namespace(namespace)
    engine = msgspec.structs.replace(
        configuration.engine,
        name=engine_name(namespace, configuration.engine.name),
        device=device or configuration.engine.device,
    )
    for name in ("policy_node", "planner_node"):
        wanted = engine_name(namespace, str(configuration.nodes[name]["engine"]))
        if wanted != engine.name:
            raise ConfigError(
                f"{name} looks for another engine than the one started",
                expected=engine.name,
                found=wanted,
                fix="make 'engine' of the node and 'name' of the engine agree",
            )
    engine_file = folder / "engine.json"
    engine_file.write_bytes(msgspec.json.encode(engine))
    planner = _planner_engine(configuration, namespace)
    if planner is None:
        return {"engine": python_module("flashrt_ros.engine", "--config", str(engine_file))}
    if planner.host:
        if planner.host != engine.name:
            raise ConfigError(
                f"planner engine '{planner.name}' is to join a process that is not started",
                expected=engine.name,
                found=planner.host,
                fix="make 'host' of the planner engine and 'name' of the engine agree",
            )
        planner = msgspec.structs.replace(planner, device=device or planner.device)
    planner_file = folder / "planner_engine.json"
    planner_file.write_bytes(msgspec.json.encode(planner))
    if planner.host:
        words = ("--engine-config", str(engine_file), "--config", str(planner_file))
        return {"engine": python_module("flashrt_ros.planner", *words)}
    return {
        "engine": python_module("flashrt_ros.engine", "--config", str(engine_file)),
        "planner_engine": python_module("flashrt_ros.planner", "--config", str(planner_file)),
    }


def _planner_engine(configuration: Configuration, namespace: str) -> PlannerConfig | None:
    """Return what the planner engine is told, names resolved; None where the file has none.

    Raises:
        ConfigError: The planner node looks for another planner engine, or for none.
    """
    planner = configuration.planner_engine
    if planner is None:
        return None
    name = engine_name(namespace, planner.name)
    wanted = str(configuration.nodes["planner_node"]["model_engine"])
    found = engine_name(namespace, wanted) if wanted else "none"
    if found != name:
        raise ConfigError(
            "planner_node looks for another planner engine than the one started",
            expected=name,
            found=found,
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
