"""A device error that the context does not survive ends the process, with the reason."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flashrt_ros.capsule.room import NotYet
from flashrt_ros.engine import address, protocol
from flashrt_ros.engine.address import socket_path
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.engine.hosting import DEVICE_LOST
from flashrt_ros.engine.waits import Done, Waits
from flashrt_ros.errors import BackendError, DeviceLostError, EngineGoneError

StartEngine = Callable[..., Any]
Ask = Callable[[EngineClient], object]

WAIT_S = 60.0
NAME, OTHER = "tests/lost", "tests/lost/other"
REASON = "a kernel read or wrote an address that is not mapped"
GONE = (DeviceLostError, EngineGoneError)
"""What a client is told: the reason if its own verb found out, the end otherwise."""


@pytest.fixture
def start_losing(
    start_engine: StartEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Starts an engine whose device a call finds lost, once ``tmp_path / "lost"`` is there."""

    def start(call: str, *arguments: str, **config: object) -> Any:
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        monkeypatch.setenv("FLASHRT_TEST_LOSING_CALL", call)
        monkeypatch.setenv("FLASHRT_TEST_LOSING_FILE", str(tmp_path / "lost"))
        factory = ("--model-factory", "losing_device:make")
        return start_engine(NAME, (*factory, *arguments), **config)

    return start


def lose(tmp_path: Path) -> None:
    (tmp_path / "lost").touch()


def assert_ended(engine: Any) -> None:
    """Wait for the end: its code, its reason, and nothing left behind."""
    code = engine.process.wait(WAIT_S)
    _, log = engine.stop()
    assert code == DEVICE_LOST, log
    assert f"DEVICE_LOST: the device is lost: {REASON}" in log
    assert not socket_path(NAME).exists()


def feed(client: EngineClient) -> None:
    client.open_writer("goal").write(stamp_ns=1, values=[0.5, -0.5])
    client.open_writer("observation").write(stamp_ns=1, position=[0.0, 0.0])


def test_lost_in_a_tick(start_losing: StartEngine, tmp_path: Path) -> None:
    engine = start_losing("is_done")
    with engine.client() as client:
        client.activate(tick_source="timer", rate_hz=100.0)
        feed(client)
        end = time.monotonic() + WAIT_S
        while client.status().tick < 3:
            assert time.monotonic() < end
        lose(tmp_path)
        assert_ended(engine)
        with pytest.raises(GONE):
            client.status()


@pytest.mark.parametrize(
    ("call", "ask"),
    [
        ("copy", lambda client: client.restore("here")),
        ("fence", lambda client: client.step(1)),
        ("read", lambda client: client.inspect()),
    ],
    ids=["restore", "step", "inspect"],
)
def test_lost_in_a_verb(start_losing: StartEngine, tmp_path: Path, call: str, ask: Ask) -> None:
    engine = start_losing(call)
    with engine.client() as client, engine.client() as other:
        client.activate(tick_source="step")
        feed(client)
        client.step(2)
        client.snapshot("here")
        lose(tmp_path)
        with pytest.raises(GONE):
            ask(client)
        assert_ended(engine)
        with pytest.raises(EngineGoneError):
            other.status()


def test_lost_in_the_background(start_losing: StartEngine, tmp_path: Path) -> None:
    engine = start_losing("copy_aside", refill_delay_ms=200.0)
    with engine.client() as client:
        client.activate(tick_source="step")
        client.reset()
        lose(tmp_path)
        assert_ended(engine)


def test_lost_at_the_start(start_losing: StartEngine, tmp_path: Path) -> None:
    lose(tmp_path)
    with pytest.raises(RuntimeError, match=f"{DEVICE_LOST}, .*DEVICE_LOST"):
        start_losing("write")
    assert not socket_path(NAME).exists()


def test_an_engine_whose_device_is_not_lost_goes_on(
    start_losing: StartEngine, tmp_path: Path
) -> None:
    # the control: the same device, and the call that would find it lost is never made
    engine = start_losing("nothing")
    lose(tmp_path)
    with engine.client() as client:
        client.activate(tick_source="step")
        feed(client)
        client.step(3)
        client.snapshot("here")
        client.restore("here")
    code, log = engine.stop()
    assert code == 0, log


# two engines of one process ------------------------------------------------------------------


@pytest.fixture
def start_two(start_losing: StartEngine, tmp_path: Path) -> Callable[..., Any]:
    """Starts two engines on one such device, in one process, that read one goal channel."""

    def start(call: str, **config: object) -> Any:
        second = tmp_path / "second.json"
        shared = {"model": "minimal", "test_hooks": True, "shared_channels": ["goal"]}
        second.write_text(json.dumps({**shared, "name": OTHER}))
        return start_losing(call, "--config", str(second), shared_channels=["goal"], **config)

    return start


def socket_that_waits(name: str, request: protocol.Request) -> socket.socket:
    """Connect, and ask for something that is not answered."""
    sock = address.connect(name, timeout_s=WAIT_S)
    sock.settimeout(WAIT_S)
    sock.send(protocol.encode(protocol.Hello(1, protocol.PROTOCOL_VERSION, "raw", 0)))
    assert isinstance(protocol.decode_from_engine(sock.recv(65536)), protocol.Welcome)
    sock.send(protocol.encode(request))
    return sock


@pytest.mark.parametrize(("call", "finder"), [("is_done", NAME), ("fence", OTHER)])
def test_lost_in_a_tick_of_one_it_ends_both(
    start_two: StartEngine, tmp_path: Path, call: str, finder: str
) -> None:
    process = start_two(call)
    with EngineClient(NAME, timeout_s=WAIT_S) as one, EngineClient(OTHER, timeout_s=WAIT_S) as two:
        one.open_writer("goal").write(stamp_ns=1, values=[0.5, -0.5])
        for client, name in ((one, NAME), (two, OTHER)):
            client.open_writer("observation").write(stamp_ns=1, position=[0.0, 0.0])
            client.activate(tick_source="timer" if name == finder else "step", rate_hz=100.0)
        ticking, waiting = (one, OTHER) if finder == NAME else (two, NAME)
        step_waits = protocol.Step(2, 0, 1, -1, 1 << 40, 10**12)
        with socket_that_waits(waiting, step_waits) as sock:
            end = time.monotonic() + WAIT_S
            while ticking.status().tick < 3:
                assert time.monotonic() < end
            lose(tmp_path)
            assert_ended(process)
            assert sock.recv(1) == b""
        for client in (one, two):
            with pytest.raises(GONE):
                client.status()
    assert not socket_path(OTHER).exists()


def test_lost_in_a_verb_of_one_it_ends_both(start_two: StartEngine, tmp_path: Path) -> None:
    process = start_two("copy")
    with EngineClient(NAME, timeout_s=WAIT_S) as one, EngineClient(OTHER, timeout_s=WAIT_S) as two:
        two.activate(tick_source="step")
        two.snapshot("here")
        lose(tmp_path)
        with pytest.raises(GONE):
            two.restore("here")
        assert_ended(process)
        with pytest.raises(EngineGoneError):
            one.status()
    assert not socket_path(OTHER).exists()


def test_lost_at_the_start_it_ends_with_the_name_of_who_found_out(
    start_two: StartEngine, tmp_path: Path
) -> None:
    lose(tmp_path)
    with pytest.raises(RuntimeError, match=f"{DEVICE_LOST}, .*engine '{NAME}': DEVICE_LOST"):
        start_two("write")
    assert not socket_path(NAME).exists()
    assert not socket_path(OTHER).exists()


def step_on(client: EngineClient) -> None:
    for _ in range(10):
        client.step(4)


@pytest.mark.gpu
def test_a_kernel_that_fails_ends_the_process(
    start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    factory = ("--model-factory", "losing_device:make_failing")
    engine = start_engine(NAME, (*factory, "--device", "cuda"))
    with engine.client() as client:
        client.activate(tick_source="step")
        feed(client)
        with pytest.raises(GONE):
            step_on(client)
        code = engine.process.wait(WAIT_S)
    _, log = engine.stop()
    assert code == DEVICE_LOST, log
    assert "DEVICE_LOST: the device is lost" in log
    assert not socket_path(NAME).exists()


# verbs that wait -----------------------------------------------------------------------------


class Moves:
    """A mover that has always moved something."""

    def advance(self, max_bytes: int) -> bool:
        return True

    def take_failures(self) -> dict[str, Exception]:
        return {}

    def next_ns(self) -> None:
        return None


@pytest.mark.parametrize("error", [DeviceLostError, BackendError])
def test_a_verb_that_waited_and_finds_the_device_lost_ends_the_loop(
    error: type[BackendError],
) -> None:
    answers: list[object] = []
    outcomes: list[Exception] = [NotYet("waits"), error("failed")]

    def carry_out(request: protocol.Request, done: Done) -> None:
        raise outcomes.pop(0)

    mover: Any = Moves()
    waits = Waits(carry_out, mover, lambda env_index: 0)
    assert waits.begin(protocol.GetStatus(1, 0), answers.append) is not None
    if error is DeviceLostError:
        with pytest.raises(DeviceLostError):
            waits.background(1)
        assert answers == []
    else:  # the control: any other refusal is the verb's own
        waits.background(1)
        assert isinstance(answers[0], BackendError)
