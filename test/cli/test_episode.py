from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from flashrt_ros.engine.client import EngineClient
from flashrt_ros.errors import CapsuleNotFoundError, EpisodeError

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(engine: str, flashrt: Call) -> Call:
    def run(*words: str, name: str = engine) -> tuple[int, str, str]:
        return flashrt("episode", *words, "--engine", name)

    return run


def test_an_episode_is_taken_listed_restored_and_dropped(call: Call, engine: str) -> None:
    with EngineClient(engine) as client:
        client.activate(tick_source="step")
        assert call("snapshot", "one")[0] == 0
        before = client.inspect().state_digest
        client.reseed(5)
        assert client.inspect().state_digest != before
        assert call("restore", "one")[0] == 0
        assert client.inspect().state_digest == before
        code, out, _ = call("list")
        assert (code, out) == (0, "one  tick 0  policy  0 bytes of state  without planner\n")
        (shown,) = json.loads(call("list", "--json")[1])["episodes"]
        assert (shown["name"], shown["absent"]) == ("one", ["planner"])
        assert call("drop", "one")[:2] == (0, "")
        assert not list(client.capsules(label="episode=one"))


def test_refusals_have_codes(call: Call, engine: str) -> None:
    code, _, err = call("restore", "none")
    assert code == 1
    assert f"{CapsuleNotFoundError.name} ({CapsuleNotFoundError.code})" in err
    assert call("list", "--timeout", "0.1", name="nobody")[0] == 3
    with EngineClient(engine) as client:
        client.activate(tick_source="timer", rate_hz=10.0)
        code, _, err = call("snapshot", "one")
        assert code == 1
        assert f"{EpisodeError.name} ({EpisodeError.code})" in err
        assert "name rate_hz" in err
        assert call("snapshot", "one", "--rate-hz", "10", "--persist")[0] == 0
        assert client.status().tick_source == "timer"
