"""Episodes over real engines, without ROS."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashrt_ros.episode.client import EpisodeClient
from flashrt_ros.episode.state_part import StatePart
from flashrt_ros.errors import CapsuleNotFoundError, EpisodeError
from test.episode.conftest import Robot, Start, labelled, stepped


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
        episodes.drop("one")
