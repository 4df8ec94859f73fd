"""A planner engine in the process of a policy's: both as they are alone, with real clients."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import pytest

from flashrt_ros.engine import protocol
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.errors import EngineGoneError
from test.engine.conftest import EngineProcess, runtime_folder
from test.planner.test_process import OPTIONS, PlannerProcess

__all__ = ["runtime_folder"]

WAIT_S = 60.0
RATE_HZ = 50.0
NUM_ACTIONS = 40
LONG = "go round the block, " * 8
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class Both(PlannerProcess):
    """Both engines in one process; ``policy`` is the name of the other one."""

    def __init__(self, folder: Path, name: str, device: str, **policy: Any) -> None:
        self.policy = f"{name}/policy"
        file = folder / f"{name.replace('/', '_')}.json"
        values = {"model": "minimal", "device": device, "test_hooks": True, **policy}
        file.write_text(json.dumps({**values, "name": self.policy}))
        arguments = ("--model-factory", "toy_planner:make", "--engine-config", str(file))
        super().__init__(name, arguments, **OPTIONS, device=device, host=self.policy)

    def policy_client(self) -> EngineClient:
        return EngineClient(self.policy, timeout_s=WAIT_S)


class Pair(EngineProcess):
    """Two engines of policies in one process."""

    defaults: ClassVar[dict[str, object]] = {}


@pytest.fixture(autouse=True)
def toy_on_the_path(runtime_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    processes: list[EngineProcess] = []

    def start_one(make: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        processes.append(make(*arguments, **options))
        return processes[-1]

    yield start_one
    for process in processes:
        process.stop()
        os.close(process.log_fd)


def feed(client: EngineClient) -> None:
    client.open_writer("goal").write(stamp_ns=1, values=[0.5, -0.5])
    client.open_writer("observation").write(stamp_ns=1, position=[0.1, 0.2])


def tick(client: EngineClient) -> dict[int, bytes]:
    """Let the timer tick a while from home; returns the actions that were seen, by tick."""
    client.activate(tick_source="step")  # takes home, once
    client.deactivate()
    client.reset()
    feed(client)
    client.subscribe(actions=True)
    client.activate(tick_source="timer", rate_hz=RATE_HZ)
    seen: dict[int, bytes] = {}
    while len(seen) < NUM_ACTIONS:
        output = client.receive(timeout_s=WAIT_S)
        assert isinstance(output, protocol.Output)
        seen[output.provenance.tick] = bytes(client.payload(output))
        client.release(output)
    client.subscribe()
    client.deactivate()
    return seen


@pytest.mark.parametrize("device", DEVICES)
def test_both_are_as_they_are_alone(start: Callable[..., Any], tmp_path: Path, device: str) -> None:
    """A policy ticks while plans are written beside it: same actions, same tokens, none missed."""
    name = f"tests/cohosted/{os.getpid()}/{device}"
    both = start(Both, tmp_path, name, device)
    written: list[tuple[int, ...]] = []
    has_ticked = threading.Event()
    with both.client() as planner, both.policy_client() as policy:
        assert planner.model.name != policy.model.name
        alone = tick(policy)
        undisturbed = planner.instruct(LONG).tokens

        def write() -> None:
            while not has_ticked.is_set():
                written.append(planner.instruct(LONG).tokens)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            beside = tick(policy)
        finally:
            has_ticked.set()
            thread.join(WAIT_S)
        assert not thread.is_alive()
    assert written
    assert set(written) == {undisturbed}
    common = alone.keys() & beside.keys()
    assert len(common) > NUM_ACTIONS // 2
    assert all(alone[number] == beside[number] for number in common)
    assert len(set(alone.values())) > 8, "all actions are alike: comparing proves nothing"


def test_the_tokens_are_those_of_a_process_of_its_own(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    name = f"tests/cohosted/{os.getpid()}/same"
    both = start(Both, tmp_path, name, "cpu")
    own = start(PlannerProcess, f"{name}/own", ("--model-factory", "toy_planner:make"), **OPTIONS)
    with both.client() as one, own.client() as two, both.policy_client() as policy:
        feed(policy)
        policy.activate(tick_source="timer", rate_hz=RATE_HZ)
        first, second = (client.instruct(LONG, temperature=1.0, seed=5) for client in (one, two))
        assert first.tokens == second.tokens
        assert policy.status().tick > 0


def test_a_stop_or_the_end_of_one_is_that_of_both(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    both = start(Both, tmp_path, f"tests/cohosted/{os.getpid()}/stop", "cpu")
    with both.client() as planner, both.policy_client() as policy:
        policy.stop()
        with pytest.raises(EngineGoneError):
            planner.receive(WAIT_S)
    code, log = both.stop()
    assert code == 0, log


def test_ready_names_both(start: Callable[..., Any], tmp_path: Path) -> None:
    name = f"tests/cohosted/{os.getpid()}/ready"
    both = start(Both, tmp_path, name, "cpu")
    both.process.send_signal(signal.SIGTERM)
    out, _ = both.process.communicate(timeout=WAIT_S)
    lines = [line for line in out.splitlines() if line.startswith("ready: engine ")]
    assert [line.split()[2] for line in lines] == [both.policy, name]


@pytest.mark.parametrize(
    ("policy", "found"),
    [
        ({"model": "none_such"}, "engine '{name}/policy': UNKNOWN_MODEL"),
        ({"num_threads": 2}, "CONFIG: a process has one intra-op thread count"),
    ],
)
def test_a_member_that_can_not_start_is_named(
    start: Callable[..., Any], tmp_path: Path, policy: dict[str, Any], found: str
) -> None:
    name = f"tests/cohosted/{os.getpid()}/bad"
    with pytest.raises(RuntimeError) as caught:
        start(Both, tmp_path, name, "cpu", **policy)
    assert found.format(name=name) in str(caught.value)


def test_a_planner_without_its_host_is_refused(start: Callable[..., Any]) -> None:
    name = f"tests/cohosted/{os.getpid()}/alone"
    with pytest.raises(RuntimeError, match=r"is to join the process of engine .*elsewhere"):
        start(
            PlannerProcess,
            name,
            ("--model-factory", "toy_planner:make"),
            **OPTIONS,
            host="elsewhere",
        )


@pytest.mark.parametrize("device", DEVICES)
def test_two_policies_share_a_process(
    start: Callable[..., Any], tmp_path: Path, device: str
) -> None:
    names = [f"tests/cohosted/{os.getpid()}/{device}/{number}" for number in range(2)]
    first, second = (
        {"name": name, "model": "minimal", "device": device, "seed": seed}
        for seed, name in enumerate(names)
    )
    file = tmp_path / "second.json"
    file.write_text(json.dumps(second))
    process = start(Pair, first.pop("name"), ("--config", str(file)), **first)
    with ExitStack() as exits:
        clients = [exits.enter_context(EngineClient(name, timeout_s=WAIT_S)) for name in names]
        seen = []
        for client in clients:
            feed(client)
            client.subscribe(actions=True)
            client.activate(tick_source="timer", rate_hz=RATE_HZ)
        for client in clients:
            output = client.receive(timeout_s=WAIT_S)
            assert isinstance(output, protocol.Output)
            seen.append(bytes(client.payload(output)))
        assert seen[0] != seen[1], "the seeds differ"
        assert clients[0].engine_epoch != clients[1].engine_epoch
    code, log = process.stop()
    assert code == 0, log
