"""Episodes over real engines, without ROS."""

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
from flashrt_ros.episode.client import EpisodeClient
from flashrt_ros.episode.state_part import StatePart
from flashrt_ros.errors import CapsuleNotFoundError, EpisodeError
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


@pytest.fixture(scope="module")
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


def test_policy_planner_and_world_go_on_as_they_did(start: Start) -> None:
    policy, planner = start(), start("planner")
    robot = stepped(policy)
    planner.instruct("go left")
    with EpisodeClient(policy, planner=planner, others=[robot.part()]) as episodes:
        made = episodes.snapshot("one")
        assert made.names == ("planner", "world", "policy")

        def go_on() -> tuple[list[bytes], list[float], tuple[int, ...]]:
            return robot.run(), list(robot.world), planner.instruct("on", mode="append").tokens

        first = go_on()
        for _ in range(2):
            episodes.restore("one")
            assert go_on() == first
        policy.restore(made.part("policy").capsule_id)  # the control
        assert go_on() != first
        episodes.drop("one")
        assert not labelled(policy)
        assert not labelled(planner)


def test_what_a_text_stands_at_is_dropped_with_the_next(start: Start) -> None:
    policy, planner = start(), start("planner")
    stepped(policy)
    planner.instruct("go left")
    with EpisodeClient(policy, planner=planner) as episodes:
        episodes.snapshot("one")
        episodes.restore("one")
        episodes.drop("one")
        assert len(labelled(planner)) == 1
        planner.reset()
        episodes.snapshot("two")
        episodes.drop("two")
        assert not labelled(planner)


def test_a_timer_stands_still_for_the_whole_of_it(start: Start) -> None:
    policy = start()
    policy.activate(tick_source="timer", rate_hz=100.0)
    policy.reset()
    robot = Robot(policy)
    robot.give_goal(0.5, -0.5)
    robot.observe()
    seen: list[str] = []

    def get() -> bytes:
        seen.append(policy.status().tick_source)
        return b""

    watch = StatePart("watch", "watch/1", get, lambda state: None)
    while policy.status().tick < 5:
        robot.observe()
    unpaced = EpisodeClient(policy, others=[watch])
    with unpaced, pytest.raises(EpisodeError, match="'policy' failed at hold: SPEC"):
        unpaced.snapshot("none")
    with EpisodeClient(policy, others=[watch], rate_hz=100.0) as episodes:
        tick = int(episodes.snapshot("one").part("policy").facts["tick"])
        assert policy.status().tick_source == "timer"
        while policy.status().tick < tick + 5:
            robot.observe()
        episodes.restore("one")
        assert policy.status().tick == tick  # until it is observed anew
        assert policy.status().tick_source == "timer"
        while policy.status().tick < tick + 5:
            robot.observe()
        episodes.drop("one")
    assert seen == ["step"] * 2


def test_a_tick_that_somebody_runs_meanwhile_is_found_out(start: Start) -> None:
    policy = start()
    robot = stepped(policy)

    def get() -> bytes:
        robot.step()
        return b""

    busy = StatePart("busy", "busy/1", get, lambda state: None)
    with EpisodeClient(policy, others=[busy]) as episodes:
        with pytest.raises(EpisodeError, match=r"'policy' failed at take: BUSY.*stand still"):
            episodes.snapshot("one")
        assert not episodes.episodes()
        assert not labelled(policy)


def test_a_policy_without_room_for_what_it_replaces_stays_where_it_is(start: Start) -> None:
    policy = start("narrow", capsule_quota_bytes=2 * start().model.capsule_bytes)
    robot = stepped(policy)  # home takes the first block, the episode the second
    with EpisodeClient(policy, others=[robot.part()]) as episodes:
        episodes.snapshot("one")
        robot.run(3)
        before = policy.inspect().state_digest, list(robot.world)
        with pytest.raises(EpisodeError, match="'policy' failed at put: CAPSULE_QUOTA"):
            episodes.restore("one")
        assert (policy.inspect().state_digest, list(robot.world)) == before


def test_an_episode_outlives_engine_and_client_where_there_is_a_folder(
    start: Start, tmp_path: Path
) -> None:
    folder = str(tmp_path / "capsules")
    policy = start("kept", capsule_folder=folder)
    robot = stepped(policy)
    with EpisodeClient(policy, others=[robot.part()]) as episodes:
        made = episodes.snapshot("one", persist=True)
        episodes.snapshot("lost")
    first = robot.run(), list(robot.world)
    digest = ""
    while not digest:  # it is written in the background
        (digest,) = (one.digest for one in policy.capsules(label="episode=one"))
    policy.stop()
    policy.close()
    again = start("kept", capsule_folder=folder)
    other = Robot(again)
    again.activate(tick_source="step")
    with EpisodeClient(again, others=[other.part()]) as episodes:
        assert made in episodes.episodes()
        episodes.restore("one")
        assert (other.run(), list(other.world)) == first
        with pytest.raises(EpisodeError, match="'policy' failed at check: CAPSULE_NOT_FOUND"):
            episodes.restore("lost")
        episodes.drop("lost")
        with pytest.raises(CapsuleNotFoundError):
            episodes.restore("lost")


def test_a_state_of_another_kind_is_refused(start: Start) -> None:
    policy = start()
    stepped(policy)
    with EpisodeClient(policy, others=[StatePart("w", "w/1", bytes, lambda s: None)]) as episodes:
        episodes.snapshot("one")
        episodes._episodes._participants[0]._kind = "w/2"  # type: ignore[attr-defined]
        with pytest.raises(EpisodeError, match=r"'w' failed at check: EPISODE.*expected w/2"):
            episodes.restore("one")
