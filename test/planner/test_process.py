"""A planner engine in a process of its own, and what its clients see."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from flashrt_ros.engine import protocol
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.engine.hosting import read_settings
from flashrt_ros.engine.protocol import EventKind
from flashrt_ros.errors import (
    AbandonedError,
    EngineGoneError,
    ParameterTypeError,
    PayloadRangeError,
    PayloadTypeError,
    UnknownChannelError,
    UnknownParameterError,
    UnsupportedError,
)
from flashrt_ros.planner.config import PlannerConfig
from test.engine.conftest import EngineProcess, runtime_folder
from test.planner.conftest import PREFIXES

__all__ = ["runtime_folder"]

WAIT_S = 60.0
OPTIONS: dict[str, Any] = {
    "prefixes": list(PREFIXES),
    "max_positions": 640,
    "max_tokens": 48,
    "num_environments": 2,
    "may_refuse": False,
}


class PlannerProcess(EngineProcess):
    """A planner engine over the toy model."""

    module = "flashrt_ros.planner"
    defaults: ClassVar[dict[str, object]] = {}


@pytest.fixture(scope="module")
def start(runtime_folder: Path) -> Iterator[Callable[..., PlannerProcess]]:
    processes: list[PlannerProcess] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)

        def start_one(name: str, **config: object) -> PlannerProcess:
            processes.append(
                PlannerProcess(
                    name, ("--model-factory", "toy_planner:make"), **{**OPTIONS, **config}
                )
            )
            return processes[-1]

        yield start_one
    for process in processes:
        process.stop()
        os.close(process.log_fd)


@pytest.fixture(scope="module")
def planner(start: Callable[..., PlannerProcess]) -> PlannerProcess:
    return start(f"tests/planner/{os.getpid()}")


@pytest.fixture
def client(planner: PlannerProcess) -> Iterator[EngineClient]:
    with planner.client(client="test") as client:
        for env_index in range(2):
            client.reset(env_index=env_index)
        yield client


def events_until(client: EngineClient, word: str) -> list[protocol.Event]:
    """Receive events up to the first whose detail starts with a word."""
    events: list[protocol.Event] = []
    while not events or not events[-1].detail.startswith(word):
        event = client.receive(timeout_s=WAIT_S)
        assert isinstance(event, protocol.Event), f"no '{word}' after {events}"
        events.append(event)
    return events


def test_a_client_instructs_and_hears_each_subgoal(
    planner: PlannerProcess, client: EngineClient
) -> None:
    with planner.client() as listener:
        listener.subscribe(events=True)
        done = client.instruct("go left")
        events = events_until(listener, f"done turn={done.turn} ")
    told = [event.detail for event in events if event.kind == EventKind.SUBGOAL]
    assert len(told) == len(done.subgoals) > 0
    assert told[0].startswith(f"turn={done.turn} index=0 values=")
    assert events[-1].capsule_id == done.capsule_id
    assert all(event.generation == done.generation for event in events)
    assert client.instruct("go left").tokens == done.tokens
    assert client.instruct("and back", mode="append").num_positions > done.num_positions


def test_the_handshake_says_what_a_subgoal_is(client: EngineClient) -> None:
    channel = client.model.channels[0]
    assert (channel.name, channel.frame) == ("subgoal", "table")
    assert (channel.fields[0].low, channel.fields[0].high) == (0.0, 0.512)
    with pytest.raises(UnknownChannelError):
        client.open_writer("subgoal")


def test_another_client_barges_in(planner: PlannerProcess, client: EngineClient) -> None:
    outcome: list[object] = []

    def ask() -> None:
        with planner.client() as other:
            try:
                other.instruct("go round the block, " * 8)
            except AbandonedError as error:
                outcome.append(error)

    client.subscribe(events=True)
    thread = threading.Thread(target=ask)
    thread.start()
    begun = events_until(client, "begun turn=")[-1]
    done = client.instruct("stop")
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert isinstance(outcome[0], AbandonedError)
    events = events_until(client, f"done turn={done.turn} ")
    number = begun.detail.split()[1]
    fates = [e.detail for e in events if number in e.detail.split() and e.kind == EventKind.TURN]
    assert fates[-1].split()[0] in ("interrupted", "abandoned")
    if fates[-1].startswith("interrupted"):
        assert client.resume_turn().turn == int(number.partition("=")[2])


def test_a_turn_goes_on_without_its_caller_only_if_nobody_was_to_wait(
    planner: PlannerProcess, client: EngineClient
) -> None:
    client.subscribe(events=True)
    with planner.client() as other:
        begun = other.begin_turn("go left")
    events_until(client, f"done turn={begun.turn} ")

    with planner.client() as impatient, pytest.raises(EngineGoneError):
        impatient.instruct("go right, " * 8, timeout_s=1e-6)
    last = events_until(client, "abandoned turn=")[-1]
    assert "resumable=0" in last.detail


def test_bad_text_costs_nobody_the_connection(client: EngineClient) -> None:
    with pytest.raises(PayloadTypeError):
        client.instruct(b"\xff")
    with pytest.raises(PayloadTypeError):
        client.instruct("\ud800")
    with pytest.raises(PayloadRangeError):
        client.instruct("Kühlschrank")
    with pytest.raises(UnsupportedError):
        client.step()
    with pytest.raises(UnsupportedError):
        client.fork(2)
    client.ping()


def test_a_prefix_is_replaced_while_clients_are_served(client: EngineClient) -> None:
    before = client.instruct("go left")
    client.set_prefix("map", "There is no table.")
    changed = client.instruct("go left")
    assert changed.num_positions != before.num_positions
    client.set_prefix("map", PREFIXES[2].partition("=")[2])
    assert client.instruct("go left").tokens == before.tokens


def test_capsules_are_listed_with_their_positions(client: EngineClient) -> None:
    done = client.instruct("go left")
    found = {info.name or info.id: info for info in client.capsules()}
    assert found[done.capsule_id].position == done.num_positions
    assert found[done.capsule_id].parent == found["prefix.map"].id
    assert found["prefix.persona"].pinned


def test_messages_are_served_between_two_nodes(client: EngineClient) -> None:
    """A ping waits for one node at most, not for a turn; by what the engine says it did."""
    client.begin_turn("go round the block, " * 10)
    seen: set[tuple[str, int]] = set()
    while (status := client.status()).state != "idle":
        seen.add((status.state, status.tick))
    assert {state for state, _ in seen} >= {"decode"}
    assert len({tick for _, tick in seen}) == 1, "committed once, at the end"


def test_a_signal_ends_the_engine_in_the_middle_of_a_turn(
    start: Callable[..., PlannerProcess],
) -> None:
    process = start(f"tests/planner/end/{os.getpid()}")
    with process.client() as client:
        client.begin_turn("go round the block, " * 10)
        code, log = process.stop(signal.SIGTERM)
        assert code == 0, log
        with pytest.raises(EngineGoneError):
            client.ping()


def test_an_engine_that_can_not_start_says_why(start: Callable[..., PlannerProcess]) -> None:
    with pytest.raises(RuntimeError, match=r"PAYLOAD_SHAPE.*640 tokens"):
        start(f"tests/planner/no/{os.getpid()}", prefixes=["a = " + "x" * 700])


def test_a_file_with_an_unknown_parameter_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "planner.yaml"
    file.write_text("prefix: x")
    with pytest.raises(UnknownParameterError, match="expected prefixes"):
        read_settings(str(file), PlannerConfig)
    file.write_text("max_tokens: many")
    with pytest.raises(ParameterTypeError):
        read_settings(str(file), PlannerConfig)


def test_where_time_goes_is_told(client: EngineClient) -> None:
    started = time.monotonic_ns()
    done = client.instruct("go left")
    took = time.monotonic_ns() - started
    assert 0 < done.first_token_ns < done.first_subgoal_ns < done.duration_ns < took
