"""Reads the one YAML file that launch files, ``flashrt-ros up`` and nodes share; needs no ROS."""

from __future__ import annotations

import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import yaml

from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.errors import ConfigError, ParameterTypeError, UnknownParameterError
from flashrt_ros.nodes.checks import check_nodes
from flashrt_ros.nodes.declarations import SECTIONS, kind_of
from flashrt_ros.nodes.parameters import ROS_PARAMETERS, Value, check_values, is_of_ros
from flashrt_ros.planner.config import PlannerConfig

CONFIG_NAME = "flashrt.yaml"

_Config = TypeVar("_Config", EngineConfig, PlannerConfig)


@dataclass(frozen=True, slots=True)
class Configuration:
    """A checked file.

    Attributes:
        engine: What the engine is told; its name is not resolved yet.
        nodes: One value for every parameter of each node, by section, with those of
            ROS's own (``use_sim_time``, ``qos_overrides``) where the file sets them.
        path: Where it was read.
        planner_engine: What the planner engine's process is told, its name not resolved
            yet; None where the file has no section for it.
        more_engines: Further engines of the same process, in the file's order.
    """

    engine: EngineConfig
    nodes: Mapping[str, Mapping[str, Value]]
    path: Path
    planner_engine: PlannerConfig | None = None
    more_engines: tuple[EngineConfig, ...] = ()

    @property
    def engines(self) -> tuple[EngineConfig, ...]:
        """Every engine of a policy."""
        return (self.engine, *self.more_engines)


def default_config_path() -> Path:
    """Return the packaged ``flashrt.yaml``: of the source tree, else of the installation.

    Raises:
        ConfigError: Neither is there; names the places looked at.
    """
    package = Path(__file__).resolve().parents[1]
    places = [
        package.parent / "config" / CONFIG_NAME,
        Path(sysconfig.get_path("data")) / "share" / "flashrt_ros" / "config" / CONFIG_NAME,
        *(parent / "share" / "flashrt_ros" / "config" / CONFIG_NAME for parent in package.parents),
    ]
    for place in places:
        if place.is_file():
            return place
    raise ConfigError(
        f"the packaged {CONFIG_NAME} is missing",
        expected="it in one of " + ", ".join(map(str, places[:2])),
        fix="install the package again or name a file with --config",
    )


def load(path: Path | None = None) -> Configuration:
    """Read and check a file; every section may be left out.

    A section that is left out has the defaults, unless the file has others of its kind: with
    ``policy_node_left`` and ``policy_node_right`` alone there is no ``policy_node``.

    Args:
        path: ROS parameter file, or None for the packaged one.

    Raises:
        ConfigError: The file can't be read, is no YAML or no parameter file, says two
            things of one parameter, or a node can't work with what it says.
        UnknownParameterError: A section or name that nothing declares.
        ParameterTypeError: A value has another type than declared.
        ParameterRangeError: A value lies outside its range.
    """
    path = default_config_path() if path is None else path
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"can't read {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no YAML: {error}") from error
    sections = _sections(document if document is not None else {}, path)
    common = sections.pop("**", {})
    nodes: dict[str, dict[str, Value]] = {}
    engines: list[EngineConfig] = []
    planner_engine: PlannerConfig | None = None
    for kind, specs in SECTIONS.items():
        for name in [name for name in sections if kind_of(name) == kind] or [kind]:
            given = sections.get(name, {})
            if kind == "engine":
                values = check_values(name, specs, {"name": name, **given})
                engines.append(_engine(values, EngineConfig))
            elif kind == "planner_engine":
                planner = _engine(check_values(name, specs, given), PlannerConfig)
                planner_engine = planner if name in sections else None
            else:
                given = {**common, **given}
                nodes[name] = check_values(name, specs, given)
                nodes[name].update(_ros_parameters(name, given))
    check_nodes(nodes, engines)
    return Configuration(engines[0], nodes, path, planner_engine, tuple(engines[1:]))


def full_namespace(pushed: str, namespace: str) -> str:
    """Join a namespace to the one that a launch file pushed, as launch does for a node.

    Args:
        pushed: Of the surrounding group, "" for none.
        namespace: Relative to it, or absolute with a leading slash: then it stands alone.
    """
    return namespace if namespace.startswith("/") else f"{pushed}/{namespace}"


def engine_name(namespace: str, name: str) -> str:
    """Resolve an engine's name as ROS resolves a topic's, without the leading slash.

    Args:
        namespace: Of the node, with or without a leading slash.
        name: Relative to the namespace, or absolute with a leading slash.
    """
    if name.startswith("/"):
        return name.strip("/")
    return "/".join(part for part in (namespace.strip("/"), name.strip("/")) if part)


def _ros_parameters(owner: str, given: Mapping[str, object]) -> dict[str, Value]:
    """Return what rclpy declares by itself; it checks the rest of them when it does."""
    found: dict[str, Value] = {}
    for name, value in given.items():
        if is_of_ros(name):
            if name in ROS_PARAMETERS and not isinstance(value, bool):
                raise ParameterTypeError(
                    f"parameter '{name}' of {owner} has another type than declared",
                    expected="bool",
                    found=f"{type(value).__name__} {value!r}",
                )
            if not isinstance(value, bool | int | float | str):
                raise ParameterTypeError(
                    f"parameter '{name}' of {owner} is no plain value", found=repr(value)
                )
            found[name] = value
    return found


def _engine(values: Mapping[str, Value], kind: type[_Config]) -> _Config:
    plain = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the engine's section can't be used: {error}") from error


def _sections(document: object, path: Path) -> dict[str, dict[str, object]]:
    """Find ``ros__parameters`` by the last part of the key, whatever namespace stands before."""
    found: dict[str, dict[str, object]] = {}
    said_in: dict[tuple[str, str], str] = {}

    def add(name: str, section: str, values: dict[str, object]) -> None:
        known = found.setdefault(section, {})
        for key, value in values.items():
            if key in known and known[key] != value:
                raise ConfigError(
                    f"{path} gives parameter '{key}' of {section} two values",
                    expected=f"one, in '{said_in[section, key]}' or in '{name}'",
                    found=f"{known[key]!r} and {value!r}",
                    fix="write a file for each namespace; sections count for every one",
                )
            known[key] = value
            said_in[section, key] = name

    def walk(name: str, node: object) -> None:
        if not isinstance(node, dict):
            raise ConfigError(
                f"{path} is no ROS parameter file",
                expected="'<node>: ros__parameters: <name>: <value>'",
                found=f"{name or 'the document'}: {node!r}",
            )
        for key, value in node.items():
            if key == "ros__parameters":
                section = name.rsplit("/", 1)[-1]
                if not kind_of(section) and section != "**":
                    raise UnknownParameterError(
                        f"{path} has a section '{name}' for a node that is not started from it",
                        expected=", ".join(f"/**/{known}" for known in SECTIONS),
                    )
                if not isinstance(value, dict):
                    raise ConfigError(f"{path}: section '{name}' holds no parameters")
                add(name, section, _flat("", value))
            else:
                walk(f"{name}/{str(key).strip('/')}", value)

    walk("", document)
    return found


def _flat(prefix: str, values: Mapping[object, object]) -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            flat.update(_flat(f"{name}.", value))
        else:
            flat[name] = value
    return flat
