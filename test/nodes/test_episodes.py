"""Policy, planner and simulator under one id: real processes over DDS, in lockstep."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("gym_pusht")

from builtin_interfaces.msg import Duration
from std_msgs.msg import String

from flashrt_ros import errors
from flashrt_ros.nodes.conversions import stamp_to_ns
from flashrt_ros.srv import (
    DropEpisode,
    EpisodePart,
    ListEpisodes,
    RestoreCapsule,
    RestoreEpisode,
    SnapshotEpisode,
    Step,
)
from test.nodes.episode_chain import PLANNER, POLICY, SEED, SIM, Chain

if TYPE_CHECKING:
    from test.nodes.conftest import Bench, Peer


@pytest.fixture(scope="module")
def chain(bench: Bench, peer: Peer) -> Chain:
    return Chain(bench, peer)


def test_what_follows_a_restore_is_what_followed_the_snapshot(chain: Chain) -> None:
    chain.begin()
    made = chain.snapshot("mid", requires=["policy", "planner", "sim", "world"]).episode
    assert chain.left, "the plan has no subgoal left to go on to"
    first = chain.go_on()
    assert first.goals, "no subgoal fell due"
    for _ in range(2):
        reply = chain.restore("mid")
        assert (reply.tick, reply.episode) == (made.tick, made)
        assert chain.go_on() == first
    # the control: the policy alone goes on elsewhere
    chain.call(RestoreCapsule, f"{POLICY}/capsule/restore", capsule=made.capsule_id)
    stamp = stamp_to_ns(chain.newest().header.stamp)
    alone = chain.call(Step, f"{POLICY}/step", timeout=Duration(sec=20))
    assert tuple(chain.after(stamp).position) != first.poses[0]
    assert alone.tick == made.tick + 1
    chain.restore("mid")
    assert chain.go_on() == first


def test_an_episode_says_what_it_holds(chain: Chain) -> None:
    listed = chain.call(ListEpisodes, f"{POLICY}/episode/list")
    (mid,) = listed.episodes
    assert list(mid.participants) == ["planner", "world", "sim", "policy"]
    assert not mid.absent
    assert mid.goal_sequence
    facts = dict(fact.split("=", 1) for fact in mid.facts)
    assert facts["sim.seed"] == str(SEED)
    assert facts["policy.tick"] == str(mid.tick)
    assert facts["planner.subgoals_waiting"] == "1"
    assert mid.capsule_id in chain.episode_capsules()


@pytest.mark.parametrize("verb", ["HOLD", "TAKE", "RELEASE"])
def test_a_participant_that_fails_leaves_no_episode(chain: Chain, verb: str) -> None:
    before = (chain.episode_capsules(), chain.episode_capsules(PLANNER))
    chain.world.failing = getattr(EpisodePart.Request, verb)
    reply = chain.peer.call(SnapshotEpisode, f"{POLICY}/episode/snapshot", name="half")
    chain.world.failing = 0
    assert reply.error_code == errors.EpisodeError.code
    assert f"'world' failed at {verb.lower()}: CAPSULE_QUOTA" in reply.error_msg
    assert (chain.episode_capsules(), chain.episode_capsules(PLANNER)) == before
    names = [one.name for one in chain.call(ListEpisodes, f"{POLICY}/episode/list").episodes]
    assert names == ["mid"]


@pytest.mark.parametrize("verb", ["HOLD", "CHECK", "PUT", "RELEASE"])
def test_a_participant_that_fails_leaves_the_others_where_they_were(
    chain: Chain, verb: str
) -> None:
    chain.restore("mid")
    chain.run(3)
    here = chain.snapshot("here", replace=True).episode
    expected = chain.run(3)
    chain.restore("here")
    chain.world.failing = getattr(EpisodePart.Request, verb)
    before = stamp_to_ns(chain.newest().header.stamp)
    reply = chain.peer.call(RestoreEpisode, f"{POLICY}/episode/restore", name="mid")
    chain.world.failing = 0
    assert reply.error_code == errors.EpisodeError.code
    assert f"'world' failed at {verb.lower()}: CAPSULE_QUOTA" in reply.error_msg
    assert "not put back" not in reply.error_msg
    if verb == "RELEASE":  # everybody had been put by then, and shows again what it had before
        chain.after(before)
    again = chain.run(3)
    assert (again.actions, again.poses) == (expected.actions, expected.poses)
    chain.call(DropEpisode, f"{POLICY}/episode/drop", name="here")
    assert here.capsule_id not in chain.episode_capsules()


def test_what_a_caller_left_behind_is_reverted_by_itself(chain: Chain) -> None:
    service, token = f"{SIM}/episode/part", "left"

    def ask(verb: int, **fields: Any) -> EpisodePart.Response:
        request = EpisodePart.Request(verb=verb, token=token, **fields)
        request.lease.sec = 1
        future = chain.peer.send(EpisodePart, service, request)
        chain.peer.until(future.done, "an answer of the simulator")
        return future.result()

    chain.restore("mid")
    assert ask(EpisodePart.Request.HOLD).success
    start = ask(EpisodePart.Request.TAKE)
    assert ask(EpisodePart.Request.REVERT).success
    chain.run(2)
    here = chain.newest()
    assert ask(EpisodePart.Request.HOLD).success
    assert ask(EpisodePart.Request.HOLD).error_code == errors.BusyError.code
    assert ask(EpisodePart.Request.PUT, kind="other/1").error_code == errors.EpisodeError.code
    assert ask(EpisodePart.Request.PUT, kind=start.kind, state=start.state).success
    after = chain.after(stamp_to_ns(here.header.stamp))
    assert after.position == here.position
    assert ask(EpisodePart.Request.RELEASE).error_code == errors.NotActiveError.code


def test_a_snapshot_waits_for_the_end_of_a_turn(chain: Chain) -> None:
    chain.begin()
    chain.events.clear()
    chain.instruction.publish(String(data="go round the block, " * 8))
    chain.peer.until(lambda: chain.told("begun turn="), "the turn")
    facts = dict(fact.split("=", 1) for fact in chain.snapshot("turned").episode.facts)
    assert facts["planner.tick"] == "2"
    assert chain.told("done turn=")
    assert not chain.told("abandoned")
    chain.call(DropEpisode, f"{POLICY}/episode/drop", name="turned")


def test_a_name_that_is_taken_and_one_that_is_none_are_refused(chain: Chain) -> None:
    taken = chain.peer.call(SnapshotEpisode, f"{POLICY}/episode/snapshot", name="mid")
    assert taken.error_code == errors.CapsuleNameTakenError.code
    for kind, verb in ((RestoreEpisode, "restore"), (DropEpisode, "drop")):
        reply = chain.peer.call(kind, f"{POLICY}/episode/{verb}", name="none")
        assert reply.error_code == errors.CapsuleNotFoundError.code
    missing = chain.peer.call(
        SnapshotEpisode, f"{POLICY}/episode/snapshot", name="more", requires=["arm"]
    )
    assert missing.error_code == errors.EpisodeError.code
    assert "'arm' is not there" in missing.error_msg


def test_an_engine_killed_amid_a_restore_takes_nobody_along(chain: Chain) -> None:
    """The others are put back; once an engine is up again the episode is brought back whole."""
    chain.begin()
    chain.snapshot("kept", persist=True)
    first = chain.run(6)
    chain.peer.until(lambda: chain.digests("episode=kept"), "the capsule's file")
    before = chain.newest()
    chain.world.on[EpisodePart.Request.PUT] = chain.engine.kill
    reply = chain.peer.call(RestoreEpisode, f"{POLICY}/episode/restore", name="kept")
    chain.world.on.clear()
    assert reply.error_code == errors.EpisodeError.code
    assert "'policy' failed at put" in reply.error_msg
    assert "not put back" not in reply.error_msg
    assert chain.after(stamp_to_ns(before.header.stamp)).position == before.position

    for node in (PLANNER, POLICY):
        ended = partial(chain.is_unconfigured, node)
        chain.peer.until(ended, "the session's end")
    chain.engine = chain.start_engine()
    for node in (PLANNER, POLICY):
        chain.peer.bring_up(node)
    chain.restore("kept")
    again = chain.run(6)
    assert (again.actions, again.poses) == (first.actions, first.poses)


def test_a_simulator_killed_amid_a_restore_takes_nobody_along(chain: Chain) -> None:
    chain.run(2)
    here, before = chain.episode_capsules(), chain.digest()
    chain.world.on[EpisodePart.Request.PUT] = chain.sim.kill
    reply = chain.peer.call(RestoreEpisode, f"{POLICY}/episode/restore", name="kept")
    chain.world.on.clear()
    assert reply.error_code == errors.EpisodeError.code
    assert "'sim' failed at put: EPISODE" in reply.error_msg
    assert "does not answer" in reply.error_msg
    assert (chain.episode_capsules(), chain.digest()) == (here, before)
    chain.sim = chain.start_sim()

    def is_restored() -> bool:  # once the policy node and the simulator know each other
        service = f"{POLICY}/episode/restore"
        return bool(chain.peer.call(RestoreEpisode, service, name="kept").success)

    chain.peer.until(is_restored, "a restore with the simulator that was started again")
    assert chain.digest() != before


def test_an_episode_with_a_simulator_is_not_restored_without_it(chain: Chain) -> None:
    chain.sim.interrupt()
    seen: list[Any] = []

    def refused() -> bool:
        seen[:] = [chain.peer.call(RestoreEpisode, f"{POLICY}/episode/restore", name="kept")]
        return "needs participant 'sim'" in seen[0].error_msg

    chain.peer.until(refused, "the word that the simulator is not there")
    assert seen[0].error_code == errors.EpisodeError.code
    made = chain.snapshot("without").episode
    assert list(made.absent) == ["sim"]
