"""Policy, planner and simulator under one id: real processes over DDS, in lockstep."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("gym_pusht")

from builtin_interfaces.msg import Duration
from sensor_msgs.msg import JointState
from std_msgs.msg import String
from std_srvs.srv import Trigger

from flashrt_ros import errors
from flashrt_ros.msg import ExecutionEvent, Subgoal
from flashrt_ros.nodes.conversions import stamp_to_ns
from flashrt_ros.srv import (
    DropEpisode,
    EpisodePart,
    ListCapsules,
    ListEpisodes,
    ResetEpisode,
    ResetSimulator,
    RestoreCapsule,
    RestoreEpisode,
    SnapshotEpisode,
    Step,
)
from test.nodes.test_hosted_model import start_planner_engine

if TYPE_CHECKING:
    from test.nodes.conftest import Bench, Child, Peer

POLICY, PLANNER, SIM = "policy_node", "planner_node", "sim"
JOINTS = ["agent_x", "agent_y"]
REACHED_M = 0.06
SEED = 1_000_000


@dataclass
class Continuation:
    """All that came of so many steps, and of an instruction after them."""

    actions: list[bytes] = field(default_factory=list)
    poses: list[tuple[float, ...]] = field(default_factory=list)
    goals: list[tuple[int, tuple[float, ...]]] = field(default_factory=list)
    subgoals: list[str] = field(default_factory=list)


class World:
    """One more participant, in the test's own process: does what a test wants of it."""

    def __init__(self, peer: Peer) -> None:
        self.log: list[int] = []
        self.on: dict[int, Callable[[], None]] = {}
        self.failing = 0
        peer.node.create_service(EpisodePart, "world/episode/part", self._answer)

    def _answer(
        self, request: EpisodePart.Request, response: EpisodePart.Response
    ) -> EpisodePart.Response:
        self.log.append(request.verb)
        if request.verb in self.on:
            self.on[request.verb]()
        response.success = request.verb != self.failing
        response.kind, response.state = "world/1", b"\x01\x02"
        if not response.success:
            response.error_code = errors.CapsuleQuotaError.code
            response.error_msg = "the world is full"
        return response


class Chain:
    """The whole chain, stepped: an instruction's subgoals, the policy, the table."""

    def __init__(self, bench: Bench, peer: Peer) -> None:
        self.bench, self.peer = bench, peer
        self.left, self.seen = 0, 1
        self.marks: dict[str, tuple[int, Subgoal]] = {}
        self.folder = str(bench.folder / "kept")
        self.engine = self.start_engine()
        self.planner_engine = start_planner_engine(
            bench, max_tokens=96, capsule_folder=str(bench.folder / "texts")
        )
        self.sim = self.start_sim()
        self.world = World(peer)
        bench.policy(
            tick_source="step",
            joint_names=JOINTS,
            goal_lifetime_s=600,
            connect_timeout_s=20.0,
            episode_timeout_s=5.0,
            episode_parts=[
                f"planner service={PLANNER}/episode/part",
                "world service=world/episode/part",
                f"sim service={SIM}/episode/part",
            ],
        )
        bench.planner(
            "scene:=no_scene",  # what it says when an instruction comes depends on the clock
            model_engine="planner_engine",
            joint_names=JOINTS,
            instruction_mode="append",
            goal_lifetime_s=600,
            subgoal_dwell_s=3600,
            subgoal_reached_m=REACHED_M,
        )
        self.truths = peer.listen(JointState, f"{SIM}/ground_truth")
        self.accepted = peer.listen(Subgoal, f"{PLANNER}/accepted")
        self.events = peer.listen(ExecutionEvent, f"{PLANNER}/events")
        peer.bring_up(PLANNER)
        peer.bring_up(POLICY)
        self.instruction = peer.publisher(String, "instruction")

    def start_engine(self) -> Child:
        return self.bench.engine(capsule_folder=self.folder)

    def start_sim(self) -> Child:
        return self.bench.node(
            "flashrt_ros.sim.node",
            f"commands:={POLICY}/commands",
            mode="lockstep",
            republish_s=0.2,
            rate_hz=50,
        )

    def call(self, kind: Any, service: str, /, **fields: Any) -> Any:
        reply = self.peer.call(kind, service, **fields)
        assert reply.success, reply.error_msg
        return reply

    # the robot ---------------------------------------------------------------------------------

    def newest(self) -> JointState:
        return self.peer.until(lambda: self.truths and self.truths[-1], "an observation")

    def after(self, stamp_ns: int) -> JointState:
        return self.peer.until(
            lambda: (
                self.truths
                and stamp_to_ns(self.truths[-1].header.stamp) > stamp_ns
                and self.truths[-1]
            ),
            "a newer observation",
        )

    def begin(self) -> None:
        """An episode with a plan of several subgoals, a few steps into it."""
        self.call(Trigger, f"{PLANNER}/reset")
        self.call(ResetEpisode, f"{POLICY}/reset_episode")
        before = stamp_to_ns(self.newest().header.stamp)
        self.call(ResetSimulator, f"{SIM}/reset", has_seed=True, seed=SEED)
        self.after(before)
        self.accepted.clear()
        self.seen = 1
        self.left = len(self.say("go round the far side of it, please")) - 1
        self.settle()
        self.run(2)

    def say(self, text: str) -> list[str]:
        """Have a plan written; return its subgoals."""
        self.events.clear()
        self.instruction.publish(String(data=text))
        self.peer.until(lambda: self.told("done turn="), "the end of the turn")
        return [
            event.detail.partition("values=")[2]
            for event in self.events
            if event.kind == ExecutionEvent.SUBGOAL
        ]

    def told(self, text: str) -> bool:
        return any(
            event.kind == ExecutionEvent.TURN and event.detail.startswith(text)
            for event in self.events
        )

    def settle(self) -> None:
        """Wait until the planner has made a goal of the next subgoal, if that is due here."""
        self.peer.until(lambda: len(self.accepted) >= self.seen, "a goal")
        position = list(self.newest().position[:2])
        while self.left and math.dist(position, self.goal) <= REACHED_M:
            self.seen, self.left = self.seen + 1, self.left - 1
            self.peer.until(lambda: len(self.accepted) >= self.seen, "the next goal")

    @property
    def goal(self) -> list[float]:
        return [float(f"{value:.6g}") for value in self.accepted[self.seen - 1].values]

    def run(self, count: int) -> Continuation:
        """Step, and note all that comes of it."""
        found = Continuation()
        for index in range(count):
            stamp = self.newest().header.stamp
            reply = self.call(Step, f"{POLICY}/step", min_observation_stamp=stamp)
            truth = self.after(stamp_to_ns(stamp))
            found.actions.append(bytes(reply.actions) + bytes(reply.action_indices))
            found.poses.append(tuple(truth.position))
            before = self.seen
            self.settle()
            goals = self.accepted[before : self.seen]
            found.goals += [(index, tuple(goal.values)) for goal in goals]
        return found

    def go_on(self) -> Continuation:
        found = self.run(12)
        found.subgoals = self.say("and on")
        return found

    def is_unconfigured(self, node: str) -> bool:
        return self.peer.state(node) == "unconfigured"

    # episodes ----------------------------------------------------------------------------------

    def snapshot(self, name: str, **fields: Any) -> Any:
        self.marks[name] = (self.left, self.accepted[self.seen - 1])
        return self.call(SnapshotEpisode, f"{POLICY}/episode/snapshot", name=name, **fields)

    def restore(self, name: str) -> Any:
        before = stamp_to_ns(self.newest().header.stamp)
        reply = self.call(RestoreEpisode, f"{POLICY}/episode/restore", name=name)
        self.after(before)
        self.left, goal = self.marks[name]
        self.accepted[:], self.seen = [goal], 1
        return reply

    def digests(self, label: str) -> list[str]:
        """Digests of the capsules with a label that are on disk."""
        listed = self.call(ListCapsules, f"{POLICY}/capsule/list", label=label)
        return [one.digest for one in listed.capsules if one.digest]

    def episode_capsules(self, node: str = POLICY) -> list[str]:
        listed = self.call(ListCapsules, f"{node}/capsule/list")
        return [
            one.id
            for one in listed.capsules
            if any(label.startswith("episode") for label in one.labels)
        ]


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
