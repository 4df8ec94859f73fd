"""Starts the processes that a bench asks for: engine, policy node, and what stands beside them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import yaml

from flashrt_ros.bench.context import Cast
from flashrt_ros.cli import signals
from flashrt_ros.cli.processes import Processes, ProcessSpec
from flashrt_ros.cli.up import node_parameters
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.nodes.commands import python_module
from flashrt_ros.nodes.configuration import Configuration
from flashrt_ros.nodes.declarations import SECTIONS
from flashrt_ros.nodes.folders import run_folder
from flashrt_ros.nodes.parameters import check_values

_LOG_LINES = 200
_NODE = "policy_node"


class HiredCrew:
    """Running processes of a bench, and the folder of their parameter files.

    Args:
        cast: What to start.

    Raises:
        msgspec.ValidationError: The engine does not take these parameters.
        FlashrtError: A parameter is refused.
    """

    def __init__(self, cast: Cast) -> None:
        self._log: deque[str] = deque(maxlen=_LOG_LINES)
        self._exits = ExitStack()
        self._processes = Processes(self._log.append)
        try:
            folder = self._exits.enter_context(run_folder())
            self._processes.start(_specs(cast, folder))
        except BaseException:
            self.stop()
            raise

    @property
    def log(self) -> Sequence[str]:
        """Newest lines of their output."""
        return tuple(self._log)

    def ended(self) -> object | None:
        """Return what ended unasked, in words, None for nothing."""
        return self._processes.ended()

    def stop(self) -> tuple[str, ...]:
        """End all; returns the names of those that had to be killed. Idempotent.

        A stop signal that comes meanwhile is delivered when everything is gone.
        """
        with signals.deferred():
            killed = self._processes.stop(keeps_signals=True)
            self._exits.close()
        return killed


def hire(cast: Cast) -> HiredCrew:
    """Start the processes of a bench; they take this process's environment."""
    return HiredCrew(cast)


def _specs(cast: Cast, folder: Path) -> list[ProcessSpec]:
    engine = msgspec.convert(dict(cast.engine), EngineConfig)
    file = folder / "engine.json"
    file.write_bytes(msgspec.json.encode(engine))
    node = () if cast.policy_node is None else _node_arguments(cast, engine, folder)
    if cast.in_one_process:
        words = (str(file), cast.factory, str(cast.switch_interval_us), *node)
        specs = [ProcessSpec("both", python_module("flashrt_ros.bench.threaded_node", *words))]
    else:
        factory = ("--model-factory", cast.factory) if cast.factory else ()
        command = cast.command or python_module("flashrt_ros.engine", *factory, "--config")
        specs = [ProcessSpec("engine", (*command, str(file)))]
        if node:
            module = f"flashrt_ros.nodes.{_NODE}"
            specs.append(ProcessSpec(_NODE, python_module(module, *node)))
    return [*specs, *(ProcessSpec(name, command) for name, command in cast.others)]


def _node_arguments(cast: Cast, engine: EngineConfig, folder: Path) -> tuple[str, ...]:
    given = {**(cast.policy_node or {}), "engine": engine.name}
    values = check_values(_NODE, SECTIONS[_NODE], given)
    configuration = Configuration(engine, {_NODE: values}, folder)
    parameters = node_parameters(configuration, _NODE, autostart=True)
    file = folder / f"{_NODE}.yaml"
    document = {"/**": {"ros__parameters": parameters}}
    file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return ("--ros-args", "--params-file", str(file))
