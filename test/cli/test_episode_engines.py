"""``flashrt-ros episode`` where an engine, its folder or a participant is not what it should be."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from flashrt_ros.engine.client import EngineClient
from flashrt_ros.episode.catalog import open_catalog
from flashrt_ros.episode.coordinator import Episodes
from flashrt_ros.episode.manifest import Part
from flashrt_ros.errors import CapsuleNotFoundError, EngineGoneError, UnsupportedError

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(engine: str, flashrt: Call) -> Call:
    def run(*words: str, name: str = engine) -> tuple[int, str, str]:
        return flashrt("episode", *words, "--engine", name)

    return run


def test_an_engine_that_is_not_there_is_not_waited_for(call: Call) -> None:
    """The default patience is for answers; an absent engine is one."""
    code, out, err = call("list", "--json", "--timeout", "1e6", name="nobody")
    assert code == 3
    assert json.loads(out)["error"]["code"] == EngineGoneError.code
    assert "no engine named 'nobody' answers" in err
    assert call("list", "--planner", "nobody", "--timeout", "1e6")[0] == 3


def test_a_refusal_is_printed_as_json_too(call: Call) -> None:
    code, out, err = call("restore", "none", "--json")
    assert code == 1
    assert json.loads(out)["error"]["name"] == CapsuleNotFoundError.name
    assert CapsuleNotFoundError.name in err


@pytest.mark.parametrize("capsule_folder", [""])
def test_without_a_folder_nothing_is_taken(call: Call, engine: str, capsule_folder: str) -> None:
    """The episode would end with the command, and its capsule would stay pinned for ever."""
    with EngineClient(engine) as client:
        client.activate(tick_source="step")
        for words in (("snapshot", "one"), ("list",), ("restore", "one"), ("drop", "one")):
            code, out, err = call(*words)
            assert (code, out) == (1, "")
            assert UnsupportedError.name in err
            assert "capsule_folder" in err
        assert not list(client.capsules(label="episode=one"))


def test_what_can_not_be_read_is_said_beside_the_rest(call: Call, capsule_folder: Path) -> None:
    assert call("list")[:2] == (0, "no episodes\n")
    assert call("snapshot", "one")[0] == 0
    (folder,) = capsule_folder.glob("episodes-*")
    (folder / "two.episode").write_bytes(b"\x80\x04K*.")
    code, out, err = call("list")
    assert code == 0
    assert out.startswith("one  tick 0")
    assert "episode 'two': CAPSULE_ARCHIVE" in err
    assert call("drop", "two")[0] == 0


def test_a_capsule_that_stays_is_named(call: Call, engine: str, capsule_folder: Path) -> None:
    class Planner:
        name = "planner"

        def take(self, taking: object) -> Part:
            return Part("planner", "planner", "c0ffee", facts={"engine": "thinker"})

        def __getattr__(self, verb: str) -> Callable[..., None]:
            return lambda *arguments: None

    class Policy(Planner):
        name = "policy"

        def take(self, taking: object) -> Part:
            return Part("policy", "policy", "decaf")

    with open_catalog(str(capsule_folder), engine) as catalog:
        Episodes(Policy(), [Planner()], catalog).snapshot("one")
    code, out, err = call("drop", "one")
    assert (code, out) == (0, "")
    assert "capsule c0ffee of 'planner' stays pinned in thinker" in err


def test_a_signal_waits_for_the_end_of_the_verb(
    call: Call, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy that stands still for a snapshot goes on, whoever is stopped meanwhile."""
    call_engine = EngineClient.call

    def strike(client: EngineClient, request: object, *arguments: object, **more: object) -> object:
        if type(request).__name__ == "Snapshot":
            signal.raise_signal(signal.SIGINT)
        return call_engine(client, request, *arguments, **more)  # type: ignore[arg-type]

    with EngineClient(engine) as client:
        client.activate(tick_source="timer", rate_hz=10.0)
        with monkeypatch.context() as patch:
            patch.setattr(EngineClient, "call", strike)
            assert call("snapshot", "one", "--rate-hz", "10")[0] == 130
        assert client.status().tick_source == "timer"
        assert call("list")[1].startswith("one  ")
