"""A coordinator that is killed amid a verb: what it leaves behind, and that others can go on."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from flashrt_ros.engine.client import EngineClient
from flashrt_ros.episode.client import EpisodeClient
from flashrt_ros.episode.state_part import StatePart
from test.episode.conftest import Engines, labelled

WAIT_S = 60.0

# The world is taken and put before the policy, and released before it.
KILLED = """
import os, signal, sys
from flashrt_ros.engine.client import EngineClient
from flashrt_ros.episode.client import EpisodeClient
from flashrt_ros.episode.state_part import StatePart

verb, moment = sys.argv[2:]

def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

world = StatePart("world", "world/1", lambda: b"1", lambda state: None)
setattr(world, moment, die)
with EngineClient(sys.argv[1]) as policy:
    with EpisodeClient(policy, others=[world], rate_hz=50.0) as episodes:
        getattr(episodes, verb)("theirs" if verb == "snapshot" else "ours")
"""


@pytest.fixture(scope="module")
def policy(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineClient]:
    folder = tmp_path_factory.mktemp("outliving") / "capsules"
    with EngineClient(engines.start("outliving", capsule_folder=str(folder)).name) as client:
        yield client


@pytest.mark.parametrize(
    ("verb", "moment"),
    [
        ("snapshot", "take"),
        ("snapshot", "release"),
        ("snapshot", "settle"),
        ("restore", "check"),
        ("restore", "release"),
        ("restore", "settle"),
    ],
)
def test_others_take_over_from_a_coordinator_that_was_killed(
    policy: EngineClient, verb: str, moment: str
) -> None:
    policy.activate(tick_source="timer", rate_hz=50.0)
    world = StatePart("world", "world/1", lambda: b"2", lambda state: None)
    with EpisodeClient(policy, others=[world], rate_hz=50.0) as episodes:
        mine = episodes.snapshot("ours", replace=True)
        arguments = [sys.executable, "-c", KILLED, policy.name, verb, moment]
        killed = subprocess.run(arguments, timeout=WAIT_S, check=False)
        assert killed.returncode == -signal.SIGKILL
        # It stands still where the timer's ticks had been taken away, at one of two boundaries.
        stands = policy.status().tick_source
        assert stands == ("timer" if moment == "settle" else "step")
        assert [one.name for one in episodes.episodes()] in (["ours"], ["ours", "theirs"])
        policy.activate(tick_source="timer", rate_hz=50.0)
        # Its claim went with it.
        assert episodes.restore("ours") == mine
        assert policy.status().tick_source == "timer"
        for one in episodes.episodes():
            episodes.drop(one.name)
    for left in labelled(policy):
        policy.pin(left, pinned=False)
        policy.drop(left)
