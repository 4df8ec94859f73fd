"""Engines of one process that read one channel, or what another one's plans leave."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashrt_ros.engine import protocol
from flashrt_ros.engine.address import socket_path
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.engine.config import EngineConfig
from flashrt_ros.engine.host_channels import Commons, parse_fed
from flashrt_ros.errors import ConfigError
from flashrt_ros.models.minimal import MinimalPolicy
from test.engine.conftest import EngineProcess

WAIT_S = 60.0
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class Two(EngineProcess):
    """Two engines of policies in one process."""

    def __init__(self, folder: Path, first: dict[str, Any], second: dict[str, Any]) -> None:
        file = folder / "second.json"
        file.write_text(json.dumps({**self.defaults, **second}))
        arguments = ("--config", str(file), "--model-factory", "outlet_models:make")
        options = {key: value for key, value in first.items() if key != "name"}
        super().__init__(first["name"], arguments, **options)


@pytest.fixture
def connect(
    runtime_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., list[EngineClient]]]:
    """Starts two engines and connects to both, each ticked by steps."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    with ExitStack() as exits:

        def make(first: dict[str, Any], second: dict[str, Any]) -> list[EngineClient]:
            process = Two(tmp_path, first, second)
            exits.callback(os.close, process.log_fd)
            exits.callback(process.stop)
            clients = []
            for config in (first, second):
                client = EngineClient(str(config["name"]), timeout_s=WAIT_S)
                clients.append(exits.enter_context(client))
                client.activate(tick_source="step")
                client.open_writer("observation").write(stamp_ns=1, position=[0.1, 0.2])
            return clients

        yield make


@pytest.mark.parametrize("device", DEVICES)
def test_a_goal_for_one_is_one_for_both(connect: Callable[..., Any], device: str) -> None:
    names = [f"tests/shared/{os.getpid()}/{device}/{number}" for number in range(2)]
    configs = [{"name": name, "device": device, "shared_channels": ["goal"]} for name in names]
    one, two = connect(*configs)
    with one.open_writer("goal") as writer:
        first = writer.write(stamp_ns=1, values=[0.5, -0.5])
        provenances = [client.step().chunks[0].provenance for client in (one, two)]
        assert [made.goal_sequence for made in provenances] == [first] * 2
    with two.open_writer("goal") as writer:
        writer.write(stamp_ns=2, values=[-0.5, 0.5])
    for client in (one, two):
        client.reset(keep_goal=True)
        client.open_writer("observation").write(stamp_ns=9, position=[0.1, 0.2])
        assert client.step().chunks[0].provenance.goal_stamp_ns == 2


def test_a_goal_written_after_a_reset_of_either_reaches_both(connect: Callable[..., Any]) -> None:
    """Though its writer took the slot along with the goal before."""
    names = [f"tests/renewed/{os.getpid()}/{number}" for number in range(2)]
    one, two = connect(*({"name": name, "shared_channels": ["goal"]} for name in names))
    writer = one.open_writer("goal")
    writer.write(stamp_ns=1, values=[0.5, -0.5])
    two.reset()
    loan = writer.loan()
    loan.fields["values"][:] = 0.25, 0.25
    by_hand = writer.commit(loan, stamp_ns=2, loan_next=True)  # the control: one does without
    assert by_hand.num_stale == 1
    assert [client.status().waiting_for for client in (one, two)] == ["", "goal"]
    two.reset()
    assert writer.write(stamp_ns=3, values=[-0.5, 0.5]) == by_hand.sequence + 2
    two.open_writer("observation").write(stamp_ns=2, position=[0.1, 0.2])
    made = [client.step().chunks[0] for client in (one, two)]
    assert [chunk.provenance.goal_stamp_ns for chunk in made] == [3, 3]


@pytest.mark.parametrize("device", DEVICES)
def test_a_goal_is_what_another_engine_left(connect: Callable[..., Any], device: str) -> None:
    names = [f"tests/fed/{os.getpid()}/{device}/{number}" for number in range(2)]
    leaving, fed = connect(
        {"name": names[0], "device": device, "weights": "/leaving"},
        {"name": names[1], "device": device, "fed_channels": [f"goal = {names[0]}:latent"]},
    )
    leaving.open_writer("goal").write(stamp_ns=1, values=[0.75, -0.25])
    made = leaving.step().chunks[0]
    end = np.frombuffer(made.actions, np.float32)[-2:]
    chunk = fed.step().chunks[0]
    assert chunk.provenance.goal_sequence > 0
    found = np.frombuffer(chunk.actions, np.float32).reshape(-1, 2)
    distance = np.linalg.norm(found - end, axis=1)
    assert distance[-1] < distance[0], "it goes where the other one's chunk ended"
    assert isinstance(fed.status(), protocol.Status)


# what is refused -----------------------------------------------------------------------------


def config(name: str, **changes: Any) -> EngineConfig:
    return EngineConfig(name=name, model="minimal", **changes)


@pytest.mark.parametrize(
    ("configs", "match"),
    [
        ([config("a", shared_channels=("goal",)), config("b")], "with nobody"),
        (
            [
                config("a", shared_channels=("goal",)),
                config("b", shared_channels=("goal",), device="cuda"),
            ],
            "different devices",
        ),
        ([config("a", fed_channels=("goal = b:latent",)), config("b")], "named before it"),
        ([config("a", fed_channels=("goal = a:latent",))], "named before it"),
        ([config("a"), config("b", fed_channels=("goal",))], "can't be read"),
        ([config("a", shared_channels=("goal", "goal")), config("b")], "with nobody"),
        (
            [config("a"), config("b", fed_channels=("goal = a:latent", "goal = a:other"))],
            "fed twice",
        ),
    ],
)
def test_what_can_not_be_is_refused_before_anything_is_built(
    configs: list[EngineConfig], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        Commons(configs)


def test_the_first_device_has_two_names() -> None:
    shared = {"shared_channels": ("goal",)}
    Commons([config("a", device="cuda", **shared), config("b", device="cuda:0", **shared)])


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"fed_channels": ["goal = {first}:nothing"]}, "{name}: UNKNOWN_CHANNEL"),
        ({"weights": "/broken"}, "ZeroDivisionError: a bug of the factory\n{name}"),
    ],
    ids=["in its links", "in its factory"],
)
def test_a_member_that_can_not_start_is_named_and_keeps_no_name(
    runtime_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    error: str,
) -> None:
    """After the first one was built, and the channel that both read was made."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    names = [f"tests/fails/{os.getpid()}/{number}" for number in range(2)]
    one, two = ({"name": name, "shared_channels": ["goal"]} for name in names)
    wrong = json.loads(json.dumps(changes).replace("{first}", names[0]))
    with pytest.raises(RuntimeError) as caught:
        Two(tmp_path, one, {**two, **wrong})
    text = str(caught.value).replace("\\n", "\n").replace("\\'", "'")
    assert error.format(name=f"engine '{names[1]}'") in text
    assert "(1, " in text, "the exit code"
    assert not [name for name in names if socket_path(name).exists()]
    process = Two(tmp_path, one, two)
    assert process.stop()[0] == 0
    os.close(process.log_fd)


def test_a_channel_that_the_model_lacks_is_refused() -> None:
    configs = [config(name, shared_channels=("gaol",)) for name in "ab"]
    with ExitStack() as owned, pytest.raises(ConfigError, match="no channel 'gaol'"):
        Commons(configs).shared(configs[0], MinimalPolicy(), owned)


def test_an_engine_name_may_have_slashes_and_colons() -> None:
    assert parse_fed("goal = robot1/planner:latent") == ("goal", "robot1/planner", "latent")
    assert parse_fed("goal=a:b:latent") == ("goal", "a:b", "latent")
