"""Engines in processes of their own, and a robot that is nothing but a client."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

import pytest

from flashrt_ros.engine import address
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.engine.protocol import Stepped
from flashrt_ros.episode.state_part import StatePart
from test.engine.conftest import EngineProcess

TOY = Path(__file__).resolve().parents[1] / "planner"


class Planner(EngineProcess):
    module = "flashrt_ros.planner"
    defaults: ClassVar[dict[str, object]] = {
        "max_tokens": 48,
        "prefixes": ["persona = You move a pusher."],
    }


class Robot:
    """A policy's client that gives it what it needs, and a world that moves with its actions."""

    def __init__(self, client: EngineClient) -> None:
        self.client = client
        self.writers = {name: client.open_writer(name) for name in ("goal", "observation")}
        self.stamp_ns = 0
        self.world = [0.0, 0.0]

    def give_goal(self, *values: float) -> None:
        self.stamp_ns += 1
        self.writers["goal"].write(stamp_ns=self.stamp_ns, values=values)

    def observe(self) -> None:
        self.stamp_ns += 1
        self.writers["observation"].write(stamp_ns=self.stamp_ns, position=self.world)

    def step(self) -> bytes:
        self.observe()
        stepped = self.client.step()
        assert isinstance(stepped, Stepped)
        self.world[0] += 1.0
        return stepped.actions[0].values

    def run(self, count: int = 7) -> list[bytes]:
        return [self.step() for _ in range(count)]

    def part(self) -> StatePart:
        def put(state: bytes) -> None:
            self.world[:] = [float(word) for word in state.split()]

        return StatePart("world", "world/1", lambda: " ".join(map(str, self.world)).encode(), put)


class Engines:
    """Engines in processes; those that need nothing of their own are shared by all tests."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._started: dict[str, EngineProcess] = {}

    def start(self, name: str, **config: object) -> EngineProcess:
        kind = Planner if name == "planner" else EngineProcess
        words = ("--model-factory", "toy_planner:make") if kind is Planner else ()
        process = kind(name, words, **config)
        self._stack.callback(os.close, process.log_fd)
        self._stack.callback(process.stop)
        return process

    def shared(self, name: str) -> str:
        if name not in self._started:
            self._started[name] = self.start(name)
        return name


@pytest.fixture(scope="package")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    run = tmp_path_factory.mktemp("run")
    run.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("XDG_RUNTIME_DIR", str(run))
        patch.delenv(address.FOLDER_VARIABLE, raising=False)
        patch.setenv("PYTHONPATH", f"{TOY}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        yield Engines(stack)


Start = Callable[..., EngineClient]


@pytest.fixture
def start(engines: Engines) -> Iterator[Start]:
    """Connect to an engine: a shared one, or one of its own where it is configured."""
    with ExitStack() as stack:

        def begin(name: str = "engine", **config: object) -> EngineClient:
            called = engines.start(name, **config).name if config else engines.shared(name)
            return stack.enter_context(EngineClient(called, timeout_s=60.0))

        yield begin


def stepped(client: EngineClient) -> Robot:
    client.activate(tick_source="step")
    client.reset()
    robot = Robot(client)
    robot.give_goal(0.5, -0.5)
    robot.run(2)
    return robot


def labelled(client: EngineClient) -> list[str]:
    infos = client.capsules()
    return [one.id for one in infos if any(label.startswith("episode") for label in one.labels)]
