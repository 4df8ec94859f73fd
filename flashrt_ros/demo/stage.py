"""Brings everything up for the demo, in a ROS domain of its own, and takes it down again."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, cast

import msgspec
import rclpy
from rclpy.signals import SignalHandlerOptions
from rclpy.utilities import try_shutdown

from flashrt_ros.demo.census import marked_processes
from flashrt_ros.demo.domain import ros_domain
from flashrt_ros.demo.ear import Ear
from flashrt_ros.demo.services import Services
from flashrt_ros.demo.waiting import News, ScenarioError
from flashrt_ros.demo.witness import Witness
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.nodes.configuration import Configuration
from flashrt_ros.nodes.folders import run_folder
from flashrt_ros.nodes.spinning import Spinner

MARK = "FLASHRT_ROS_DEMO"
"""Environment variable by which the demo's processes are told from others."""

UP_S = 90.0
"""Longest wait until everything is active, s."""

_LOG_LINES = 400
_LOOK_S = 0.1


class Crew(Protocol):
    """The processes of the demo; ``cli.processes.Processes`` is one."""

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name."""

    def ended(self) -> object | None:
        """Return what ended unasked, in words, None for nothing."""

    def stop(self) -> tuple[str, ...]:
        """End all; returns the names of those that had to be killed."""


Hire = Callable[[Configuration, Path, Callable[[str], None], Mapping[str, str]], Crew]
"""Starts engine, nodes, robot and planner process.

Takes the configuration, a folder for parameter files, where output goes, and more
environment variables.
"""


class InterruptedBySignal(KeyboardInterrupt):
    """A signal asked for an end.

    A class of its own: once a plain ``KeyboardInterrupt`` has left a string that was run by
    ``exec``, as dataclasses do when they are made, CPython ends the process by SIGINT,
    whoever caught it.
    """


class Stage:
    """Everything the demo drives, up and active between enter and exit.

    Args:
        hire: Starts the processes.
        configuration: Of the engine and the nodes; the engine gets a name of its own.

    Attributes:
        engine: Name of the engine.
        planner_engine: Name of the planner engine.
        news: Wakes who waits for a message.
        witness: The demo's node.
        services: Calls to the nodes.
        client: Connection to the engine, for the main thread.
        ear: Hears every action.
        marks: Environment variables by which the demo's processes are known.
        log: Newest lines of the processes' output.
        is_interrupted: A signal has asked for an end.
        killed: Names of processes that had to be killed at the end.
    """

    witness: Witness
    services: Services
    client: EngineClient
    ear: Ear

    def __init__(self, hire: Hire, configuration: Configuration) -> None:
        self.engine = f"demo_{os.getpid()}_{secrets.token_hex(3)}"
        self.marks = {MARK: secrets.token_hex(8)}
        self.news = News(self.require_alive)
        self.log: deque[str] = deque(maxlen=_LOG_LINES)
        self.killed: tuple[str, ...] = ()
        self.is_interrupted = False
        self._hire = hire
        self.planner_engine = f"{self.engine}_planner"
        self._configuration = _named(configuration, self.engine, self.planner_engine)
        self._exits = contextlib.ExitStack()
        self._crew: Crew | None = None

    def __enter__(self) -> Self:
        try:
            self._raise_curtain()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the children, by name."""
        return {} if self._crew is None else self._crew.pids

    @property
    def processes(self) -> list[int]:
        """Every process that the demo has started, and what those have started."""
        return marked_processes(MARK, self.marks[MARK])

    @property
    def period_s(self) -> float:
        """Time between two control ticks, s."""
        return 1.0 / float(cast(float, self._configuration.nodes["policy_node"]["rate_hz"]))

    def require_going(self) -> None:
        """Return unless somebody has asked for an end.

        Raises:
            InterruptedBySignal: A signal came.
        """
        if self.is_interrupted:
            raise InterruptedBySignal

    def require_alive(self) -> None:
        """Return while every process is there and nobody has asked for an end.

        Raises:
            ScenarioError: One has ended; names it.
            InterruptedBySignal: A signal came.
        """
        self.require_going()
        ended = self._crew.ended() if self._crew is not None else None
        if ended is not None:
            raise ScenarioError(f"{ended}, unasked")

    def close(self) -> None:
        """Stop everything, children last, within seconds; a second Ctrl-C does not hurry it.

        In the main thread only. Idempotent.
        """
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
        try:
            self._exits.close()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _raise_curtain(self) -> None:
        exits = self._exits
        exits.enter_context(ros_domain())
        folder = exits.enter_context(run_folder())
        exits.callback(self._stop_crew)
        self._crew = self._hire(self._configuration, folder, self.log.append, self.marks)
        rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
        exits.callback(try_shutdown)
        self.witness = Witness(self.news)
        exits.callback(self.witness.destroy_node)
        spinner = Spinner(self.witness, "demo")
        exits.callback(spinner.close)
        self.services = Services(self.witness, self.require_alive)
        self._wait_until_active()
        self.client = exits.enter_context(EngineClient(self.engine, client="demo"))
        self.ear = Ear(self.engine, self.news)
        exits.callback(self.ear.close)

    def _stop_crew(self) -> None:
        if self._crew is not None:
            self.killed = self._crew.stop()

    def _wait_until_active(self) -> None:
        witness = self.witness
        self.news.wait(
            lambda: witness.status is not None and witness.status.state == "active",
            UP_S,
            "the policy node should become active",
        )
        deadline = time.monotonic() + UP_S
        while self.services.state("planner_node") != "active":
            self.require_alive()
            if time.monotonic() > deadline:
                raise ScenarioError(f"the planner node did not become active within {UP_S:g} s")
            time.sleep(_LOOK_S)
        self.news.wait(
            lambda: bool(witness.truths), UP_S, "the robot should publish its ground truth"
        )


def _named(configuration: Configuration, engine: str, planner_engine: str) -> Configuration:
    """Return a configuration whose engines have names that no other engine has."""
    assert configuration.planner_engine is not None, "checked before the demo began"
    nodes = {name: dict(values) for name, values in configuration.nodes.items()}
    for values in nodes.values():
        if "engine" in values:
            values["engine"] = engine
    nodes["planner_node"]["model_engine"] = planner_engine
    return replace(
        configuration,
        engine=msgspec.structs.replace(configuration.engine, name=engine),
        planner_engine=msgspec.structs.replace(configuration.planner_engine, name=planner_engine),
        nodes=nodes,
    )
