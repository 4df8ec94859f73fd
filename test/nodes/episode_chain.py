"""Policy, planner and simulator in processes of their own, and a participant of the test's."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("gym_pusht")

from sensor_msgs.msg import JointState
from std_msgs.msg import String
from std_srvs.srv import Trigger

from flashrt_ros import errors
from flashrt_ros.msg import ExecutionEvent, Subgoal
from flashrt_ros.nodes.conversions import stamp_to_ns
from flashrt_ros.srv import (
    DropCapsule,
    EpisodePart,
    ListCapsules,
    ResetEpisode,
    ResetSimulator,
    RestoreEpisode,
    SnapshotCapsule,
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

    def digest(self) -> str:
        """Of what a capsule of the policy would be now."""
        made = self.call(SnapshotCapsule, f"{POLICY}/capsule/snapshot", name="now", persist=True)
        name = made.capsule.name

        def is_written() -> str:
            listed = self.call(ListCapsules, f"{POLICY}/capsule/list", name_prefix=name)
            return str(listed.capsules[0].digest)

        found = self.peer.until(is_written, "the capsule's file")
        self.call(DropCapsule, f"{POLICY}/capsule/drop", capsule=name)
        return str(found)

    def episode_capsules(self, node: str = POLICY) -> list[str]:
        listed = self.call(ListCapsules, f"{node}/capsule/list")
        return [
            one.id
            for one in listed.capsules
            if any(label.startswith("episode") for label in one.labels)
        ]
